"""The standard functions of CEL: arithmetic, comparison, conversions and times."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from .registry import FUNCTIONS, define, need, no_overload
from .values import (
    INT_MAX,
    INT_MIN,
    UINT_MAX,
    CelError,
    Duration,
    Timestamp,
    UInt,
    equal,
    find,
    is_number,
    less,
    same,
    show_scalar,
    type_of,
)


def _fit(value: int, like: Any) -> int:
    if isinstance(like, UInt):
        if not 0 <= value <= UINT_MAX:
            raise CelError("unsigned integer overflow")
        return UInt(value)
    if not INT_MIN <= value <= INT_MAX:
        raise CelError("integer overflow")
    return value


def _same_number(a: Any, b: Any) -> bool:
    return is_number(a) and is_number(b) and type(a) is type(b)


@define("_+_")
def add(a: Any, b: Any) -> Any:
    if _same_number(a, b):
        return a + b if isinstance(a, float) else _fit(a + b, a)
    for kind in (str, bytes, list):
        if isinstance(a, kind) and isinstance(b, kind):
            return a + b  # type: ignore[operator]
    if isinstance(a, Duration) and isinstance(b, Duration):
        return Duration(_fit(a.nanoseconds + b.nanoseconds, 0))
    if isinstance(a, Timestamp) and isinstance(b, Duration):
        return Timestamp(a.nanoseconds + b.nanoseconds, a.offset)
    if isinstance(a, Duration) and isinstance(b, Timestamp):
        return add(b, a)
    raise no_overload()


@define("_-_")
def subtract(a: Any, b: Any) -> Any:
    if _same_number(a, b):
        return a - b if isinstance(a, float) else _fit(a - b, a)
    if isinstance(a, Duration) and isinstance(b, Duration):
        return Duration(_fit(a.nanoseconds - b.nanoseconds, 0))
    if isinstance(a, Timestamp) and isinstance(b, Duration):
        return Timestamp(a.nanoseconds - b.nanoseconds, a.offset)
    if isinstance(a, Timestamp) and isinstance(b, Timestamp):
        return Duration(_fit(a.nanoseconds - b.nanoseconds, 0))
    raise no_overload()


@define("_*_")
def multiply(a: Any, b: Any) -> Any:
    if not _same_number(a, b):
        raise no_overload()
    return a * b if isinstance(a, float) else _fit(a * b, a)


@define("_/_")
def divide(a: Any, b: Any) -> Any:
    if not _same_number(a, b):
        raise no_overload()
    if isinstance(a, float):
        if b == 0:
            return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
        return a / b
    if b == 0:
        raise CelError("division by zero")
    return _fit(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1), a)


@define("_%_")
def modulo(a: Any, b: Any) -> Any:
    if not _same_number(a, b) or isinstance(a, float):
        raise no_overload()
    if b == 0:
        raise CelError("modulus by zero")
    return _fit(int(math.copysign(1, a)) * (abs(a) % abs(b)), a)


@define("-_")
def negate(a: Any) -> Any:
    if isinstance(a, UInt) or not is_number(a):
        raise no_overload()
    return -a if isinstance(a, float) else _fit(-a, a)


FUNCTIONS["!_"] = lambda a: not need(a, bool)
FUNCTIONS["_==_"] = equal
FUNCTIONS["_!=_"] = lambda a, b: not same(a, b)
FUNCTIONS["_<_"] = less
FUNCTIONS["_>_"] = lambda a, b: less(b, a)
FUNCTIONS["_<=_"] = lambda a, b: not less(b, a)
FUNCTIONS["_>=_"] = lambda a, b: not less(a, b)


@define("@in")
def contains_element(a: Any, b: Any) -> bool:
    if isinstance(b, dict):
        return find(b, a).present
    return any(same(a, x) for x in need(b, list))


@define("size")
def size(a: Any) -> int:
    return len(need(a, str, bytes, list, dict))


# --- conversions --------------------------------------------------------------------------------


def _conversion(value: Any, wanted: str) -> CelError:
    return CelError(f"type conversion error from '{type_of(value)}' to '{wanted}'")


def _whole(digits: str) -> int:
    """Parses an integer. A number with more digits than any 64-bit integer becomes 2^64 with the number's sign."""
    sign, bare = digits[:1], digits.lstrip("+-").lstrip("0")
    number = int(bare or "0") if len(bare) <= _INT_DIGITS else UINT_MAX + 1
    return -number if sign == "-" else number


_INT_DIGITS = 20


@define("int")
def to_int(a: Any) -> int:
    if isinstance(a, str):
        if not re.fullmatch(r"[+-]?\d+", a, re.ASCII):
            raise _conversion(a, "int")
        value = _whole(a)
    elif isinstance(a, float):
        if not INT_MIN < a < INT_MAX:
            raise CelError("integer overflow")
        value = int(a)
    elif isinstance(a, Timestamp):
        value = a.nanoseconds // _UNITS["s"]
    elif isinstance(a, Duration):
        value = a.nanoseconds
    else:
        value = int(need(a, int))
    return _fit(value, 0)


@define("uint")
def to_uint(a: Any) -> UInt:
    if isinstance(a, str):
        if not re.fullmatch(r"\d+", a, re.ASCII):
            raise _conversion(a, "uint")
        return UInt(_fit(_whole(a), UInt(0)))
    if isinstance(a, float) and not 0 <= a < UINT_MAX:
        raise CelError("unsigned integer overflow")
    return UInt(_fit(int(need(a, int, float)), UInt(0)))


