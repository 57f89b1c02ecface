"""Values of expressions: their types, equality and order."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from dra_kubeletplugin.resourceapi.quantity import Quantity
from dra_kubeletplugin.resourceapi.version import Version

from ...validation.claims import ProgramFault


class CelError(Exception):
    """Evaluation failed; the text is the same as in Kubernetes. ``cost`` is the cost up to the failure."""

    cost = 0


class CompileError(ValueError):
    """The expression is not accepted; the text is the same as in Kubernetes."""


class ProgramError(CompileError, ProgramFault):
    """The expression compiles, but a constant part of it cannot be evaluated."""


class UInt(int):
    """An unsigned integer, because Python has only one integer type."""


@dataclass(frozen=True, order=True)
class Duration:
    nanoseconds: int


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 1_000_000_000


@dataclass(frozen=True, order=True)
class Timestamp:
    """A moment, in nanoseconds since 1970, as written in a zone that is ``offset`` seconds east of UTC."""

    nanoseconds: int
    offset: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if not TIME_MIN <= self.nanoseconds // _SECOND <= TIME_MAX:
            raise CelError("timestamp overflow")

    def at(self, zone: Any = UTC) -> datetime:
        """Returns the moment in a zone, to the microsecond.

        Raises :class:`CelError` if it is outside the years 1 to 9999.
        """
        try:
            return (_EPOCH + timedelta(microseconds=self.nanoseconds // 1000)).astimezone(zone)
        except OverflowError:
            raise CelError("timestamp overflow") from None

    def __str__(self) -> str:
        moment = self.at(timezone(timedelta(seconds=self.offset)))
        fraction = f".{self.nanoseconds % _SECOND:09}".rstrip("0").rstrip(".")
        zone = moment.strftime("%z") if self.offset else "Z"
        return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}{zone[:3] + ':' + zone[3:] if self.offset else zone}"


@dataclass(frozen=True)
class Type:
    """A type: its name and its parameters, which only lists, maps, optionals and types have."""

    name: str
    params: tuple[Type, ...] = ()

    def __str__(self) -> str:
        if not self.params:
            return self.name
        inner = ", ".join(map(str, self.params))
        return f"{self.name}({inner})"


@dataclass(frozen=True)
class Optional:
    present: bool
    value: Any = None


NONE = Optional(present=False)


class DefaultMap(dict[str, Any]):
    """A map in which a missing key has an empty map as value, as in Kubernetes for domains without attributes."""


@dataclass(frozen=True)
class Record:
    """A value of an object type that this package defines; expressions may select its fields."""

    fields: dict[str, Any] = field(default_factory=dict, compare=False, kw_only=True)


@dataclass(frozen=True)
class Url:
    """A URL: ``host`` includes the port, ``path`` is unchanged."""

    scheme: str
    host: str
    path: str
    query: str


@dataclass(frozen=True)
class Format:
    """A named format. ``validate`` returns the errors of a text; empty if the text is valid.

    ``pattern_length`` is the length of the pattern by which Kubernetes estimates the cost of a validation.
    """

    name: str
    validate: Callable[[str], list[str]] = field(compare=False)
    pattern_length: int = field(compare=False)


INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1
TIME_MIN, TIME_MAX = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, in seconds since 1970
_OBJECTS = (
    Quantity,
    Version,
    Format,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
    Url,
)


def is_number(v: Any) -> bool:
    return isinstance(v, (int, float)) and not isinstance(v, bool)


def _number(a: Any, b: Any) -> tuple[Any, Any]:
    """Converts two numbers for comparison as CEL does: if one is a double, both become doubles."""
    if isinstance(a, float) != isinstance(b, float):
        return float(a), float(b)
    return a, b


def equal(a: Any, b: Any) -> bool:
    """Returns whether two values are equal in CEL. Numbers are compared by value across types; other values of different types differ.

    Raises :class:`CelError` if the left value is an object of Kubernetes and the right value has another type, except null and bool.
    """
    if a is None or b is None:
        return a is None and b is None
    if is_number(a) and is_number(b):
        x, y = _number(a, b)
        return bool(x == y)
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(not differ(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        if not isinstance(b, dict) or len(a) != len(b):
            return False
        for k, v in a.items():
            other = find(b, k)
            if not other.present or differ(v, other.value):
                return False
        return True
    if isinstance(a, Optional):
        if not isinstance(b, Optional) or a.present != b.present:
            return False
        return not a.present or equal(a.value, b.value)
    if isinstance(a, _OBJECTS):
        if type_of(a) != type_of(b):
            raise CelError("no such overload")
        return bool(a == b)
    return type(a) is type(b) and bool(a == b)


def differ(a: Any, b: Any) -> bool:
    """Returns whether two elements are certainly different; False for elements that cannot be compared."""
    try:
        return not equal(a, b)
    except CelError:
        return False


def same(a: Any, b: Any) -> bool:
    """Returns whether two elements are certainly equal; False for elements that cannot be compared."""
    try:
        return equal(a, b)
    except CelError:
        return False


def find(values: dict[Any, Any], key: Any) -> Optional:
    """Returns the value of a key. Numbers are found by value; a bool is not a number."""
    if isinstance(key, str):
        return Optional(True, values[key]) if key in values else NONE
    if isinstance(key, (int, float)):
        number: Any = _Number(key)
        return Optional(True, values[number]) if number in values else NONE
    return NONE


class _Number:
    """A number as the key for a map lookup, because Python's own lookup treats True as 1."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, stored: object) -> bool:
        return isinstance(stored, (int, float)) and equal(stored, self.value)


