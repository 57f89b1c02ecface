"""Reads user-written objects key by key, and collects every error with its place."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar, overload

from ..base.yaml.line_numbers import Place
from ..errors import printable

K = TypeVar("K")
T = TypeVar("T")


class Faults:
    """Collects errors, each with the source, the place and, if known, the line.

    Args:
        source: the name of the file, for messages.
        lines: line numbers by place.
    """

    def __init__(self, source: str, lines: Mapping[Place, int]) -> None:
        self.found: list[str] = []
        self._source = source
        self._lines = lines

    def add(self, place: Place, text: str) -> None:
        line = next((f":{self._lines[place[:n]]}" for n in range(len(place), -1, -1) if place[:n] in self._lines), "")
        shown = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place).lstrip(".")
        self.found.append(printable(f"{self._source}{line}: {shown}{': ' if shown else ''}{text}"))

    @staticmethod
    def near(word: object, known: Iterable[str]) -> str:
        """Returns ``; did you mean ...?`` if a known word is similar, else ""."""
        close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
        return f"; did you mean `{close[0]}`?" if close else ""


class KeyReader:
    """Reads one mapping. Each key is read once; :meth:`end` reports keys that were never read."""

    def __init__(self, data: object, place: Place, faults: Faults) -> None:
        self._data: Mapping[object, object] = data if isinstance(data, Mapping) else {}
        self._place = place
        self._faults = faults
        self._known: list[str] = []
        if not isinstance(data, Mapping):
            faults.add(place, f"{data!r} is not a mapping of keys")

    def fault(self, key: str, text: str) -> None:
        self._faults.add((*self._place, key), text)

    @overload
    def take(self, key: str, read: Callable[[object], T], *, required: Literal[True]) -> T | None: ...
    @overload
    def take(self, key: str, read: Callable[[object], T]) -> T | None: ...
    def take(self, key: str, read: Callable[[object], T], *, required: bool = False) -> T | None:
        """Returns the value of a key, converted by ``read``; None if it is missing, null or invalid."""
        self._known.append(key)
        value = self._data.get(key)
        if value is None:
            if required:
                self._faults.add(self._place, f"`{key}` is missing")
            return None
        return self._read((*self._place, key), read, value)

    def inner(self, key: str, read: Callable[[KeyReader], T | None]) -> T | None:
        """Returns the result of ``read`` for the mapping in a key; None if it is missing."""
        self._known.append(key)
        value = self._data.get(key)
        return None if value is None else read(KeyReader(value, (*self._place, key), self._faults))

    def each(self, key: str, read: Callable[[KeyReader], T], *, required: bool = False) -> list[T]:
        """Returns the results of ``read`` for the list of mappings in a key."""
        items = self._list(key, required=required)
        return [read(KeyReader(item, (*self._place, key, i), self._faults)) for i, item in enumerate(items)]

    def items(self, key: str, read: Callable[[object], T]) -> tuple[T, ...]:
        """Returns the valid values of the list in a key, converted by ``read``."""
        found = (self._read((*self._place, key, i), read, item) for i, item in enumerate(self._list(key)))
        return tuple(item for item in found if item is not None)

    def mapping(self, key: str, read_key: Callable[[object], K], read: Callable[[object], T]) -> dict[K, T]:
        """Returns the mapping in a key, whose keys the user chooses, with keys and values converted."""
        self._known.append(key)
        data = self._data.get(key)
        if data is None:
            return {}
        if not isinstance(data, Mapping):
            self._faults.add((*self._place, key), f"{data!r} is not a mapping")
            return {}
        out = {}
        for name, value in data.items():
            place = (*self._place, key, name if isinstance(name, str | int) else str(name))
            converted_key, found = self._read(place, read_key, name), self._read(place, read, value)
            if converted_key is not None and found is not None:
                out[converted_key] = found
        return out

    def end(self) -> None:
        """Reports every key that was never read."""
        for key in self._data:
            if key not in self._known:
                name = key if isinstance(key, str | int) else str(key)
                self._faults.add((*self._place, name), f"unknown key{self._faults.near(key, self._known)}")

    def _list(self, key: str, *, required: bool = False) -> Sequence[object]:
        self._known.append(key)
        value = self._data.get(key)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return value
        if value is not None:
            self._faults.add((*self._place, key), f"{value!r} is not a list")
        elif required:
            self._faults.add(self._place, f"the list `{key}` is missing")
        return ()

    def _read(self, place: Place, read: Callable[[object], T], value: object) -> T | None:
        try:
            return read(value)
        except ValueError as e:
            self._faults.add(place, str(e))
            return None
