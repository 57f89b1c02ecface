"""Authenticates requests with the token of the kubeconfig, of a service account, or of a component of the cluster.

A token is necessary even on the loopback address, because other users of the machine and web pages in a browser can reach the server.
The server rejects requests from web pages, which have an Origin header, and requests for a host name that is not its own (DNS rebinding).
"""

from __future__ import annotations

import hmac
import math
import secrets
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from dra_kubeletplugin.base.http_server.origin import host_of, is_safe_host
from dra_kubeletplugin.base.http_server.server import Request
from dra_kubeletplugin.base.json_types import JSON

from .status_errors import StatusError, bad_request
from .storage import Storage

AUDIENCE = "https://kubernetes.default.svc.cluster.local"
_AUTHENTICATION = "authentication.kubernetes.io"
_ACCOUNTS = "system:serviceaccounts"
_EXTRA = "impersonate-extra-"
_MASTERS = "system:masters"
_LOCAL = {
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
}


@dataclass(frozen=True)
class User:
    """The user of a request.

    Attributes:
        extra: further data about the user, by key in lower case.
        trusted: whether the user may do everything. True for the components of the cluster.
    """

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    trusted: bool = False

    @property
    def is_master(self) -> bool:
        return self.trusted or _MASTERS in self.groups

    @property
    def info(self) -> JSON:
        """The user in the form of authentication.k8s.io/v1 UserInfo."""
        out: JSON = {"username": self.name}
        if self.uid:
            out["uid"] = self.uid
        if self.groups:
            out["groups"] = list(self.groups)
        if self.extra:
            out["extra"] = {k: list(v) for k, v in self.extra.items()}
        return out


ADMIN = User("kubernetes-admin", (_MASTERS, "system:authenticated"))


@dataclass(frozen=True)
class Bound:
    """An object whose deletion invalidates a token."""

    storage: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class _Issued:
    user: User
    expires: float
    audiences: tuple[str, ...]
    bound: tuple[Bound, ...]


@dataclass
class Tokens:
    """Creates and checks tokens. ``admin`` is the token of the kubeconfig."""

    admin: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _issued: dict[str, _Issued] = field(default_factory=dict)

    def issue(
        self,
        account: JSON,
        seconds: float,
        audiences: Collection[str] = (),
        bound: Collection[Bound] = (),
        claims: Mapping[str, str] | None = None,
    ) -> str:
        """Returns a token of a service account. It is valid while the account and the ``bound`` objects exist.

        Args:
            seconds: lifetime of the token.
            claims: entries that are added to the user's ``extra``, with the prefix authentication.kubernetes.io.
        """
        meta = account["metadata"]
        namespace, name, uid = meta["namespace"], meta["name"], meta["uid"]
        token = secrets.token_urlsafe(32)
        known = {"credential-id": f"JTI={uuid.uuid4()}", **(claims or {})}
        extra = {f"{_AUTHENTICATION}/{k}": (v,) for k, v in known.items()}
        user = account_user(namespace, name, uid, extra)
        all_bound = (Bound("serviceaccounts", namespace, name, uid), *bound)
        self._issued[token] = _Issued(user, time.time() + seconds, tuple(audiences) or (AUDIENCE,), all_bound)
        return token

    def of_component(self, name: str, groups: Sequence[str]) -> str:
        """Returns a token for a component of the cluster. The token never expires."""
        token = secrets.token_urlsafe(32)
        user = User(name, (*groups, "system:authenticated"), trusted=True)
        self._issued[token] = _Issued(user, math.inf, (AUDIENCE,), ())
        return token

    def user_of(self, token: str, storage: Storage, audiences: Collection[str] = (AUDIENCE,)) -> User | None:
        """Returns the user of a token.

        Returns None if the token is unknown, has expired or is for another audience, or if a bound object no longer exists.
        """
        if hmac.compare_digest(token.encode(errors="replace"), self.admin.encode()):
            return ADMIN
        found = self._issued.get(token)
        if found is None or found.expires <= time.time() or not set(audiences) & set(found.audiences):
            return None
        for bound in found.bound:
            obj = storage.get(bound.storage, bound.namespace, bound.name)
            if obj is None or obj["metadata"]["uid"] != bound.uid:
                return None
        return found.user


def account_user(namespace: str, name: str, uid: str = "", extra: Mapping[str, tuple[str, ...]] | None = None) -> User:
    """Returns the user of a service account."""
    groups = (_ACCOUNTS, f"{_ACCOUNTS}:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups, uid, extra or {})


def authenticate(request: Request, tokens: Tokens, storage: Storage, names: Collection[str] = ()) -> User:
    """Returns the user of a request.

    Args:
        names: host names of the addresses at which the server listens.

    Raises:
        StatusError: The token is missing or invalid, or the request comes from a web page or for a foreign host name.
    """
    _check_source(request, names)
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    user = tokens.user_of(token.strip(), storage) if kind.lower() == "bearer" else None
    if user is None:
        raise StatusError(401, "Unauthorized", "Unauthorized")
    return user


def impersonated(request: Request) -> User | None:
    """Returns the user that the request impersonates; None if it impersonates no user. Raises :class:`StatusError`."""
    headers = request.headers
    name = headers.get("impersonate-user", "")
    groups = tuple(g.strip() for g in headers.get("impersonate-group", "").split(",") if g.strip())
    uid = headers.get("impersonate-uid", "")
    extra = {
        unquote(k.removeprefix(_EXTRA)).lower(): tuple(part.strip() for part in v.split(","))
        for k, v in headers.items()
        if k.startswith(_EXTRA)
    }
    if not name:
        if groups or uid or extra:
            raise bad_request("requested groups, uid or extra to impersonate without impersonating a user")
        return None
    account = name.split(":")
    if name.startswith("system:serviceaccount:") and len(account) == 4 and not groups:
        return account_user(account[2], account[3], uid, extra)
    if name == "system:anonymous":
        return User(name, (*groups, "system:unauthenticated"), uid, extra)
    return User(name, tuple(dict.fromkeys((*groups, "system:authenticated"))), uid, extra)


def to_impersonate(user: User) -> Iterator[tuple[str, ...]]:
    """Yields the permissions that are necessary to impersonate ``user``: group, resource, subresource, namespace and name."""
    account = user.name.split(":")
    is_account = user.name.startswith("system:serviceaccount:") and len(account) == 4
    yield ("", "serviceaccounts", "", account[2], account[3]) if is_account else ("", "users", "", "", user.name)
    implied = {"system:authenticated", "system:unauthenticated"}
    if is_account:
        implied |= {_ACCOUNTS, f"{_ACCOUNTS}:{account[2]}"}
    for group in user.groups:
        if group not in implied:
            yield "", "groups", "", "", group
    if user.uid:
        yield "authentication.k8s.io", "uids", "", "", user.uid
    for key, values in user.extra.items():
        for value in values:
            yield "authentication.k8s.io", "userextras", key, "", value


def _check_source(request: Request, names: Collection[str]) -> None:
    if not is_safe_host(host_of(request), {*_LOCAL, *names}):
        host = request.headers.get("host", "")
        raise StatusError(403, "Forbidden", f"the request is for host {host!r}, which is not a name of this API server")
    origin = request.headers.get("origin")
    if origin is not None:
        raise StatusError(
            403, "Forbidden", f"requests from web pages are rejected: the request has the Origin {origin!r}"
        )
