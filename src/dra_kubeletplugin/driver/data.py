"""Checks the JSON that a driver stores with a claim, so that reading it back returns an equal value."""

from __future__ import annotations

import math
from typing import Any, cast

import msgspec

from ..errors import is_a, printable
from .diagnostics.author_errors import forgotten

JSON = Any
MAX_DATA_BYTES = 65_536
_DEPTH = 32
# Without float, which needs a check for NaN. msgspec rejects lone surrogates and integers above 64 bits.
_LEAVES = frozenset({str, int, bool, type(None)})
_INTEGERS = range(-(2**63), 2**64)


def plain_json(value: object, path: str = "data") -> JSON:
    """Returns a copy of ``value`` in JSON's types. Tuples become lists; members of a text or number Enum become their values.

    Runs no code of the value's classes.

    Raises:
        ValueError: ``value`` contains something that JSON cannot represent; the message has its path. Examples are bytes, a set,
            another object, a key that is not text, NaN, an infinity, an integer above 64 bits, and invalid Unicode. Also if ``value``
            is nested deeper than 32 levels or larger than 64 KiB.
    """
    copy = _plain(value, path, _DEPTH)
    size = len(msgspec.json.encode(copy))
    if size > MAX_DATA_BYTES:
        raise ValueError(f"{path} is too large: {size:,} bytes as JSON, at most {MAX_DATA_BYTES:,} are kept")
    return copy


def is_plain_json(value: object, size: int) -> bool:
    """Whether :func:`plain_json` returns an equal copy of ``value``, whose JSON has ``size`` bytes.

    It takes a twentieth of the time of :func:`plain_json`, but does not report the cause of a fault.
    """
    if size > MAX_DATA_BYTES:
        return False
    level = [value]
    for _ in range(_DEPTH + 1):
        below: list[object] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                found = cast("dict[object, object]", item)
                if not all(type(key) is str for key in found):
                    return False
                below.extend(found.values())
            elif kind is list:
                below.extend(cast("list[object]", item))
            elif kind is float:
                if not math.isfinite(cast("float", item)):
                    return False
            elif kind not in _LEAVES:
                return False
        if not below:
            return True
        level = below
    return False


def _plain(value: object, path: str, depth: int) -> JSON:
    if value is None or is_a(value, bool):
        return value
    if is_a(value, str):
        return _text(str.__str__(value), path)
    if is_a(value, int):
        number = int.__index__(value)
        if number not in _INTEGERS:
            raise ValueError(f"{path} is an integer of more than 64 bits: write it as text")
        return number
    if is_a(value, float):
        real = float.__float__(value)
        if not math.isfinite(real):
            raise ValueError(f"{path} is {real}, which JSON does not have")
        return real
    if not is_a(value, (dict, list, tuple)):
        raise ValueError(
            f"{path} is of type {printable(type(value).__name__)}, which JSON does not have{forgotten(value)}"
        )
    if not depth:
        raise ValueError(f"{printable(path[:200])}... is nested deeper than {_DEPTH}")
    if is_a(value, dict):
        return {_key(k, path): _plain(v, f"{path}.{printable(k)}", depth - 1) for k, v in dict.items(value)}
    items = tuple.__iter__(value) if is_a(value, tuple) else list.__iter__(cast("list[object]", value))
    return [_plain(v, f"{path}[{i}]", depth - 1) for i, v in enumerate(items)]


def _key(key: object, path: str) -> str:
    if not is_a(key, str):
        raise ValueError(f"{path} has the key {printable(key)}, which is not text")
    return _text(str.__str__(key), f"{path}: the key {printable(key)}")


def _text(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path} is not valid Unicode: it has half of a surrogate pair") from None
    return text
