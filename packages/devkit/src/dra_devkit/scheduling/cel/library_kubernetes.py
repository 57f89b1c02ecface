"""Kubernetes' libraries for quantities, versions and addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any

from dra_kubeletplugin.resourceapi import quantity, version
from dra_kubeletplugin.resourceapi.quantity import Quantity, QuantityError
from dra_kubeletplugin.resourceapi.version import Version

from .registry import FUNCTIONS, define, need, no_overload
from .values import CelError


@define("quantity")
def to_quantity(a: Any) -> Quantity:
    try:
        return quantity.parse(need(a, str))
    except QuantityError as e:
        raise CelError(e.reason) from None


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
FUNCTIONS["asApproximateFloat"] = lambda a: float(need(a, Quantity))
FUNCTIONS["sign"] = lambda a: (need(a, Quantity).value > 0) - (a.value < 0)
FUNCTIONS["add"] = lambda a, b: need(a, Quantity) + _quantity(b)
FUNCTIONS["sub"] = lambda a, b: need(a, Quantity) - _quantity(b)


def _quantity(value: Any) -> Quantity:
    return value if isinstance(value, Quantity) else Quantity(need(value, int))


@define("asInteger")
def as_integer(a: Any) -> int:
    if not need(a, Quantity).is_integer:
        raise CelError("cannot convert value to integer")
    return int(a)


def _parse_tolerant(text: str) -> Version:
    """Parses like ``version.parse``, after trimming and removing a leading v and leading zeros; missing parts are zero."""
    parts = [_unpad(p) for p in text.strip().removeprefix("v").split(".", 2)]
    if len(parts) < 3:
        if any(c in parts[-1] for c in "+-"):
            raise version.VersionError("Short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return version.parse(".".join(parts))


def _unpad(part: str) -> str:
    stripped = part.lstrip("0") if len(part) > 1 else part
    return stripped if stripped[:1].isdigit() else "0" * (len(part) > 1) + stripped


@define("semver")
def to_semver(a: Any, tolerant: Any = False) -> Version:
    try:
        return (_parse_tolerant if tolerant else version.parse)(need(a, str))
    except version.VersionError as e:
        raise CelError(str(e)) from None


FUNCTIONS["isSemver"] = _parses(to_semver)
FUNCTIONS["major"] = lambda a: need(a, Version).major
FUNCTIONS["minor"] = lambda a: need(a, Version).minor
FUNCTIONS["patch"] = lambda a: need(a, Version).patch


def _pair(a: Any, b: Any) -> None:
    if not isinstance(a, (Quantity, Version)) or type(a) is not type(b):
        raise no_overload()


@define("isGreaterThan")
def is_greater(a: Any, b: Any) -> bool:
    _pair(a, b)
    return bool(a > b)


@define("isLessThan")
def is_less(a: Any, b: Any) -> bool:
    _pair(a, b)
    return bool(a < b)


@define("compareTo")
def compare_to(a: Any, b: Any) -> int:
    _pair(a, b)
    return -1 if a < b else int(a > b)


def _address(text: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        found = ipaddress.ip_address(need(text, str))
        # Kubernetes refuses zones and IPv4 addresses in IPv6 form.
        if "%" in text or _is_mapped(found):
            raise ValueError(text)
        return found
    except ValueError:
        raise CelError(f'IP Address "{text}" parse error during conversion from string') from None


def _is_mapped(a: Any) -> bool:
    return isinstance(a, ipaddress.IPv6Address) and a.ipv4_mapped is not None


@define("ip")
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
    a in ipaddress.ip_network("224.0.0.0/24") if a.version == 4 else int(a) >> 112 & 0xFF0F == 0xFF02
)
FUNCTIONS["isLinkLocalUnicast"] = lambda a: a.is_link_local
FUNCTIONS["isGlobalUnicast"] = lambda a: (
    not (a.is_unspecified or a.is_loopback or a.is_multicast or a.is_link_local or str(a) == "255.255.255.255")
)


@define("cidr")
def to_cidr(a: Any) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    try:
        if not re.fullmatch(r"[0-9a-fA-F.:]+/(?:0|[1-9]\d*)", need(a, str), re.ASCII):
            raise ValueError(a)
        found = ipaddress.ip_interface(a)
        if _is_mapped(found.ip):
            raise ValueError(a)
        return found
    except ValueError:
        raise CelError(f'network address parse error during conversion from string: "{a}"') from None


FUNCTIONS["isCIDR"] = _parses(to_cidr)
FUNCTIONS["masked"] = lambda a: ipaddress.ip_interface(a.network.with_prefixlen)
FUNCTIONS["prefixLength"] = lambda a: a.network.prefixlen


@define("containsIP")
def contains_ip(a: Any, b: Any) -> bool:
    address = _address(b) if isinstance(b, str) else b
    return bool(address.version == a.version and address in a.network)


@define("containsCIDR")
def contains_cidr(a: Any, b: Any) -> bool:
    other = to_cidr(b) if isinstance(b, str) else b
    return bool(other.version == a.version and other.network.subnet_of(a.network))
