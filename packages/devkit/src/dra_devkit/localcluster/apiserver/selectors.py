"""Parses and evaluates field and label selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation import names

from ...schemas.object_fields import value_at

Match = Callable[[ReadOnlyJSON], bool]


class SelectorError(ValueError):
    """The selector has a syntax error, or contains a field that selectors may not use."""


@dataclass(frozen=True)
class FieldTerm:
    path: tuple[str, ...]
    value: str
    negated: bool

    def matches(self, obj: ReadOnlyJSON) -> bool:
        return (field_value(obj, self.path) == self.value) != self.negated


_OPERATOR = re.compile(r"((?:[^=!\\]|\\.)++)(==|=|!=)\s*(.*)", re.DOTALL)
_INTEGER = re.compile(r"-?\d{1,19}")  # as in Go, which parses 64 bits
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def fields(text: str, allowed: Collection[str]) -> list[FieldTerm]:
    """Parses a field selector: terms with ``=``, ``==`` or ``!=``. An object must match all terms.

    Raises:
        SelectorError: The syntax is wrong, or a path is not in ``allowed``.
    """
    terms = []
    for part in re.split(r"(?<!\\),", text):
        if not part:
            continue
        match = _OPERATOR.fullmatch(part)
        if not match:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{part}'")
        path = match[1].strip()
        if path not in allowed:
            raise SelectorError(f"field label not supported: {path}")
        terms.append(FieldTerm(tuple(path.split(".")), _ESCAPED.sub(r"\1", match[3]), match[2] == "!="))
    return terms


def field_value(obj: ReadOnlyJSON | None, path: tuple[str, ...]) -> str:
    """Returns the value of a field as text, for a comparison with a selector; empty if the field does not exist."""
    value = value_at(obj, *path)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


_TERM = re.compile(
    r"\s*+(?:(!)\s*+([^\s,=!()<>]++)|([^\s,=!()<>]++)\s++(in|notin)\s*+\(([^)]*+)\)|([^\s,=!()<>]++)\s*+(==|=|!=|<|>)\s*+([^\s,=!()<>]*+)|([^\s,=!()<>]++))\s*+(?:(,)|$)"
)


def labels(text: str) -> Match:
    """Parses a label selector. An object must match all of its requirements. Raises :class:`SelectorError`."""
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    at = 0
    while at < len(text):
        m = _TERM.match(text, at)
        if not m or (m[10] and m.end() == len(text)):
            raise SelectorError(f"unable to parse requirement: found '{text[at:].strip()}', expected: identifier")
        at = m.end()
        tests.append(_label_test(m))
    if not tests:
        return lambda obj: True
    return lambda obj: all(t(obj["metadata"].get("labels") or {}) for t in tests)


def _label_test(m: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    key = m[2] or m[3] or m[6] or m[9]
    if faults := names.qualified(key):
        raise SelectorError(f'unable to parse requirement: <nil>: Invalid value: "{key}": {faults[0]}')
    if m[1]:
        return lambda found: key not in found
    if m[4]:
        values = {v.strip() for v in m[5].split(",")}
        for value in values:
            _check_value(key, value)
        if m[4] == "in":
            return lambda found: found.get(key) in values
        return lambda found: found.get(key) not in values
    if not m[7]:
        return lambda found: key in found
    value = m[8]
    if m[7] in "<>":
        return _bound(key, m[7], value)
    _check_value(key, value)
    negated = m[7] == "!="
    return lambda found: (found.get(key) == value) != negated


def _check_value(key: str, value: str) -> None:
    if faults := names.label_value(value):
        raise SelectorError(f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": {faults[0]}')


def _bound(key: str, operator: str, text: str) -> Callable[[Mapping[str, str]], bool]:
    if not _INTEGER.fullmatch(text):
        raise SelectorError(
            f"unable to parse requirement: for 'Gt', 'Lt' operators, the value must be an integer: {text!r}"
        )
    limit = int(text)

    def beyond(found: Mapping[str, str]) -> bool:
        value = found.get(key, "")
        if not _INTEGER.fullmatch(value):
            return False
        return int(value) > limit if operator == ">" else int(value) < limit

    return beyond
