"""Issues tokens of service accounts on request, bound to a pod, a node or a secret (KEP-1205, KEP-4193)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.validation.field_errors import invalid

from .auth import AUDIENCE, Bound, Tokens
from .status_errors import StatusError, bad_request, invalid_object, unknown_object
from .storage import Storage

_GROUP = "authentication.k8s.io"
_DEFAULT_LIFETIME, _MIN_LIFETIME, _MAX_LIFETIME = 3600, 600, 2**32  # seconds
_KINDS = {"Pod": "pods", "Node": "nodes", "Secret": "secrets"}


def issue(storage: Storage, tokens: Tokens, account: JSON, spec: Mapping[str, Any]) -> JSON:
    """Issues a token. Returns the TokenRequest with its status. Raises :class:`StatusError`."""
    seconds = spec.get("expirationSeconds") or _DEFAULT_LIFETIME
    if not _MIN_LIFETIME <= seconds < _MAX_LIFETIME:
        fault = invalid("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
        raise invalid_object("TokenRequest", _GROUP, "", fault)
    audiences = spec.get("audiences") or [AUDIENCE]
    meta = account["metadata"]
    bound, claims = _bound(storage, meta["namespace"], spec.get("boundObjectRef"))
    if bound and bound[0].storage == "pods":
        pod = storage.get("pods", meta["namespace"], bound[0].name) or {}
        user = (pod.get("spec") or {}).get("serviceAccountName", "default")
        if user != meta["name"]:
            raise bad_request(
                f"cannot bind token for serviceaccount {meta['name']!r} to pod running with different serviceaccount name"
            )
    token = tokens.issue(account, seconds, audiences, bound, claims)
    expires = datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "kind": "TokenRequest",
        "apiVersion": f"{_GROUP}/v1",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "spec": {**spec, "audiences": audiences, "expirationSeconds": seconds},
        "status": {"token": token, "expirationTimestamp": expires},
    }


def _bound(storage: Storage, namespace: str, reference: Any) -> tuple[list[Bound], dict[str, str]]:
    """Returns the objects that the token is bound to, and the token's claims about them."""
    if reference is None:
        return [], {}
    kind, name = reference.get("kind", ""), reference.get("name", "")
    if kind not in _KINDS or reference.get("apiVersion") not in {None, "", "v1"}:
        raise bad_request(f"cannot bind token to object of type {reference.get('apiVersion') or ''}, Kind={kind}")
    where = "" if kind == "Node" else namespace
    obj = storage.get(_KINDS[kind], where, name)
    if obj is None:
        raise unknown_object(_KINDS[kind], name)
    uid = obj["metadata"]["uid"]
    if reference.get("uid") not in {None, "", uid}:
        message = (
            f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
            "The object might have been deleted and then recreated"
        )
        raise StatusError(409, "Conflict", f'Operation cannot be fulfilled on {_KINDS[kind]} "{name}": {message}')
    word = kind.lower()
    claims = {} if kind == "Secret" else {f"{word}-name": name, f"{word}-uid": uid}
    if kind == "Pod" and (node := (obj.get("spec") or {}).get("nodeName")):
        claims["node-name"] = node
        if found := storage.get("nodes", "", node):
            claims["node-uid"] = found["metadata"]["uid"]
    return [Bound(_KINDS[kind], where, name, uid)], claims
