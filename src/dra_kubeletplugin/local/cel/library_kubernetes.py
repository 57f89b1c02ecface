"""What Kubernetes adds: quantities, versions, URLs, addresses, formats."""

from __future__ import annotations

import functools
import ipaddress
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

from ...resources import names, quantity, version
from ...resources.quantity import Quantity
from ...resources.version import Version
from .registry import FUNCTIONS, define, need, no_overload
from .values import (
    NONE,
    CelError,
    Optional,
)


@define("quantity")
def to_quantity(a: Any) -> Quantity:
    try:
        return quantity.parse(need(a, str))
    except quantity.QuantityError as e:
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
FUNCTIONS["asApproximateFloat"] = lambda a: float(need(a, Quantity).value)


@define("asInteger")
def as_integer(a: Any) -> int:
    if not need(a, Quantity).is_integer:
        raise CelError("cannot convert value to integer")
    return int(a)


def _quantity_sum(sign: int) -> Callable[[Any, Any], Quantity]:
    def compute(a: Any, b: Any) -> Quantity:
        other = b if isinstance(b, Quantity) else Quantity(need(b, int))
        return Quantity(need(a, Quantity) + other * sign)

    return compute


FUNCTIONS["add"] = _quantity_sum(1)
FUNCTIONS["sub"] = _quantity_sum(-1)


@define("semver")
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


@define("url")
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
    a in (ipaddress.ip_network("224.0.0.0/24") if a.version == 4 else ipaddress.ip_network("ff02::/16"))
)
FUNCTIONS["isLinkLocalUnicast"] = lambda a: a.is_link_local
FUNCTIONS["isGlobalUnicast"] = lambda a: (
    not (a.is_unspecified or a.is_loopback or a.is_multicast or a.is_link_local or str(a) == "255.255.255.255")
)


@define("cidr")
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


@define("containsIP")
def contains_ip(a: Any, b: Any) -> bool:
    address = _address(b) if isinstance(b, str) else b
    return bool(address.version == a.version and address in a.network)


@define("containsCIDR")
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
