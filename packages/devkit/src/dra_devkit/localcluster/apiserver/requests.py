"""Parses the path and the options of a request, and builds responses: JSON, warnings and Status objects."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.defaulting import now

from .kinds import Registry, ServedKind
from .status_errors import StatusError, bad_request, no_resource

_TRUE = {"true", "1", "t", "T", "TRUE", "True"}
_FALSE = {"", "false", "0", "f", "F", "FALSE", "False"}


@dataclass(frozen=True)
class RequestInfo:
    kind: ServedKind
    version: str
    namespace: str
    name: str
    sub: str

    @property
    def storage(self) -> str:
        return self.kind.storage

    def of(self, name: str) -> RequestInfo:
        """Returns the target of a request for one object of this resource."""
        return RequestInfo(self.kind, self.version, self.namespace, name, "")


_MISSING = ("pods/resize", "pods/ephemeralcontainers")


def parse_path(path: str, registry: Registry) -> RequestInfo:
    """Returns the resource and object that a path refers to. Raises :class:`StatusError` if the server has no such resource."""
    parts = [p for p in path.split("/") if p]
    group = ""
    if parts[:1] == ["api"] and len(parts) >= 3:
        version, rest = parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_resource()
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and not (group == "" and rest[2] in {"status", "finalize"}):
        namespace, rest = rest[1], rest[2:]
    kind = registry.find(group, version, rest[0])
    if kind is None or (namespace and not kind.namespaced):
        raise no_resource()
    name, sub = (*rest[1:3], "", "")[:2]
    tail = "/".join(rest[3:])
    if sub and not (sub == "status" and kind.status) and sub not in kind.subresources:
        known = f"{kind.plural}/{sub}"
        raise no_resource(known if known in _MISSING else "")
    if tail or (name and kind.namespaced and not namespace):
        raise no_resource()
    return RequestInfo(kind, version, namespace, name, sub)


# --- options ----------------------------------------------------------------------------------------


def flag(request: Request, name: str) -> bool:
    """Returns a boolean option of the query. Raises :class:`StatusError` for any other value."""
    text = request.query.get(name, "")
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise bad_request(f'{name}: strconv.ParseBool: parsing "{text}": invalid syntax')


def number(request: Request, name: str) -> int | None:
    """Returns an integer option of the query; None if it is absent. Raises :class:`StatusError` for any other value."""
    text = request.query.get(name, "")
    if not text:
        return None
    try:
        value = int(text) if text.isascii() else None
    except ValueError:
        value = None
    if value is None or not -(2**63) <= value < 2**63:
        raise bad_request(f'{name}: strconv.ParseInt: parsing "{text}": invalid syntax')
    return value


def check_name(target: RequestInfo, name: object) -> None:
    """Raises :class:`StatusError` if a body and its URL name different objects."""
    if name != target.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")


def resource_version(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    raise bad_request(f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')


def dry_run(request: Request, options: Mapping[str, Any] | None = None) -> bool:
    """Returns whether the request is a dry run. Raises :class:`StatusError` for an unknown value."""
    values = [v for v in [request.query.get("dryRun", ""), *((options or {}).get("dryRun") or ())] if v]
    if unsupported := next((v for v in values if v != "All"), None):
        raise bad_request(f'dryRun: Unsupported value: "{unsupported}": supported values: "All"')
    return bool(values)


# --- objects ----------------------------------------------------------------------------------------


def new_metadata(meta: JSON) -> JSON:
    """Returns the metadata of a new object, with UID and creation time."""
    kept = {k: v for k, v in meta.items() if k not in {"resourceVersion", "selfLink", "managedFields"}}
    kept.pop("deletionTimestamp", None)
    kept.pop("deletionGracePeriodSeconds", None)
    return kept | {"uid": str(uuid.uuid4()), "creationTimestamp": now()}


def managed_of(obj: JSON) -> Any:
    return obj["metadata"].get("managedFields")


def sort_key(obj: JSON) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def same_object(a: JSON, b: JSON) -> bool:
    def bare(o: JSON) -> JSON:
        meta = {k: v for k, v in o["metadata"].items() if k != "resourceVersion"}
        return {**{k: v for k, v in o.items() if k not in {"apiVersion", "kind"}}, "metadata": meta}

    return bare(a) == bare(b)


# --- responses --------------------------------------------------------------------------------------


def table_of(request: Request) -> str | None:
    """Returns the part of each object in a table: "None", "Metadata" or "Object". Returns None if the request is not for a table."""
    if "as=Table" not in request.headers.get("accept", ""):
        return None
    return request.query.get("includeObject") or "Metadata"


def json_response(obj: Any, code: int = 200, warnings: Sequence[str] = ()) -> Response:
    headers = {"Warning": ", ".join(f'299 - "{_quoted(w)}"' for w in warnings)} if warnings else {}
    return Response(code, msgspec.json.encode(obj), headers=headers)


def _quoted(text: str) -> str:
    plain = "".join(c if c.isprintable() and c.isascii() else "?" for c in text)
    return plain.replace("\\", "\\\\").replace('"', '\\"')


def status_response(e: StatusError) -> Response:
    body: JSON = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    body |= {"message": str(e), "reason": e.reason, "details": e.details, "code": e.code}
    return json_response(body, e.code)


def success(code: int = 200, details: JSON | None = None) -> Response:
    body: JSON = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return json_response(body | ({"details": details} if details else {"code": code}), code)


def details_of(target: RequestInfo, name: str = "") -> JSON:
    return {"name": name or target.name, "group": target.kind.group, "kind": target.kind.plural}


def not_found(target: RequestInfo) -> StatusError:
    return StatusError(404, "NotFound", f'{target.kind.key} "{target.name}" not found', details_of(target))


def conflict(target: RequestInfo, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {target.kind.key} "{target.name}": {why}'
    return StatusError(409, "Conflict", message, details_of(target))


def forbidden(target: RequestInfo, meta: JSON, why: str, details: JSON | None = None) -> StatusError:
    """Returns the error with which admission rejects an object with the metadata ``meta``."""
    name = meta.get("name") or meta.get("generateName", "")
    message = f'{target.kind.key} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", message, details_of(target, name) | (details or {}))
