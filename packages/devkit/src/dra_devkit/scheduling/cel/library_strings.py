"""Functions on strings: CEL's standard functions, and the string libraries of cel-go and Kubernetes."""

from __future__ import annotations

from typing import Any

from .formatting import render
from .patterns import Pattern, regex
from .registry import FUNCTIONS, define, need
from .values import CelError, same

GO_ESCAPES = {c: f"\\{e}" for c, e in zip('\a\b\f\n\r\t\v\\"', 'abfnrtv\\"', strict=True)}
"""The characters that a quoted string of Go escapes."""
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def _regex(pattern: Any) -> Pattern:
    try:
        return regex(need(pattern, str))
    except ValueError as e:
        raise CelError(f"error parsing regexp: {e}") from None


FUNCTIONS["startsWith"] = lambda a, b: need(a, str).startswith(need(b, str))
FUNCTIONS["endsWith"] = lambda a, b: need(a, str).endswith(need(b, str))
FUNCTIONS["contains"] = lambda a, b: need(b, str) in need(a, str)
FUNCTIONS["matches"] = lambda a, b: _regex(b).matches(need(a, str))
FUNCTIONS["lowerAscii"] = lambda a: "".join(c.lower() if c.isascii() else c for c in need(a, str))
FUNCTIONS["upperAscii"] = lambda a: "".join(c.upper() if c.isascii() else c for c in need(a, str))
FUNCTIONS["trim"] = lambda a: need(a, str).strip(_SPACE)
FUNCTIONS["find"] = lambda a, b: _regex(b).find(need(a, str))


@define("findAll")
def find_all(a: Any, pattern: Any, limit: Any = -1) -> list[str]:
    return _regex(pattern).find_all(need(a, str), need(limit, int))


@define("charAt")
def char_at(a: Any, i: Any) -> str:
    text, i = need(a, str), need(i, int)
    if not 0 <= i <= len(text):
        raise CelError(f"index out of range: {i}")
    return str(text[i : i + 1])


@define("substring")
def substring(a: Any, start: Any, end: Any = None) -> str:
    text, start = need(a, str), need(start, int)
    stop = len(text) if end is None else need(end, int)
    if not 0 <= start <= len(text):
        raise CelError(f"index out of range: {start}")
    if not 0 <= stop <= len(text):
        raise CelError(f"index out of range: {stop}")
    if start > stop:
        raise CelError(f"invalid substring range. start: {start}, end: {stop}")
    return str(text[start:stop])


@define("indexOf")
def index_of(a: Any, b: Any, start: Any = 0) -> int:
    if isinstance(a, list):
        return next((i for i, x in enumerate(a) if same(x, b)), -1)
    text, part, start = need(a, str), need(b, str), need(start, int)
    if not part:
        return int(start)
    if start < 0:
        raise CelError(f"index out of range: {start}")
    return int(text.find(part, start))


@define("lastIndexOf")
def last_index_of(a: Any, b: Any, end: Any = None) -> int:
    if isinstance(a, list):
        return next((i for i in range(len(a) - 1, -1, -1) if same(a[i], b)), -1)
    text, part = need(a, str), need(b, str)
    if end is None:
        return int(text.rfind(part))
    if not part:
        return int(need(end, int))
    if need(end, int) < 0:
        raise CelError(f"index out of range: {end}")
    return -1 if end >= len(text) else int(text.rfind(part, 0, end + len(part)))


@define("replace")
def replace(a: Any, old: Any, new: Any, limit: Any = -1) -> str:
    return str(need(a, str).replace(need(old, str), need(new, str), need(limit, int)))


@define("split")
def split(a: Any, separator: Any, limit: Any = -1) -> list[str]:
    text, separator = need(a, str), need(separator, str)
    if limit == 0:
        return []
    if not separator:
        return list(text) if limit < 0 or limit >= len(text) else [*text[: limit - 1], text[limit - 1 :]]
    return text.split(separator) if limit < 0 else text.split(separator, limit - 1)  # type: ignore[no-any-return]


@define("join")
def join(a: Any, separator: Any = "") -> str:
    return str(need(separator, str)).join(need(x, str) for x in need(a, list))


@define("strings.quote")
def quote(a: Any) -> str:
    return '"' + "".join(GO_ESCAPES.get(c, c) for c in need(a, str)) + '"'


FUNCTIONS["format"] = lambda a, args: render(need(a, str), need(args, list))
