"""Checks the JSON that a driver stores with a claim, so that reading it back returns an equal value."""

from __future__ import annotations

import math
from enum import Enum

import msgspec

from ..base.json_types import JSONValue
from ..errors import kind_of, printable
from .diagnostics.author_errors import missing_await_hint

MAX_DATA_BYTES = 65_536
_DEPTH = 32
_INTEGERS = range(-(2**63), 2**64)


def plain_json(value: object, path: str = "data") -> JSONValue:
    """Returns a copy of ``value`` in JSON's types. Tuples become lists; members of a text or number Enum become their values.

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


def _plain(value: object, path: str, depth: int) -> JSONValue:
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(str(value), path)
    if isinstance(value, int):
        if value not in _INTEGERS:
            raise ValueError(f"{path} is an integer of more than 64 bits: write it as text")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} is {value}, which JSON does not have")
        return float(value)
    if not isinstance(value, (dict, list, tuple)):
        raise ValueError(f"{path} is of type {kind_of(value)}, which JSON does not have{missing_await_hint(value)}")
    if not depth:
        raise ValueError(f"{printable(path[:200])}... is nested deeper than {_DEPTH}")
    if isinstance(value, dict):
        return {_key(k, path): _plain(v, f"{path}.{printable(k)}", depth - 1) for k, v in value.items()}
    return [_plain(v, f"{path}[{i}]", depth - 1) for i, v in enumerate(value)]


def _key(key: object, path: str) -> str:
    if isinstance(key, Enum):
        key = key.value
    if not isinstance(key, str):
        raise ValueError(f"{path} has the key {printable(key)}, which is not text")
    return _text(str(key), f"{path}: the key {printable(key)}")


def _text(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path} is not valid Unicode: it has half of a surrogate pair") from None
    return text
