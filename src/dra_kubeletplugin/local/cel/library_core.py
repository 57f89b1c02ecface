"""Arithmetic, comparison, conversions, times: the language's standard definitions."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from .registry import FUNCTIONS, define, need, no_overload
from .values import (
    INT_MAX,
    INT_MIN,
    UINT_MAX,
    CelError,
    Duration,
    UInt,
    equal,
    is_number,
    less,
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
    if isinstance(a, datetime) and isinstance(b, Duration):
        return a + timedelta(microseconds=b.nanoseconds / 1000)
    if isinstance(a, Duration) and isinstance(b, datetime):
        return add(b, a)
    raise no_overload()


@define("_-_")
def subtract(a: Any, b: Any) -> Any:
    if _same_number(a, b):
        return a - b if isinstance(a, float) else _fit(a - b, a)
    if isinstance(a, Duration) and isinstance(b, Duration):
        return Duration(_fit(a.nanoseconds - b.nanoseconds, 0))
    if isinstance(a, datetime) and isinstance(b, Duration):
        return a - timedelta(microseconds=b.nanoseconds / 1000)
    if isinstance(a, datetime) and isinstance(b, datetime):
        return Duration(int((a - b).total_seconds() * 1_000_000_000))
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
FUNCTIONS["_!=_"] = lambda a, b: not equal(a, b)
FUNCTIONS["_<_"] = less
FUNCTIONS["_>_"] = lambda a, b: less(b, a)
FUNCTIONS["_<=_"] = lambda a, b: less(a, b) or (not _nan(a, b) and not less(b, a))
FUNCTIONS["_>=_"] = lambda a, b: less(b, a) or (not _nan(a, b) and not less(a, b))


def _nan(*values: Any) -> bool:
    return any(isinstance(v, float) and math.isnan(v) for v in values)


@define("@in")
def contains_element(a: Any, b: Any) -> bool:
    if isinstance(b, dict):
        return a in b if not isinstance(a, (list, dict)) else False
    return any(equal(a, x) for x in need(b, list))


@define("size")
def size(a: Any) -> int:
    return len(need(a, str, bytes, list, dict))


# --- conversions --------------------------------------------------------------------------------


def _conversion(value: Any, wanted: str) -> CelError:
    return CelError(f"type conversion error from '{type_of(value)}' to '{wanted}'")


@define("int")
def to_int(a: Any) -> int:
    if isinstance(a, str):
        if not re.fullmatch(r"[+-]?\d+", a, re.ASCII):
            raise _conversion(a, "int")
        value = int(a)
    elif isinstance(a, float):
        if math.isnan(a) or math.isinf(a):
            raise CelError("integer overflow")
        value = int(a)
    elif isinstance(a, datetime):
        value = int(a.timestamp())
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
        return UInt(_fit(int(a), UInt(0)))
    return UInt(_fit(int(need(a, int, float)), UInt(0)))


@define("double")
def to_double(a: Any) -> float:
    if isinstance(a, str):
        try:
            return float(a)
        except ValueError:
            raise _conversion(a, "double") from None
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


@define("string")
def to_string(a: Any) -> str:
    match a:
        case bool():
            return "true" if a else "false"
        case str():
            return a
        case int():
            return str(int(a))
        case float():
            return show_double(a)
        case bytes():
            try:
                return a.decode()
            except UnicodeDecodeError:
                raise CelError("invalid UTF-8 in bytes, cannot convert to string") from None
        case Duration():
            return f"{Decimal(a.nanoseconds) / 1_000_000_000:f}s"
        case datetime():
            return a.strftime("%Y-%m-%dT%H:%M:%SZ")
        case ipaddress.IPv4Address() | ipaddress.IPv6Address() | ipaddress.IPv4Interface() | ipaddress.IPv6Interface():
            return str(a)
    raise no_overload()


def show_double(v: float) -> str:
    if math.isnan(v):
        return "NaN"
    if math.isinf(v):
        return "+Inf" if v > 0 else "-Inf"
    return str(int(v)) if v == int(v) and abs(v) < 1e21 else repr(v)


@define("bytes")
def to_bytes(a: Any) -> bytes:
    return a.encode() if isinstance(a, str) else bytes(need(a, bytes))


_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def parse_duration(text: str) -> Duration:
    """A duration such as 1h30m or -1.5s.

    Raises ``ValueError`` for anything else.
    """
    body = text[1:] if text[:1] in {"+", "-"} else text
    if body == "0":
        return Duration(0)
    parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", body, re.ASCII)
    if not parts or "".join(a + b for a, b in parts) != body:
        raise ValueError(text)
    total = sum(int(Decimal(n) * _UNITS[u]) for n, u in parts)
    return Duration(-total if text[0] == "-" else total)


def parse_timestamp(text: str) -> datetime:
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", text):
        raise ValueError(text)
    return datetime.fromisoformat(text).astimezone(UTC)


@define("duration")
def to_duration(a: Any) -> Duration:
    if isinstance(a, Duration):
        return a
    try:
        return parse_duration(need(a, str))
    except ValueError:
        raise _conversion(a, "google.protobuf.Duration") from None


@define("timestamp")
def to_timestamp(a: Any) -> datetime:
    if isinstance(a, datetime):
        return a
    try:
        return datetime.fromtimestamp(a, UTC) if isinstance(a, int) else parse_timestamp(need(a, str))
    except ValueError:
        raise _conversion(a, "google.protobuf.Timestamp") from None


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
_DURATION_PARTS = {
    "getHours": _UNITS["h"],
    "getMinutes": _UNITS["m"],
    "getSeconds": _UNITS["s"],
    "getMilliseconds": _UNITS["ms"],
}


def _part(name: str) -> Callable[[Any], int]:
    def get(a: Any) -> int:
        if isinstance(a, Duration) and name in _DURATION_PARTS:
            whole = abs(a.nanoseconds) // _DURATION_PARTS[name]
            return whole if a.nanoseconds >= 0 else -whole
        return _PARTS[name](need(a, datetime))

    return get


for _name in _PARTS:
    FUNCTIONS[_name] = _part(_name)
