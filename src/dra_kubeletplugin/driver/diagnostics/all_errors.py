"""Finds all faults of parameters, although msgspec reports only the first.

:func:`all_faults` deletes the reported part from a copy and validates the rest again, so msgspec stays the only validator. A fault that
only exists because a part was deleted is not reported, and the part with that fault is deleted too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from ...errors import DraError
from ..config.model import Steps

JSON = Mapping[str, Any]
Validate = Callable[[JSON], object]
_MESSAGE = re.compile(r"(?P<text>.*) - at (?P<key>`key` in )?`\$(?P<path>.*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*?)(?P<whole>`?)", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


class Fault(NamedTuple):
    """msgspec's message for the value at ``at``: keys and positions from the top.

    If a field is unknown or missing, ``at`` is the object.
    """

    at: Steps
    text: str
    unknown: str = ""
    missing: str = ""
    key: bool = False  # the message is about the last key itself, not about its value


def all_faults(given: JSON, validate: Validate, most: int) -> list[Fault]:
    """Returns the faults that ``validate`` reports with ``msgspec.ValidationError``, in the order of the document.

    Each fault costs one more validation, and about ten in a long mapping.

    Args:
        given: the document.
        validate: validates a document.
        most: the maximum number of faults.

    Raises:
        Exception: anything else that ``validate`` raises for the unchanged document.
    """
    copy = _Copy(given, validate)
    found: list[Fault] = []
    while len(found) < most:
        try:
            validate(copy.top)
            break
        except msgspec.ValidationError as e:
            message = str(e)
        except DraError:  # author's code, which may fail on a document with deleted parts
            if found:
                break
            raise
        fault = copy.located(message)
        if fault is None:
            found.append(Fault((), message))
            break
        whole, is_real = copy.is_real(fault)
        if is_real:
            found.append(whole)
        part = (*fault.at, fault.unknown) if fault.unknown else fault.at
        if not part:
            break
        copy.take_out(part)
    return sorted(found, key=lambda f: _position(given, f))


def _position(given: Any, fault: Fault) -> list[int]:
    """Returns the place of a fault in the document, for sorting. A missing field comes last in its object."""
    out = []
    for step in (*fault.at, *([fault.unknown] if fault.unknown else ())):
        out.append(step if isinstance(step, int) else list(given).index(step))
        given = given[step]
    return [*out, len(given)] if fault.missing else out


class _Unacceptable:
    """A value that no type accepts."""


class _Copy:
    """A copy of a document from which parts are deleted."""

    def __init__(self, given: JSON, validate: Validate) -> None:
        self._validate = validate
        self._before: dict[int, list[int]] = {}  # original positions of a list's items, by the list's identity
        self._taken: set[Steps] = set()
        self.top = self._copied(given)

    def _copied(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: self._copied(v) for k, v in value.items()}
        if isinstance(value, list):
            copy = [self._copied(v) for v in value]
            self._before[id(copy)] = list(range(len(copy)))
            return copy
        return value

    def is_real(self, fault: Fault) -> tuple[Fault, bool]:
        """Returns the fault with its place in the original document, and whether the original has this fault."""
        at = self._as_given(fault.at)
        original = fault._replace(at=at)
        if fault.unknown:
            return original, True
        if fault.missing:
            return original, (*at, fault.missing) not in self._taken
        return original, not any(t[: len(at)] == at for t in self._taken)

    def take_out(self, part: Steps) -> None:
        self._taken.add(self._as_given(part))
        *above, last = part
        node = self._at(above)
        if isinstance(node, list):
            del self._before[id(node)][int(last)]
        del node[last]

    def _at(self, steps: Any) -> Any:
        node = self.top
        for step in steps:
            node = node[step]
        return node

    def _as_given(self, steps: Steps) -> Steps:
        node, out = self.top, []
        for step in steps:
            out.append(self._before[id(node)][step] if isinstance(step, int) else step)
            node = node[step]
        return tuple(out)

    def located(self, message: str) -> Fault | None:
        """Parses msgspec's message; None if its place does not exist."""
        if found := _MESSAGE.fullmatch(message):
            steps = self._steps(found["path"], message, bool(found["key"]))
            if steps is not None and (fault := self._fault_at(steps, found["text"], bool(found["key"]))):
                return fault
        return self._fault_at((), message)

    def _fault_at(self, at: Steps, text: str, key: bool = False) -> Fault | None:
        unknown, missing = _UNKNOWN.fullmatch(text), _MISSING.fullmatch(text)
        if unknown:  # a field's name may contain the text that ends such a message
            node, name = self._at(at), unknown["name"]
            there = unknown["whole"] and isinstance(node, dict) and name in node
            return Fault(at, text, unknown=name) if there else None
        return Fault(at, text, missing=missing[1] if missing else "", key=key)

    def _steps(self, path: str, message: str, key: bool) -> Steps | None:
        """Returns the steps of msgspec's path; None if it leads nowhere."""
        node: Any = self.top
        out: list[str | int] = []
        rest = path + "[...]" if key else path
        while rest:
            step: str | int | None = None
            if isinstance(node, dict) and rest.startswith("."):
                named = (k for k in node if rest.startswith(f".{k}") and rest[len(k) + 1 :][:1] in {"", ".", "["})
                step = max(named, key=len, default=None)
                rest = rest[len(step or "") + 1 :]
            elif isinstance(node, dict) and rest.startswith('["'):
                step, end = json.JSONDecoder().raw_decode(rest, 1)
                rest = rest[end + 1 :]
            elif isinstance(node, dict) and rest.startswith("[...]"):
                rest = rest[5:]
                step = self._entry(node, message, key and not rest)
            elif isinstance(node, list) and (number := re.match(r"\[([0-9]+)\]", rest)):
                step = int(number[1])
                rest = rest[number.end() :]
            if step is None or not (step in node if isinstance(node, dict) else int(step) < len(node)):
                return None
            out.append(step)
            node = node[step]
        return tuple(out)

    def _entry(self, node: dict[str, Any], message: str, key: bool) -> str | None:
        """Returns the key of the mapping's entry that msgspec's message is about. The message does not contain this key.

        msgspec validates entries in order. So a binary search replaces one entry by a value that no type accepts: the message changes
        if that entry comes before the faulty one.
        """
        keys = list(node)
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            value = node[keys[middle]]
            node[keys[middle]] = _Unacceptable()
            try:
                self._validate(self.top)
                same = False
            except (msgspec.ValidationError, DraError) as e:
                same = str(e) == message
            finally:
                node[keys[middle]] = value
            low, high = (low, middle) if same else (middle + 1, high)
        at = low if key else low - 1  # msgspec validates a key before its value
        return keys[at] if 0 <= at < len(keys) else None
