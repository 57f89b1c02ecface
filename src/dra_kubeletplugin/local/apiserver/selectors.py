"""Field and label selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

JSON = Mapping[str, Any]
Match = Callable[[JSON], bool]


class SelectorError(ValueError):
    """The selector cannot be read."""


def fields(text: str) -> Match:
    """``path=value``, ``==`` and ``!=``, all of which must hold."""
    terms = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", part)
        if not match:
            raise SelectorError(f"invalid field selector {part!r}: write it like metadata.name=x")
        terms.append((match[1].strip().split("."), match[2] == "!=", match[3]))

    def matches(obj: JSON) -> bool:
        return all((_look(obj, path) == value) != negated for path, negated, value in terms)

    return matches


def _look(obj: JSON, path: list[str]) -> str:
    value: Any = obj
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)


_TERM = re.compile(
    r"\s*(?:(!)\s*([^\s,=!()]+)|([^\s,=!()]+)\s+(in|notin)\s*\(([^)]*)\)|([^\s,=!()]+)\s*(==|=|!=)\s*([^\s,]*)|([^\s,=!()]+))\s*(?:,|$)"
)


def labels(text: str) -> Match:
    """Equality and set-based requirements, all of which must hold."""
    tests: list[Callable[[JSON], bool]] = []
    at = 0
    while at < len(text):
        m = _TERM.match(text, at)
        if not m:
            raise SelectorError(f"unable to parse label selector {text!r}")
        at = m.end()
        tests.append(_label_test(m))
    return lambda obj: all(t(obj["metadata"].get("labels") or {}) for t in tests)


def _label_test(m: re.Match[str]) -> Callable[[JSON], bool]:
    if m[1]:
        return lambda found, key=m[2]: key not in found  # type: ignore[misc]
    if m[4]:
        values = {v.strip() for v in m[5].split(",")}
        if m[4] == "in":
            return lambda found, key=m[3]: found.get(key) in values  # type: ignore[misc]
        return lambda found, key=m[3]: found.get(key) not in values  # type: ignore[misc]
    if m[7]:
        key, value, negated = m[6], m[8], m[7] == "!="
        return lambda found: (found.get(key) == value) != negated
    return lambda found, key=m[9]: key in found  # type: ignore[misc]
