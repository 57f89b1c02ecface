"""Who may ask: those who have the token of the kubeconfig, or of a service account; nobody's web page, under no other name.

The server is on a machine that others use too, and a browser on it opens any page: a token is demanded on the loopback as well,
a request that a page made (it has an Origin) or that came under a foreign name (a page whose name leads here) is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ...observe.http import Request
from .refusals import Refusal

_MASTERS = "system:masters"
_LOCAL = {
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
}


@dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...] = ()

    @property
    def is_master(self) -> bool:
        return _MASTERS in self.groups


ADMIN = User("kubernetes-admin", (_MASTERS, "system:authenticated"))


@dataclass(frozen=True)
class _Issued:
    user: User
    expires: float


@dataclass
class Tokens:
    """``admin`` is the kubeconfig's token; service accounts get theirs on request."""

    admin: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _issued: dict[str, _Issued] = field(default_factory=dict)

    def issue(self, namespace: str, name: str, seconds: float) -> str:
        """A token of a service account."""
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        token = secrets.token_urlsafe(32)
        self._issued[token] = _Issued(User(f"system:serviceaccount:{namespace}:{name}", groups), time.time() + seconds)
        return token

    def user_of(self, token: str) -> User | None:
        if hmac.compare_digest(token.encode(errors="replace"), self.admin.encode()):
            return ADMIN
        found = self._issued.get(token)
        return found.user if found and found.expires > time.time() else None


def authenticate(request: Request, tokens: Tokens, names: Collection[str] = ()) -> User:
    """``names`` are those of the addresses at which the server was asked to serve. Raises :class:`Refusal`."""
    _check_source(request, names)
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    user = tokens.user_of(token.strip()) if kind.lower() == "bearer" else None
    if user is None:
        raise Refusal(401, "Unauthorized", "Unauthorized")
    name = request.headers.get("impersonate-user")
    if name is None:
        return user
    if not user.is_master:
        raise Refusal(403, "Forbidden", f'users "{name}" is forbidden: User "{user.name}" cannot impersonate')
    groups = tuple(g.strip() for g in request.headers.get("impersonate-group", "").split(",") if g.strip())
    return User(name, (*groups, "system:authenticated"))


def _check_source(request: Request, names: Collection[str]) -> None:
    host = request.headers.get("host", "")
    name = _name(f"//{host}")
    if name not in names and not _is_ours(name):
        raise Refusal(403, "Forbidden", f"the request is for host {host!r}, and this server is the local cluster's")
    origin = request.headers.get("origin")
    if origin is not None:
        raise Refusal(403, "Forbidden", f"a web page of {origin!r} made this request: pages get nothing")


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_ours(host: str) -> bool:
    """An address says where it leads; of names, only those that are this machine's own."""
    if host in _LOCAL or host.endswith(".localhost") or host == socket.gethostname().lower():
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
