"""JSON of an API server, however deep users nested what is in it.

The API server takes parameters of a claim up to 5,000 levels deep (10 KiB of brackets). The decoder's limit is that of the
interpreter: 997 levels in Python 3.11, 1,497 in 3.12, 9,998 in 3.13. Without this module one such claim would hide a whole list.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
TOO_DEEP = "<nested too deeply>"
_DEEPEST = 200  # levels that are kept of what the decoder refuses
_MARK = f'"{TOO_DEEP}"'.encode()
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{\]}]', re.DOTALL)


@overload
def decode(data: bytes | msgspec.Raw) -> Any: ...


@overload
def decode(data: bytes | msgspec.Raw, kind: type[T]) -> T: ...


def decode(data: bytes | msgspec.Raw, kind: Any = Any) -> Any:
    """The value as ``kind``. Where it is nested too deeply for the decoder, :data:`TOO_DEEP` stands for what is below 200 levels.

    Raises ``ValueError`` for what is no JSON, or not of this type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        return msgspec.json.decode(flattened(bytes(data)), type=kind)


def flattened(data: bytes, deepest: int = _DEEPEST) -> bytes:
    """JSON without what is nested deeper; linear in its length. What is no JSON stays none."""
    out: list[bytes] = []
    depth = start = 0
    for token in _TOKEN.finditer(data):
        match data[token.start()]:
            case 0x5B | 0x7B:  # [ {
                depth += 1
                if depth == deepest + 1:
                    out += [data[start : token.start()], _MARK]
            case 0x5D | 0x7D:  # ] }
                if depth == deepest + 1:
                    start = token.end()
                depth -= 1
    if depth <= deepest:
        out.append(data[start:])
    return b"".join(out)
