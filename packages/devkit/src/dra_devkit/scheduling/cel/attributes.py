"""Evaluates attributes: a variable or another value, followed by qualifiers (fields and indexes)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from .frame import Frame
from .values import NONE, CelError, DefaultMap, Optional, Record, find, show_scalar

Run = Callable[[Frame], Any]


class Missing(CelError):
    """A key or index does not exist. A presence test converts this error to false."""


class Qualifier(Protocol):
    """A step from a value to a value inside it, which costs one unit. Errors are returned as values."""

    optional: bool

    def qualify(self, frame: Frame, value: Any) -> Any: ...
    def qualify_if_present(self, frame: Frame, value: Any) -> Optional | CelError: ...


class Attribute:
    """A root and its qualifiers."""

    def __init__(self, root: Run) -> None:
        self._root = root
        self._qualifiers: list[Qualifier] = []

    def add(self, qualifier: Qualifier) -> None:
        self._qualifiers.append(qualifier)

    def resolve(self, frame: Frame) -> Any:
        """Returns the value or a :class:`CelError`. Charges the qualifiers, but not the attribute itself."""
        value = self._root(frame)
        if not self._qualifiers or isinstance(value, CelError):
            return value
        wrapped = isinstance(value, Optional)
        if wrapped:
            if not value.present:
                return NONE
            value = value.value
        for q in self._qualifiers:
            wrapped = wrapped or q.optional
            if wrapped:
                found = q.qualify_if_present(frame, value)
                if isinstance(found, CelError):
                    return found
                if not found.present:
                    return NONE
                value = found.value
            else:
                value = q.qualify(frame, value)
                if isinstance(value, CelError):
                    return value
        return Optional(True, value) if wrapped else value


class Conditional(Attribute):
    """One of two attributes, chosen by a condition; qualifiers apply to both."""

    def __init__(self, test: Run, yes: Attribute, no: Attribute) -> None:
        super().__init__(test)
        self._yes = yes
        self._no = no

    def add(self, qualifier: Qualifier) -> None:
        self._yes.add(qualifier)
        self._no.add(qualifier)

    def resolve(self, frame: Frame) -> Any:
        chosen = self._root(frame)
        if chosen is True:
            return self._yes.resolve(frame)
        if chosen is False:
            return self._no.resolve(frame)
        return chosen if isinstance(chosen, CelError) else CelError("no such overload")


class ConstantKey:
    """A field or a constant index. With ``presence`` it only tests whether the key exists."""

    def __init__(self, key: Any, *, optional: bool = False, presence: bool = False) -> None:
        self.optional = optional
        self._key = key
        self._presence = presence

    def qualify(self, frame: Frame, value: Any) -> Any:
        frame.spend(1)
        found = _find(value, self._key)
        if not self._presence or (isinstance(found, CelError) and not isinstance(found, Missing)):
            return found
        return not isinstance(found, Missing)

    def qualify_if_present(self, frame: Frame, value: Any) -> Optional | CelError:
        return _if_present(frame, _find(value, self._key))


class AttributeKey:
    """An index whose value comes from an attribute."""

    def __init__(self, attribute: Attribute, *, optional: bool) -> None:
        self.optional = optional
        self._attribute = attribute

    def _find(self, frame: Frame, value: Any) -> Any:
        key = self._attribute.resolve(frame)
        if isinstance(key, CelError):
            return key
        if not isinstance(key, (str, int, float)):
            return CelError(f"invalid qualifier type: {type(key).__name__}")
        return _find(value, key)

    def qualify(self, frame: Frame, value: Any) -> Any:
        found = self._find(frame, value)
        frame.spend(1)
        return found

    def qualify_if_present(self, frame: Frame, value: Any) -> Optional | CelError:
        return _if_present(frame, self._find(frame, value))


def _if_present(frame: Frame, found: Any) -> Optional | CelError:
    if isinstance(found, CelError):
        return NONE if isinstance(found, Missing) else found
    frame.spend(1)
    return Optional(True, found)


def _find(value: Any, key: Any) -> Any:
    """Returns the value of ``key`` in ``value``, or a :class:`CelError`."""
    if isinstance(value, Record):
        value = value.fields
    if isinstance(value, dict):
        found = find(value, key)
        if found.present:
            return found.value
        return {} if isinstance(value, DefaultMap) else _no_key(key)
    if isinstance(value, list):
        if isinstance(key, (str, bool)) or not isinstance(key, (int, float)):
            return CelError(f"unsupported index type '{type(key).__name__}' in list")
        if not math.isfinite(key) or key != int(key):
            return CelError(f"unsupported index value {key} in list")
        index = int(key)
        return value[index] if 0 <= index < len(value) else Missing(f"index out of bounds: {index}")
    return _no_key(key)


def _no_key(key: Any) -> Missing:
    return Missing(f"no such key: {show_scalar(key) if isinstance(key, (str, int, float)) else key}")
