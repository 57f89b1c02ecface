"""Text: the language's own functions, and cel-go's and Kubernetes' string libraries."""

from __future__ import annotations

import functools
import re
from typing import Any

from .library_core import to_string
from .registry import FUNCTIONS, define, need
from .values import (
    CelError,
    Type,
    equal,
)


@functools.lru_cache(maxsize=256)
def regex(pattern: str) -> re.Pattern[str]:
    """A compiled RE2 pattern.

    Raises ``ValueError`` for what RE2 refuses: look-around, back references, broken syntax.
    """
    if re.search(r"\(\?(?:[=!]|<[=!]|P=|\()", pattern) or re.search(r"(?<!\\)(?:\\\\)*\\[1-9]", pattern):
        raise ValueError(pattern)
    try:
        return re.compile(pattern)
    except re.error as e:
        raise ValueError(str(e)) from None


def _regex(pattern: Any) -> re.Pattern[str]:
    try:
        return regex(need(pattern, str))
    except ValueError as e:
        raise CelError(f"error parsing regexp: {e}") from None


FUNCTIONS["startsWith"] = lambda a, b: need(a, str).startswith(need(b, str))
FUNCTIONS["endsWith"] = lambda a, b: need(a, str).endswith(need(b, str))
FUNCTIONS["contains"] = lambda a, b: need(b, str) in need(a, str)
FUNCTIONS["matches"] = lambda a, b: bool(_regex(b).search(need(a, str)))
FUNCTIONS["lowerAscii"] = lambda a: "".join(c.lower() if c.isascii() else c for c in need(a, str))
FUNCTIONS["upperAscii"] = lambda a: "".join(c.upper() if c.isascii() else c for c in need(a, str))
FUNCTIONS["trim"] = lambda a: need(a, str).strip()
FUNCTIONS["find"] = lambda a, b: m[0] if (m := _regex(b).search(need(a, str))) else ""


@define("findAll")
def find_all(a: Any, pattern: Any, limit: Any = -1) -> list[str]:
    found = [m[0] for m in _regex(pattern).finditer(need(a, str))]
    return found if limit < 0 else found[:limit]


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
        return next((i for i, x in enumerate(a) if equal(x, b)), -1)
    text = need(a, str)
    if not 0 <= start <= len(text):
        raise CelError(f"index out of range: {start}")
    return int(text.find(need(b, str), start))


@define("lastIndexOf")
def last_index_of(a: Any, b: Any, end: Any = None) -> int:
    if isinstance(a, list):
        return next((i for i in range(len(a) - 1, -1, -1) if equal(a[i], b)), -1)
    text, part = need(a, str), need(b, str)
    if end is None:
        return int(text.rfind(part))
    if not 0 <= end <= len(text):
        raise CelError(f"index out of range: {end}")
    return int(text.rfind(part, 0, end + len(part)))


@define("replace")
def replace(a: Any, old: Any, new: Any, limit: Any = -1) -> str:
    return str(need(a, str).replace(need(old, str), need(new, str), need(limit, int)))


@define("split")
def split(a: Any, separator: Any, limit: Any = -1) -> list[str]:
    text, separator = need(a, str), need(separator, str)
    if limit == 0:
        return []
    if not separator:
        return list(text) if limit < 0 else [*text[: limit - 1], text[limit - 1 :]]
    return text.split(separator) if limit < 0 else text.split(separator, limit - 1)  # type: ignore[no-any-return]


@define("join")
def join(a: Any, separator: Any = "") -> str:
    return str(need(separator, str)).join(need(x, str) for x in need(a, list))


@define("strings.quote")
def quote(a: Any) -> str:
    table = {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
    return '"' + "".join(table.get(c, c) for c in need(a, str)) + '"'


@define("format")
def format_string(a: Any, args: Any) -> str:
    values, used, out, text, i = need(args, list), 0, [], need(a, str), 0
    for m in re.finditer(r"%(%|(?:\.(\d+))?([sdfeboxX]))|%", text):
        out.append(text[i : m.start()])
        i = m.end()
        if m[1] is None:
            raise CelError("could not parse formatting clause: unrecognized formatting clause")
        if m[1] == "%":
            out.append("%")
            continue
        if used >= len(values):
            raise CelError(f"index {used} out of range")
        out.append(_clause(values[used], m[3], int(m[2]) if m[2] else None))
        used += 1
    return "".join([*out, text[i:]])


def _clause(v: Any, clause: str, precision: int | None) -> str:
    digits = 6 if precision is None else precision
    match clause:
        case "s":
            return show(v)
        case "d":
            return str(int(need(v, int)))
        case "f":
            return f"{float(need(v, int, float)):.{digits}f}"
        case "e":
            return f"{float(need(v, int, float)):.{digits}e}"
        case "b":
            return f"{int(v):b}" if isinstance(v, bool) else f"{need(v, int):b}"
        case "o":
            return f"{need(v, int):o}"
    if isinstance(v, (str, bytes)):
        text = (v.encode() if isinstance(v, str) else v).hex()
    else:
        text = f"{need(v, int):x}"
    return text.upper() if clause == "X" else text


def show(v: Any) -> str:
    if isinstance(v, list):
        return "[" + ", ".join(show(x) for x in v) + "]"
    if isinstance(v, dict):
        return "{" + ", ".join(f"{show(k)}: {show(x)}" for k, x in sorted(v.items(), key=lambda e: str(e[0]))) + "}"
    if isinstance(v, Type):
        return str(v)
    return "null" if v is None else to_string(v)