_FLOAT = re.compile(
    r"[+-]?(?:(?:\d++(?:\.\d*+)?|\.\d++)(?:e[+-]?\d+)?|0x(?:[\da-f]++(?:\.[\da-f]*+)?|\.[\da-f]++)p[+-]?\d+|inf(?:inity)?|nan)",
    re.IGNORECASE | re.ASCII,
)


@define("double")
def to_double(a: Any) -> float:
    if isinstance(a, str):
        if not _FLOAT.fullmatch(a):
            raise _conversion(a, "double")
        value = float.fromhex(a) if "x" in a.lower() else float(a)
        if math.isinf(value) and "i" not in a.lower():
            raise _conversion(a, "double")
        return value
    return float(need(a, int, float))


@define("bool")
def to_bool(a: Any) -> bool:
    if isinstance(a, str):
        if a in {"1", "t", "T", "true", "TRUE", "True"}:
            return True
        if a in {"0", "f", "F", "false", "FALSE", "False"}:
            return False
        raise _conversion(a, "bool")
    return bool(need(a, bool))


FUNCTIONS["string"] = show_scalar


@define("bytes")
def to_bytes(a: Any) -> bytes:
    return a.encode() if isinstance(a, str) else bytes(need(a, bytes))


_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def parse_duration(text: str) -> Duration:
    """Parses a duration such as 1h30m or -1.5s.

    Raises ``ValueError`` for anything else.
    """
    body = text[1:] if text[:1] in {"+", "-"} else text
    if body == "0":
        return Duration(0)
    total = at = 0
    while at < len(body):
        found = _DURATION_PART.match(body, at)
        if not found or len(found[1].partition(".")[0].lstrip("0")) > _INT_DIGITS:
            raise ValueError(text)
        total += int(Decimal(found[1]) * _UNITS[found[2]])
        at = found.end()
    if not body or total > INT_MAX:
        raise ValueError(text)
    return Duration(-total if text[0] == "-" else total)


# Possessive quantifiers: a long text without a unit takes one pass, not one pass per digit.
_DURATION_PART = re.compile(r"(\d++(?:\.\d*+)?|\.\d++)(ns|us|[µμ]s|ms|s|m|h)", re.ASCII)


def parse_timestamp(text: str) -> Timestamp:
    """Parses a time such as 2026-01-02T03:04:05.6+01:00.

    Raises ``ValueError`` for anything else.
    """
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError(text)
    seconds = (datetime.fromisoformat(match[1]).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        seconds=1
    )
    offset = 0
    if match[3] != "Z":
        hours, minutes = int(match[3][1:3]), int(match[3][4:6])
        if hours > 24 or minutes > 59:
            raise ValueError(text)
        offset = (hours * 3600 + minutes * 60) * (-1 if match[3][0] == "-" else 1)
    fraction = int((match[2] or "")[1:10].ljust(9, "0"))
    try:
        return Timestamp((seconds - offset) * _UNITS["s"] + fraction, offset)
    except CelError as e:
        raise ValueError(str(e)) from None


_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)([.,]\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


@define("duration")
def to_duration(a: Any) -> Duration:
    if isinstance(a, Duration):
        return a
    if not isinstance(a, str):
        raise _conversion(a, "google.protobuf.Duration")
    try:
        found = parse_duration(a)
    except ValueError:
        raise _conversion(a, "google.protobuf.Duration") from None
    return found


@define("timestamp")
def to_timestamp(a: Any) -> Timestamp:
    if isinstance(a, Timestamp):
        return a
    if isinstance(a, str):
        try:
            return parse_timestamp(a)
        except ValueError:
            raise _conversion(a, "google.protobuf.Timestamp") from None
    return Timestamp(need(a, int) * _UNITS["s"])


FUNCTIONS["type"] = type_of
FUNCTIONS["dyn"] = lambda a: a

_PARTS: dict[str, Callable[[datetime], int]] = {
    "getFullYear": lambda t: t.year,
    "getMonth": lambda t: t.month - 1,
    "getDate": lambda t: t.day,
    "getDayOfMonth": lambda t: t.day - 1,
    "getDayOfWeek": lambda t: t.isoweekday() % 7,
    "getDayOfYear": lambda t: t.timetuple().tm_yday - 1,
    "getHours": lambda t: t.hour,
    "getMinutes": lambda t: t.minute,
    "getSeconds": lambda t: t.second,
    "getMilliseconds": lambda t: t.microsecond // 1000,
}
_DURATION_PARTS = {"getHours": _UNITS["h"], "getMinutes": _UNITS["m"], "getSeconds": _UNITS["s"]}


def _zone(name: str) -> tzinfo:
    """Returns the time zone with a name of the time zone database, or with an offset such as -02:30."""
    if name in {"", "UTC"}:
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        pass
    hours, colon, minutes = name.partition(":")
    if not colon or not re.fullmatch(r"[+-]?\d+", hours, re.ASCII) or not re.fullmatch(r"[+-]?\d+", minutes, re.ASCII):
        raise CelError(f"unknown time zone {name}")
    east = int(hours) * 60 + (-int(minutes) if name[0] == "-" else int(minutes))
    return timezone(timedelta(minutes=east))


def _part(name: str) -> Callable[..., int]:
    def get(a: Any, zone: Any = "UTC") -> int:
        if isinstance(a, Duration):
            if name == "getMilliseconds":
                return _truncated(a.nanoseconds, _UNITS["ms"])
            return _truncated(a.nanoseconds, _DURATION_PARTS[name])
        return _PARTS[name](need(a, Timestamp).at(_zone(need(zone, str))))

    return get


def _truncated(value: int, unit: int) -> int:
    return abs(value) // unit * (1 if value >= 0 else -1)


for _name in _PARTS:
    FUNCTIONS[_name] = _part(_name)
