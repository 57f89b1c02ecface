"""What a request names and how it is answered: targets, refusals, Status objects."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from ...observe.http import Request, Response
from ...resources.defaults import now
from .kinds import BY_PLURAL, Kind

JSON = dict[str, Any]


class Refusal(Exception):
    """An answer that is a Status of failure."""

    def __init__(self, code: int, reason: str, message: str, details: JSON | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.details = code, reason, details or {}


@dataclass(frozen=True)
class Target:
    kind: Kind
    version: str
    namespace: str
    name: str
    sub: str

    @property
    def qualified(self) -> str:
        return self.kind.key


def parse_path(path: str) -> Target:
    parts = [p for p in path.split("/") if p]
    group = ""
    try:
        if parts[0] == "api":
            version, rest = parts[1], parts[2:]
        elif parts[0] == "apis":
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise IndexError
        namespace = ""
        if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
            namespace, rest = rest[1], rest[2:]
        kind = BY_PLURAL[group, version, rest[0]]
        name = rest[1] if len(rest) > 1 else ""
        sub = rest[2] if len(rest) > 2 else ""
    except (IndexError, KeyError):
        raise Refusal(404, "NotFound", "the server could not find the requested resource") from None
    if sub and not (sub == "status" and kind.status) and not (sub == "binding" and kind.kind == "Pod"):
        raise Refusal(404, "NotFound", "the server could not find the requested resource")
    return Target(kind, version, namespace, name, sub)


def resource_version(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refusal(400, "BadRequest", f"invalid resource version {text!r}") from None


def body_of(request: Request) -> Any:
    try:
        return msgspec.json.decode(request.body)
    except msgspec.DecodeError:
        pass
    try:
        import yaml

        found = yaml.safe_load(request.body)
    except Exception as e:
        raise Refusal(400, "BadRequest", f"the body cannot be read: {e}") from None
    if not isinstance(found, (dict, list)):
        raise Refusal(400, "BadRequest", "the body is no object")
    return found


def new_metadata(meta: JSON) -> JSON:
    kept = {k: v for k, v in meta.items() if k not in {"resourceVersion", "selfLink", "managedFields"}}
    return kept | {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}


def managed_of(obj: JSON) -> Any:
    return obj["metadata"].get("managedFields")


def sort_key(obj: JSON) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def same_object(a: JSON, b: JSON) -> bool:
    def bare(o: JSON) -> JSON:
        meta = {k: v for k, v in o["metadata"].items() if k != "resourceVersion"}
        return {**{k: v for k, v in o.items() if k not in {"apiVersion", "kind"}}, "metadata": meta}

    return bare(a) == bare(b)


def wants_table(request: Request) -> bool:
    return "as=Table" in request.headers.get("accept", "")


def json_response(obj: Any, code: int = 200) -> Response:
    return Response(code, msgspec.json.encode(obj))


def status_response(e: Refusal) -> Response:
    body: JSON = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    body |= {"message": str(e), "reason": e.reason, "details": e.details, "code": e.code}
    return json_response(body, e.code)


def not_found(target: Target) -> Refusal:
    details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural}
    return Refusal(404, "NotFound", f'{target.qualified} "{target.name}" not found', details)


def conflict(target: Target, why: str) -> Refusal:
    message = f'Operation cannot be fulfilled on {target.qualified} "{target.name}": {why}'
    return Refusal(
        409, "Conflict", message, {"name": target.name, "group": target.kind.group, "kind": target.kind.plural}
    )