def less(a: Any, b: Any) -> bool:
    """Returns whether ``a`` comes before ``b`` in CEL's order.

    Raises :class:`CelError` for types without an order, and for NaN.
    """
    if is_number(a) and is_number(b):
        x, y = _number(a, b)
        if math.isnan(x) or math.isnan(y):
            raise CelError("NaN values cannot be ordered")
        return bool(x < y)
    for kind in (bool, str, bytes, Duration, Timestamp):
        if isinstance(a, kind) and isinstance(b, kind):
            return bool(a < b)  # type: ignore[operator]
    raise CelError("no such overload")


# By the exact class: bool is a subclass of int, and an address with a prefix is a subclass of an address.
_TYPE_NAMES: dict[type, str] = {
    type(None): "null_type",
    bool: "bool",
    UInt: "uint",
    int: "int",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    DefaultMap: "map",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    Type: "type",
    Optional: "optional_type",
    Quantity: "kubernetes.Quantity",
    Version: "kubernetes.Semver",
    ipaddress.IPv4Address: "net.IP",
    ipaddress.IPv6Address: "net.IP",
    ipaddress.IPv4Interface: "net.CIDR",
    ipaddress.IPv6Interface: "net.CIDR",
    Url: "kubernetes.URL",
    Format: "kubernetes.NamedFormat",
}


def type_of(v: Any) -> Type:
    """Returns the run-time type of a value."""
    return Type(_TYPE_NAMES.get(type(v)) or type(v).__name__)


def show_double(v: float) -> str:
    """Formats a double as the shortest text, like Go's ``%g``: 1e+06, 0.0001, 1e-05."""
    if not math.isfinite(v):
        return "NaN" if math.isnan(v) else "+Inf" if v > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(v)).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)
    minus = "-" if sign else ""
    if not v:
        return minus + "0"
    if point - 1 < -4 or point - 1 >= 6:
        mantissa = text[0] + ("." + text[1:] if len(text) > 1 else "")
        return f"{minus}{mantissa}e{'-' if point < 1 else '+'}{abs(point - 1):02}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    return minus + (text + "0" * (point - len(text)) if len(text) <= point else f"{text[:point]}.{text[point:]}")


def show_scalar(v: Any) -> str:
    """Converts a scalar, time or type to text.

    Raises :class:`CelError` for other types.
    """
    match v:
        case bool():
            return "true" if v else "false"
        case str():
            return v
        case int():
            return str(int(v))
        case float():
            return show_double(v)
        case bytes():
            try:
                return v.decode()
            except UnicodeDecodeError:
                raise CelError("invalid UTF-8 in bytes, cannot convert to string") from None
        case Duration():
            return f"{Decimal(v.nanoseconds) / _SECOND:f}s"
        case Timestamp() | Type():
            return str(v)
        case ipaddress.IPv4Address() | ipaddress.IPv6Address() | ipaddress.IPv4Interface() | ipaddress.IPv6Interface():
            return str(v)
    raise CelError("no such overload")


def size_of(v: Any) -> int:
    """Returns the size of a value for cost rules: its characters, bytes or elements; 1 for scalars."""
    if isinstance(v, (str, bytes, list, dict)):
        return len(v)
    if isinstance(v, (ipaddress.IPv4Interface, ipaddress.IPv6Interface)):
        return (v.network.prefixlen + 7) // 8
    if isinstance(v, (ipaddress.IPv4Address, ipaddress.IPv6Address)):
        return v.max_prefixlen // 8
    return 1
