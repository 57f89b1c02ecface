"""What the functions compute. Wrong run-time types raise ``no such overload``."""

from __future__ import annotations

import functools
import ipaddress
import math
import re
import urllib.parse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from ...resources import names, quantity, version
from ...resources.quantity import Quantity
from ...resources.version import Version
from .values import (
    INT_MAX,
    INT_MIN,
    NONE,
    UINT_MAX,
    AttributeList,
    CelError,
    Duration,
    Optional,
    Type,
    UInt,
    equal,
    is_number,
    less,
    type_of,
)

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def _def(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            FUNCTIONS[name] = f
        return f

    return register


def no_overload() -> CelError:
    return CelError("no such overload")


def need(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise no_overload()
    return value


# --- arithmetic ---------------------------------------------------------------------------------


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


@_def("_+_")
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


@_def("_-_")
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


@_def("_*_")
def multiply(a: Any, b: Any) -> Any:
    if not _same_number(a, b):
        raise no_overload()
    return a * b if isinstance(a, float) else _fit(a * b, a)


@_def("_/_")
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


@_def("_%_")
def modulo(a: Any, b: Any) -> Any:
    if not _same_number(a, b) or isinstance(a, float):
        raise no_overload()
    if b == 0:
        raise CelError("modulus by zero")
    return _fit(int(math.copysign(1, a)) * (abs(a) % abs(b)), a)


@_def("-_")
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


@_def("@in")
def contains_element(a: Any, b: Any) -> bool:
    if isinstance(b, dict):
        return a in b if not isinstance(a, (list, dict)) else False
    return any(equal(a, x) for x in need(b, list))


@_def("size")
def size(a: Any) -> int:
    return len(need(a, str, bytes, list, dict))


# --- conversions --------------------------------------------------------------------------------


def _conversion(value: Any, wanted: str) -> CelError:
    return CelError(f"type conversion error from '{type_of(value)}' to '{wanted}'")


@_def("int")
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


@_def("uint")
def to_uint(a: Any) -> UInt:
    if isinstance(a, str):
        if not re.fullmatch(r"\d+", a, re.ASCII):
            raise _conversion(a, "uint")
        return UInt(_fit(int(a), UInt(0)))
    return UInt(_fit(int(need(a, int, float)), UInt(0)))


@_def("double")
def to_double(a: Any) -> float:
    if isinstance(a, str):
        try:
            return float(a)
        except ValueError:
            raise _conversion(a, "double") from None
    return float(need(a, int, float))


@_def("bool")
def to_bool(a: Any) -> bool:
    if isinstance(a, str):
        if a in {"1", "t", "T", "true", "TRUE", "True"}:
            return True
        if a in {"0", "f", "F", "false", "FALSE", "False"}:
            return False
        raise _conversion(a, "bool")
    return bool(need(a, bool))


@_def("string")
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


@_def("bytes")
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


@_def("duration")
def to_duration(a: Any) -> Duration:
    if isinstance(a, Duration):
        return a
    try:
        return parse_duration(need(a, str))
    except ValueError:
        raise _conversion(a, "google.protobuf.Duration") from None


@_def("timestamp")
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


# --- strings ------------------------------------------------------------------------------------


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


@_def("findAll")
def find_all(a: Any, pattern: Any, limit: Any = -1) -> list[str]:
    found = [m[0] for m in _regex(pattern).finditer(need(a, str))]
    return found if limit < 0 else found[:limit]


@_def("charAt")
def char_at(a: Any, i: Any) -> str:
    text, i = need(a, str), need(i, int)
    if not 0 <= i <= len(text):
        raise CelError(f"index out of range: {i}")
    return str(text[i : i + 1])


@_def("substring")
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


@_def("indexOf")
def index_of(a: Any, b: Any, start: Any = 0) -> int:
    if isinstance(a, list):
        return next((i for i, x in enumerate(a) if equal(x, b)), -1)
    text = need(a, str)
    if not 0 <= start <= len(text):
        raise CelError(f"index out of range: {start}")
    return int(text.find(need(b, str), start))


@_def("lastIndexOf")
def last_index_of(a: Any, b: Any, end: Any = None) -> int:
    if isinstance(a, list):
        return next((i for i in range(len(a) - 1, -1, -1) if equal(a[i], b)), -1)
    text, part = need(a, str), need(b, str)
    if end is None:
        return int(text.rfind(part))
    if not 0 <= end <= len(text):
        raise CelError(f"index out of range: {end}")
    return int(text.rfind(part, 0, end + len(part)))


@_def("replace")
def replace(a: Any, old: Any, new: Any, limit: Any = -1) -> str:
    return str(need(a, str).replace(need(old, str), need(new, str), need(limit, int)))


@_def("split")
def split(a: Any, separator: Any, limit: Any = -1) -> list[str]:
    text, separator = need(a, str), need(separator, str)
    if limit == 0:
        return []
    if not separator:
        return list(text) if limit < 0 else [*text[: limit - 1], text[limit - 1 :]]
    return text.split(separator) if limit < 0 else text.split(separator, limit - 1)  # type: ignore[no-any-return]


@_def("join")
def join(a: Any, separator: Any = "") -> str:
    return str(need(separator, str)).join(need(x, str) for x in need(a, list))


@_def("strings.quote")
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


@_def("format")
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
            return _show(v)
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


def _show(v: Any) -> str:
    if isinstance(v, list):
        return "[" + ", ".join(_show(x) for x in v) + "]"
    if isinstance(v, dict):
        return "{" + ", ".join(f"{_show(k)}: {_show(x)}" for k, x in sorted(v.items(), key=lambda e: str(e[0]))) + "}"
    if isinstance(v, Type):
        return str(v)
    return "null" if v is None else to_string(v)


# --- lists, sets, optionals ---------------------------------------------------------------------


@_def("isSorted")
def is_sorted(a: Any) -> bool:
    return all(not less(y, x) for x, y in zip(need(a, list), a[1:], strict=False))


@_def("sum")
def total(a: Any) -> Any:
    values = need(a, list)
    if not values:
        return 0
    return functools.reduce(add, values)


def _extreme(name: str, better: Callable[[Any, Any], bool]) -> Callable[[Any], Any]:
    def pick(a: Any) -> Any:
        values = need(a, list)
        if not values:
            raise CelError(f"{name} called on empty list")
        return functools.reduce(lambda x, y: y if better(y, x) else x, values)

    return pick


FUNCTIONS["min"] = _extreme("min", less)
FUNCTIONS["max"] = _extreme("max", lambda y, x: less(x, y))


def _order(a: Any, b: Any) -> int:
    return -1 if less(a, b) else int(less(b, a))


FUNCTIONS["sort"] = lambda a: sorted(need(a, list), key=functools.cmp_to_key(_order))


@_def("@sortByAssociatedKeys")
def sort_by(a: Any, keys: Any) -> list[Any]:
    def by_key(x: tuple[Any, Any], y: tuple[Any, Any]) -> int:
        return _order(x[1], y[1])

    pairs = sorted(zip(need(a, list), need(keys, list), strict=True), key=functools.cmp_to_key(by_key))
    return [value for value, _ in pairs]


@_def("slice")
def list_slice(a: Any, start: Any, end: Any) -> list[Any]:
    values = need(a, list)
    if start < 0 or end < 0:
        raise CelError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise CelError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(values):
        raise CelError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return list(values[start:end])


@_def("flatten")
def flatten(a: Any, depth: Any = 1) -> list[Any]:
    if depth < 0:
        raise CelError("level must be non-negative")
    out: list[Any] = []
    for x in need(a, list):
        if isinstance(x, list) and depth > 0:
            out += flatten(x, depth - 1)
        else:
            out.append(x)
    return out


@_def("distinct")
def distinct(a: Any) -> list[Any]:
    out: list[Any] = []
    for x in need(a, list):
        if not any(equal(x, y) for y in out):
            out.append(x)
    return out


FUNCTIONS["reverse"] = lambda a: list(reversed(need(a, list)))
FUNCTIONS["first"] = lambda a: Optional(True, a[0]) if need(a, list) else NONE
FUNCTIONS["last"] = lambda a: Optional(True, a[-1]) if need(a, list) else NONE
FUNCTIONS["lists.range"] = lambda n: list(range(need(n, int)))
FUNCTIONS["sets.contains"] = lambda a, b: all(any(equal(x, y) for y in need(a, list)) for x in need(b, list))
FUNCTIONS["sets.intersects"] = lambda a, b: any(any(equal(x, y) for y in need(a, list)) for x in need(b, list))
FUNCTIONS["sets.equivalent"] = lambda a, b: FUNCTIONS["sets.contains"](a, b) and FUNCTIONS["sets.contains"](b, a)
FUNCTIONS["optional.of"] = lambda a: Optional(True, a)
FUNCTIONS["optional.none"] = lambda: NONE
FUNCTIONS["optional.ofNonZeroValue"] = lambda a: (
    NONE if a is None or a in ("", 0, False, [], {}, b"") else Optional(True, a)
)
FUNCTIONS["hasValue"] = lambda a: need(a, Optional).present


@_def("value")
def optional_value(a: Any) -> Any:
    if not need(a, Optional).present:
        raise CelError("optional.none() dereference")
    return a.value


@_def("cel.@mapInsert")
def map_insert(a: Any, key: Any, *value: Any) -> dict[Any, Any]:
    added = {key: value[0]} if value else need(key, dict)
    for k in added:
        if k in a:
            raise CelError(f"insert failed: key {_show(k)} already exists")
    return {**need(a, dict), **added}


@_def("includes")
def includes(a: Any, b: Any) -> bool:
    """KEP-5491: a list attribute includes an element; a scalar includes itself."""
    values = a.values if isinstance(a, AttributeList) else a
    return any(equal(x, b) for x in values) if isinstance(values, list) else equal(values, b)


# --- Kubernetes ---------------------------------------------------------------------------------


@_def("quantity")
def to_quantity(a: Any) -> Quantity:
    try:
        return quantity.parse(need(a, str))
    except quantity.QuantityError as e:
        raise CelError(str(e)) from None


def _parses(parse: Callable[..., Any]) -> Callable[..., bool]:
    def check(*args: Any) -> bool:
        need(args[0], str)
        try:
            parse(*args)
        except CelError:
            return False
        return True

    return check


FUNCTIONS["isQuantity"] = _parses(to_quantity)
FUNCTIONS["isInteger"] = lambda a: need(a, Quantity).is_integer
FUNCTIONS["asApproximateFloat"] = lambda a: float(need(a, Quantity).value)


@_def("asInteger")
def as_integer(a: Any) -> int:
    if not need(a, Quantity).is_integer:
        raise CelError("cannot convert value to integer")
    return int(a)


def _quantity_sum(sign: int) -> Callable[[Any, Any], Quantity]:
    def compute(a: Any, b: Any) -> Quantity:
        other = b.value if isinstance(b, Quantity) else Decimal(need(b, int))
        return Quantity(need(a, Quantity).value + sign * other, a.format)

    return compute


FUNCTIONS["add"] = _quantity_sum(1)
FUNCTIONS["sub"] = _quantity_sum(-1)


@_def("semver")
def to_semver(a: Any, tolerant: Any = False) -> Version:
    try:
        return (version.parse_tolerant if tolerant else version.parse)(need(a, str))
    except version.VersionError as e:
        raise CelError(str(e)) from None


FUNCTIONS["isSemver"] = _parses(to_semver)
FUNCTIONS["major"] = lambda a: need(a, Version).major
FUNCTIONS["minor"] = lambda a: need(a, Version).minor
FUNCTIONS["patch"] = lambda a: need(a, Version).patch


def _pair(a: Any, b: Any) -> None:
    if not isinstance(a, (Quantity, Version)) or type(a) is not type(b):
        raise no_overload()


@_def("isGreaterThan")
def is_greater(a: Any, b: Any) -> bool:
    _pair(a, b)
    return bool(a > b)


@_def("isLessThan")
def is_less(a: Any, b: Any) -> bool:
    _pair(a, b)
    return bool(a < b)


@_def("compareTo")
def compare_to(a: Any, b: Any) -> int:
    _pair(a, b)
    return -1 if a < b else int(a > b)


@_def("url")
def to_url(a: Any) -> urllib.parse.SplitResult:
    try:
        parsed: urllib.parse.SplitResult = urllib.parse.urlsplit(str(need(a, str)))
        _ = parsed.port
    except ValueError as e:
        raise CelError(f"URL parse error during conversion from string: {e}") from None
    if not (parsed.scheme or a.startswith("/")) or any(ord(c) <= 32 or ord(c) == 127 for c in a):
        raise CelError(f'URL parse error during conversion from string: parse "{a}": invalid URI for request')
    return parsed


FUNCTIONS["isURL"] = _parses(to_url)
FUNCTIONS["getScheme"] = lambda a: a.scheme
FUNCTIONS["getHost"] = lambda a: a.netloc.rpartition("@")[2]
FUNCTIONS["getHostname"] = lambda a: a.hostname or ""
FUNCTIONS["getPort"] = lambda a: str(a.port or "")
FUNCTIONS["getEscapedPath"] = lambda a: urllib.parse.quote(urllib.parse.unquote(a.path), safe="/:@!$&'()*+,;=~-._")
FUNCTIONS["getQuery"] = lambda a: urllib.parse.parse_qs(a.query, keep_blank_values=True)


def _ip_text(text: str) -> bool:
    # Kubernetes refuses zones, leading zeros and IPv4-mapped IPv6.
    return "%" not in text and not re.match(r"(?i)::ffff:\d+\.\d+", text)


def _address(text: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        if not _ip_text(need(text, str)):
            raise ValueError(text)
        return ipaddress.ip_address(text)
    except ValueError:
        raise CelError(f'IP Address "{text}" parse error during conversion from string') from None


@_def("ip")
def to_ip(a: Any) -> Any:
    if isinstance(a, (ipaddress.IPv4Interface, ipaddress.IPv6Interface)):
        return a.ip
    return _address(a)


FUNCTIONS["isIP"] = _parses(_address)
FUNCTIONS["ip.isCanonical"] = lambda a: str(_address(a)) == a
FUNCTIONS["family"] = lambda a: a.version
FUNCTIONS["isUnspecified"] = lambda a: a.is_unspecified
FUNCTIONS["isLoopback"] = lambda a: a.is_loopback
FUNCTIONS["isLinkLocalMulticast"] = lambda a: (
    a in (ipaddress.ip_network("224.0.0.0/24") if a.version == 4 else ipaddress.ip_network("ff02::/16"))
)
FUNCTIONS["isLinkLocalUnicast"] = lambda a: a.is_link_local
FUNCTIONS["isGlobalUnicast"] = lambda a: (
    not (a.is_unspecified or a.is_loopback or a.is_multicast or a.is_link_local or str(a) == "255.255.255.255")
)


@_def("cidr")
def to_cidr(a: Any) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    try:
        if not re.fullmatch(r"[0-9a-fA-F.:]+/\d+", need(a, str)) or not _ip_text(a):
            raise ValueError(a)
        return ipaddress.ip_interface(a)
    except ValueError:
        raise CelError(f'network address parse error during conversion from string: "{a}"') from None


FUNCTIONS["isCIDR"] = _parses(to_cidr)
FUNCTIONS["masked"] = lambda a: ipaddress.ip_interface(a.network.with_prefixlen)
FUNCTIONS["prefixLength"] = lambda a: a.network.prefixlen


@_def("containsIP")
def contains_ip(a: Any, b: Any) -> bool:
    address = _address(b) if isinstance(b, str) else b
    return bool(address.version == a.version and address in a.network)


@_def("containsCIDR")
def contains_cidr(a: Any, b: Any) -> bool:
    other = to_cidr(b) if isinstance(b, str) else b
    return bool(other.version == a.version and other.network.subnet_of(a.network))


_FORMATS: dict[str, Callable[[str], list[str]]] = {
    "dns1123Label": names.label,
    "dns1123Subdomain": names.subdomain,
    "qualifiedName": names.qualified,
    "labelValue": names.label_value,
    "uuid": lambda v: (
        []
        if re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", v)
        else ["does not match the UUID format"]
    ),
    "dns1035Label": lambda v: (
        [] if re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", v) else ["a DNS-1035 label must start with a letter"]
    ),
}
FUNCTIONS["format.named"] = lambda name: Optional(True, _FORMATS[name]) if name in _FORMATS else NONE
for _name, _format in _FORMATS.items():
    FUNCTIONS[f"format.{_name}"] = functools.partial(lambda f: f, _format)
FUNCTIONS["validate"] = lambda f, text: Optional(True, faults) if (faults := f(need(text, str))) else NONE
