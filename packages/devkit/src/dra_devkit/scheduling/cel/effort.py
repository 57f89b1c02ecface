"""Limits the time and memory of an evaluation where Kubernetes' cost does not count them.

Kubernetes charges one unit to join two lists, so thirty doublings of a list cost thirty units. It charges a tenth of a unit per
outer element to compare nested lists, and nothing for the text that ``replace`` writes. The effort of an evaluation is therefore
computed too: an upper bound of its CPU time, in nanoseconds. An expression that exceeds the effort limit fails as if it exceeded
the cost limit. The effort limit is 100 times the effort of real selectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from .declarations import PARTS_OF_TIMES
from .patterns import compilations, regex
from .values import Optional

# All times are nanoseconds of CPU time.
EFFORT_LIMIT = 1_000_000_000
_ELEMENT = 100  # to copy or to compare an element; a copy allocates 8 bytes
_CHARACTER = 100  # to write a character; it takes 4 bytes
_ZONE = 100_000  # to find a time zone in the files of the system
_STEP = 25  # one step of RE2's slowest engine
_COMPILED = 400  # to compile one instruction of a pattern
_REJECTED = 10_000_000  # to detect that a pattern is too large
_READ = 50  # to parse a character of a duration, a number or a name
_PRECISION = re.compile(r"%\.([0-9]+)")
_MAX_WEIGHT = 10**18  # upper limit of a weight: nested lists that share their elements can weigh 2^1000
# findAll searches the rest of the text after each match. No rule can predict this time, so it is measured.
TIMED = {"findAll"}
Rule = Callable[[Sequence[Any]], int]


def weight(value: Any) -> int:
    """Returns the number of values in ``value``, including itself: the steps of walking it as a tree."""
    if isinstance(value, (list, dict, Optional)):
        return _total(value, {}, lambda _: 1)
    return 1


def text_length(value: Any) -> int:
    """Returns the bytes of all texts in ``value``, including keys of maps. A part that occurs several times is counted each time."""
    return _total(value, {}, _bytes_of)


def _total(value: Any, known: dict[int, int], of_one: Callable[[Any], int]) -> int:
    if isinstance(value, Optional):
        return of_one(value) + _total(value.value, known, of_one)
    if not isinstance(value, (list, dict)):
        return of_one(value)
    found = known.get(id(value))
    if found is None:
        parts = value.values() if isinstance(value, dict) else value
        found = known[id(value)] = min(_MAX_WEIGHT, of_one(value) + sum(_total(x, known, of_one) for x in parts))
    return found


def _bytes_of(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_bytes_of, value))
    if isinstance(value, str) and not value.isascii():
        return 4 * len(value)
    return len(value) if isinstance(value, (str, bytes)) else 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, dict)) else 1


def _joined_lists(args: Sequence[Any]) -> int:
    return (_length(args[0]) + _length(args[1])) * _ELEMENT if isinstance(args[0], list) else 0


def _inserted(args: Sequence[Any]) -> int:
    return sum(map(_length, args[:2])) * _ELEMENT


def _compared(args: Sequence[Any]) -> int:
    if isinstance(args[0], (list, dict, Optional)) and isinstance(args[1], (list, dict, Optional)):
        return min(weight(args[0]), weight(args[1])) * _ELEMENT
    return 0


def _walked(index: int) -> Rule:
    """Returns the rule of functions that visit each element of a list. For a map the effort is 0: it finds a key by its hash."""
    return lambda args: weight(args[index]) * _ELEMENT if isinstance(args[index], list) else 0


def _each_with_each(args: Sequence[Any]) -> int:
    first, last = args[0], args[-1]
    return (_length(last) * weight(first) + _length(first) * weight(last)) * _ELEMENT


def _summed(args: Sequence[Any]) -> int:
    values = args[0]
    if isinstance(values, list) and values and isinstance(values[0], (str, bytes, list)):
        return sum(map(_length, values)) * len(values) * _CHARACTER
    return weight(values) * _ELEMENT


def _replaced(args: Sequence[Any]) -> int:
    if not all(isinstance(a, str) for a in args[:3]):
        return 0
    text, old, new = map(str, args[:3])
    return (len(text) + text.count(old) * len(new)) * _CHARACTER


def _split(args: Sequence[Any]) -> int:
    if not all(isinstance(a, str) for a in args[:2]):
        return 0
    text, separator = map(str, args[:2])
    return (text.count(separator) + 1) * _ELEMENT + len(text) * _CHARACTER


def _joined_texts(args: Sequence[Any]) -> int:
    texts = args[0]
    if not isinstance(texts, list):
        return 0
    between = _length(args[1]) if len(args) > 1 else 0
    return (sum(map(_length, texts)) + len(texts) * between) * _CHARACTER


def _formatted(args: Sequence[Any]) -> int:
    if not isinstance(args[0], str):
        return 0
    precision = sum(int(digits) if len(digits) < 10 else _MAX_WEIGHT for digits in _PRECISION.findall(args[0]))
    written = precision + 2 * text_length(args[1])  # %x writes two characters for each byte
    return written * _CHARACTER + weight(args[1]) * _ELEMENT


def _matched(args: Sequence[Any]) -> int:
    """Calculates the effort of a match: at most one step per character and instruction, and compilation if it is not cached."""
    text, pattern = args[:2]
    if not isinstance(text, str) or not isinstance(pattern, str):
        return 0
    before = compilations()
    try:
        size = regex(pattern).size
    except ValueError:
        size = 0
    compiled = _COMPILED * size if size else _REJECTED
    return len(text) * size * _STEP + compiled * (compilations() - before)


def _read(index: int) -> Rule:
    return lambda args: len(args[index]) * _READ if isinstance(args[index], str) else 0


def _in_zone(args: Sequence[Any]) -> int:
    return _ZONE if len(args) > 1 else 0


_RULES: dict[str, Rule] = {
    "_+_": _joined_lists,
    "cel.@mapInsert": _inserted,
    "_==_": _compared,
    "_!=_": _compared,
    "@in": _walked(1),
    "indexOf": _walked(0),
    "lastIndexOf": _walked(0),
    "includes": _walked(0),
    "isSorted": _walked(0),
    "min": _walked(0),
    "max": _walked(0),
    "sum": _summed,
    "flatten": _walked(0),
    "distinct": _each_with_each,
    "sets.contains": _each_with_each,
    "sets.intersects": _each_with_each,
    "sets.equivalent": _each_with_each,
    "replace": _replaced,
    "split": _split,
    "join": _joined_texts,
    "format": _formatted,
    "matches": _matched,
    "find": _matched,
    "findAll": _matched,
    "validate": _read(1),
    **dict.fromkeys(("duration", "timestamp", "double", "int", "uint"), _read(0)),
    **dict.fromkeys(PARTS_OF_TIMES, _in_zone),
}


def rule_of(function: str, overload: str) -> Rule | None:
    """Returns the rule that calculates a call's effort from its arguments; None if the call's cost covers its effort.

    ``overload`` is empty if it is known only at run time.
    """
    return None if overload and function == "_+_" and "list" not in overload else _RULES.get(function)
