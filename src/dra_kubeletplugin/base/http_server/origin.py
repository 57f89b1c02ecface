"""Checks where a request comes from, because any web page that a browser shows may send requests to this server.

A foreign page is recognized by its Origin header. A page that uses DNS rebinding is recognized by the host name in its requests.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from .server import Request

_SAME = {"same-origin", "none"}
# Headers by which a proxy names its client. A sidecar (service mesh, kube-rbac-proxy) shares the loopback with the server.
_PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")


def host_of(request: Request) -> str:
    """Returns the host name of the request in lower case; empty if it has none."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def is_safe_host(host: str, names: Collection[str] = ()) -> bool:
    """Whether ``host`` is safe against DNS rebinding: an IP address, a name of this machine, or one of ``names``."""
    if host in names or host == "localhost" or host.endswith(".localhost") or host == socket.gethostname().lower():
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_own_page(request: Request) -> bool:
    """Whether, according to the browser's headers, the request was made by a page of this server or by no web page."""
    origin = request.headers.get("origin")
    own = origin is None or origin.partition("://")[2] == request.headers.get("host")
    return own and request.headers.get("sec-fetch-site", "none") in _SAME


def is_from_loopback(request: Request) -> bool:
    """Whether the request came over the loopback: from this machine or pod, or by ``kubectl port-forward``, which RBAC protects.

    A request that a proxy passed on also comes over the loopback. Its headers show the proxy, or its host is not a loopback address.
    """
    if any(name in request.headers for name in _PASSED_ON):
        return False
    return _is_loopback(request.peer) is True and _is_loopback(host_of(request)) is not False


def _is_loopback(text: str) -> bool | None:
    """Whether an address is a loopback address; None for text that is not an address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
