"""Values that expressions compute with, their types, equality and order."""

from __future__ import annotations

import ipaddress
import urllib.parse
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...resources.fields import ProgramFault
from ...resources.quantity import Quantity
from ...resources.version import Version


class CelError(Exception):
    """Evaluation failed; the text is what Kubernetes reports."""


class CompileError(ValueError):
    """The expression is not accepted; the text is what Kubernetes reports."""


class ProgramError(CompileError, ProgramFault):
    """The expression compiles, and a part of it that is constant cannot be evaluated."""


class UInt(int):
    """An unsigned integer; Python has one kind only."""


@dataclass(frozen=True, order=True)
class Duration:
    nanoseconds: int


@dataclass(frozen=True)
class Type:
    """A type: a name and, for lists, maps, optionals and types, parameters."""

    name: str
    params: tuple[Type, ...] = ()

    def __str__(self) -> str:
        if self.name == "function_type":
            return str(self.params[0])
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
    """A map in which a missing key stands for an empty map: how Kubernetes treats domains without attributes."""


@dataclass(frozen=True)
class AttributeList:
    """A list-typed device attribute."""

    values: list[Any]


INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1


def is_number(v: Any) -> bool:
    return isinstance(v, (int, float)) and not isinstance(v, bool)


def equal(a: Any, b: Any) -> bool:
    """Equality of the language: numbers compare by value over kinds, other kinds differ."""
    if is_number(a) and is_number(b):
        return bool(a == b)
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        if len(a) != len(b):
            return False
        for k, v in a.items():
            if k not in b or not equal(v, b[k]):
                return False
        return True
    if isinstance(a, Optional) and isinstance(b, Optional):
        return a.present == b.present and (not a.present or equal(a.value, b.value))
    if isinstance(a, (Quantity, Version)):
        if type(a) is not type(b):
            raise CelError("no such overload")  # only when it stands on the left, as in Kubernetes
        return a == b
    return type(a) is type(b) and bool(a == b)


def less(a: Any, b: Any) -> bool:
    """Order of the language.

    Raises :class:`CelError` for kinds that have none.
    """
    if is_number(a) and is_number(b):
        return bool(a < b)
    for kind in (bool, str, bytes, Duration, datetime):
        if isinstance(a, kind) and isinstance(b, kind):
            return bool(a < b)  # type: ignore[operator]
    raise CelError("no such overload")


def type_of(v: Any) -> Type:
    """The run-time type of a value."""
    names: list[tuple[type, str]] = [
        (bool, "bool"),
        (UInt, "uint"),
        (int, "int"),
        (float, "double"),
        (str, "string"),
        (bytes, "bytes"),
        (list, "list"),
        (dict, "map"),
        (Duration, "google.protobuf.Duration"),
        (datetime, "google.protobuf.Timestamp"),
        (Type, "type"),
        (Optional, "optional_type"),
        (Quantity, "kubernetes.Quantity"),
        (Version, "kubernetes.Semver"),
        (ipaddress.IPv4Address, "net.IP"),
        (ipaddress.IPv6Address, "net.IP"),
        (ipaddress.IPv4Interface, "net.CIDR"),
        (ipaddress.IPv6Interface, "net.CIDR"),
        (urllib.parse.SplitResult, "kubernetes.URL"),
    ]
    if v is None:
        return Type("null_type")
    for kind, name in names:
        if isinstance(v, kind):
            return Type(name)
    return Type(type(v).__name__)


def size_of(v: Any) -> int:
    """The size that cost counts: characters, bytes, elements; 1 for scalars."""
    if isinstance(v, (str, bytes, list, dict)):
        return len(v)
    return 1
