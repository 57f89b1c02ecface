"""Whose request it is: a browser opens any page, and any page may ask whatever the browser can reach.

A page elsewhere is known by its Origin; one whose name was made to lead here (DNS rebinding) by the name that it asks for.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from .server import Request

_SAME = {"same-origin", "none"}
# What a proxy says of whom it speaks for. A sidecar (a mesh's, kube-rbac-proxy) shares the loopback with what it stands before.
_PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")


def host_of(request: Request) -> str:
    """The name that the request is for, in small letters; empty where it has none."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def leads_here(host: str, names: Collection[str] = ()) -> bool:
    """An address says where it leads; of names, only those that are this machine's own, and ``names``."""
    if host in names or host == "localhost" or host.endswith(".localhost") or host == socket.gethostname().lower():
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_own_page(request: Request) -> bool:
    """Whether no other page than one of this server's made the request, as far as the browser says."""
    origin = request.headers.get("origin")
    own = origin is None or origin.partition("://")[2] == request.headers.get("host")
    return own and request.headers.get("sec-fetch-site", "none") in _SAME


def is_from_here(request: Request) -> bool:
    """Whether it came over the loopback: from this machine or pod, or by ``kubectl port-forward``, which a cluster's rules guard.

    What a proxy passes on does too, and did not begin there: it says so, or asks for another address than the loopback's.
    """
    if any(name in request.headers for name in _PASSED_ON):
        return False
    return _is_loopback(request.peer) is True and _is_loopback(host_of(request)) is not False


def _is_loopback(text: str) -> bool | None:
    """None for what is no address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


__all__ = ["host_of", "is_from_here", "is_own_page", "leads_here"]
