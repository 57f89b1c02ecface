"""Finds the proxy for a server: from a kubeconfig, or from HTTPS_PROXY and NO_PROXY as Go's clients read them."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from ..errors import SettingsError


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy that opens tunnels (CONNECT). ``authorization`` is the value of the Proxy-Authorization header, or empty."""

    host: str
    port: int
    authorization: str = ""


def parse_proxy(url: str, where: str) -> Proxy:
    """Parses a proxy's URL. Raises :class:`SettingsError`; ``where`` names the option that contains ``url``."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port = None, 0
    if not host:
        raise SettingsError(f"{where} is not the URL of a proxy: write it like http://proxy.example.com:3128")
    if parts.scheme != "http":
        raise SettingsError(f"{where}: proxies of scheme {parts.scheme!r} are not supported, only http (with CONNECT)")
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"
    return Proxy(host, port, authorization)


def proxy_of(environment: Mapping[str, str], scheme: str, host: str, port: int) -> Proxy | None:
    """Returns the proxy that the environment variables name for a server; None if there is none, and for loopback addresses.

    Raises :class:`SettingsError` for an unusable proxy.
    """
    name = f"{scheme}_proxy"
    found = next((n for n in (name.upper(), name) if environment.get(n)), "")
    rules = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if not found or _bypassed(rules, host.lower(), port):
        return None
    return parse_proxy(environment[found], found)


def _bypassed(rules: str, host: str, port: int) -> bool:
    address = _address(host)
    if host == "localhost" or (address and address.is_loopback):
        return True
    return any(_fits(rule.strip().lower(), host, port, address) for rule in rules.split(",") if rule.strip())


def _fits(rule: str, host: str, port: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    if rule == "*":
        return True
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    name, _, wanted = rule.rpartition(":") if rule.count(":") == 1 or "]:" in rule else (rule, "", "")
    name = name.strip("[]")
    if wanted and wanted != str(port):
        return False
    if address:
        return address == _address(name)
    if name.startswith("*."):
        name = name[1:]
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
