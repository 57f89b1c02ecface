"""Makes the OpenAPI v3 and v2 documents of the served kinds, for ``kubectl explain`` and for validation in clients."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

from ...schemas import openapi_wire, tables
from .discovery import Discovery
from .kinds import Registry, ServedKind

_MACHINERY = ("apis.meta.", "api.resource.", "runtime.", "util.")
_TABLE_KEYS = {"go", "wire"}  # keys in the tables of types that are not part of OpenAPI
_OPTIONS = ("dryRun", "fieldManager", "fieldValidation", "force")
_V3, _V2 = "#/components/schemas/", "#/definitions/"


class OpenApi:
    def __init__(self, registry: Registry, discovery: Discovery) -> None:
        self.registry, self.discovery = registry, discovery

    def document_at(self, path: str, served: Collection[str], accept: str) -> JSON | bytes | None:
        """Returns the document at ``path``; None if there is no document. Encodes version 2 in protobuf if the client accepts only that."""
        match [p for p in path.split("/") if p]:
            case ["openapi", "v3"]:
                found = [("", "v1")]
                found += [(g, v) for g in self.discovery.groups(served) for v in self.discovery.versions(g, served)]
                paths = {f"apis/{g}/{v}" if g else f"api/{v}" for g, v in found}
                return {"paths": {p: {"serverRelativeURL": f"/openapi/v3/{p}"} for p in sorted(paths)}}
            case ["openapi", "v3", "api", "v1"]:
                return self._document("", "v1")
            case ["openapi", "v3", "apis", group, version] if version in self.discovery.versions(group, served):
                return self._document(group, version)
            case ["openapi", "v2"]:
                document = self._version_2(served)
                return openapi_wire.encode(document) if "proto" in accept and "json" not in accept else document
        return None

    def _kinds(self, group: str, version: str) -> Iterator[ServedKind]:
        return (k for k in self.registry if k.group == group and version in k.versions)

    def _document(self, group: str, version: str) -> JSON:
        paths: JSON = {}
        schemas: JSON = {}
        for kind in self._kinds(group, version):
            paths |= _paths(kind, version, _V3)
            schemas |= _schemas(kind, version, _V3)
        title = {"title": "Kubernetes", "version": self.discovery.version}
        return {"openapi": "3.0.0", "info": title, "paths": paths, "components": {"schemas": schemas}}

    def _version_2(self, served: Collection[str]) -> JSON:
        paths: JSON = {}
        definitions: JSON = {}
        for group in ["", *self.discovery.groups(served)]:
            for version in self.discovery.versions(group, served):
                for kind in self._kinds(group, version):
                    paths |= _as_version_2(_paths(kind, version, _V2))
                    definitions |= _schemas(kind, version, _V2)
        title = {"title": "Kubernetes", "version": self.discovery.version}
        return {"swagger": "2.0", "info": title, "paths": paths, "definitions": definitions}


def _as_version_2(paths: JSON) -> JSON:
    """Converts operations to version 2, in which the types of parameters and responses have another place."""
    for operation in (o for item in paths.values() for o in item.values()):
        operation["parameters"] = [
            {"name": p["name"], "in": p["in"], "type": "string"} for p in operation["parameters"]
        ]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        operation["responses"] = {"200": {"description": "OK", "schema": schema}}
    return paths


def full_name(name: str) -> str:
    """Returns the name of a type in Kubernetes' OpenAPI documents."""
    if name.startswith(_MACHINERY):
        return f"io.k8s.apimachinery.pkg.{name}"
    if name.startswith("apiextensions."):
        return f"io.k8s.apiextensions-apiserver.pkg.apis.{name}"
    return f"io.k8s.api.{name}"


def _gvk(kind: ServedKind, version: str) -> JSON:
    return {"group": kind.group, "version": version, "kind": kind.kind}


def _name_of(kind: ServedKind, version: str) -> str:
    found = tables.name_of(kind.group, version, kind.kind)
    if found:
        return full_name(found)
    return ".".join([*reversed(kind.group.split(".")), version, kind.kind])


def _paths(kind: ServedKind, version: str, references: str) -> JSON:
    head = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
    collection = f"{head}{'/namespaces/{namespace}' if kind.namespaced else ''}/{kind.plural}"
    response = {
        "description": "OK",
        "content": {"application/json": {"schema": {"$ref": references + _name_of(kind, version)}}},
    }
    gvk = _gvk(kind, version)

    def operation(verb: str, action: str) -> JSON:
        parameters = [{"name": n, "in": "query", "schema": {"type": "string"}} for n in _OPTIONS]
        return {
            "operationId": f"{verb}{kind.group.partition('.')[0].title()}{version.title()}{kind.kind}",
            "parameters": parameters,
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk,
            "responses": {"200": response},
        }

    out = {
        collection: {"get": operation("list", "list"), "post": operation("create", "post")},
        f"{collection}/{{name}}": {"get": operation("read", "get"), "patch": operation("patch", "patch")},
    }
    if kind.namespaced:
        out[f"{head}/{kind.plural}"] = {"get": operation("listAll", "list")}
    return out


def _schemas(kind: ServedKind, version: str, references: str) -> JSON:
    """Returns the kind's schema and all schemas that it refers to."""
    name = tables.name_of(kind.group, version, kind.kind)
    marked = {"x-kubernetes-group-version-kind": [_gvk(kind, version)]}
    if name is None:
        return _custom(kind, version, references, marked)
    out = _with_references(name, references)
    out[full_name(name)] |= marked
    return out


def _with_references(name: str, references: str) -> dict[str, JSON]:
    """Returns the schema of a type and all schemas that it refers to, by their full names."""
    out: dict[str, JSON] = {}
    waiting = [name]
    while waiting:
        at = waiting.pop()
        if full_name(at) not in out:
            out[full_name(at)] = _published(tables.named(at), references, waiting)
    return out


_META = "apis.meta.v1.ObjectMeta"
_UNKNOWN = "x-kubernetes-preserve-unknown-fields"


def _custom(kind: ServedKind, version: str, references: str, marked: JSON) -> JSON:
    """Returns a custom kind's schema, with the fields that all objects have."""
    own = dict(kind.schemas.get(version) or {"type": "object", _UNKNOWN: True})
    if references == _V2:
        own = _loosened(own)
    if "properties" in own or _UNKNOWN not in own:
        text = {"type": "string"}
        always = {"apiVersion": text, "kind": text, "metadata": {"$ref": references + full_name(_META)}}
        own["properties"] = {**(own.get("properties") or {}), **always}
    return {**_with_references(_META, references), _name_of(kind, version): {**own, **marked}}


def _loosened(schema: Mapping[str, Any]) -> JSON:
    """Returns a schema without the properties that version 2 does not have: preserved unknown fields, several types, null."""
    out = {k: v for k, v in schema.items() if k not in {"properties", "items", "additionalProperties", "nullable"}}
    if schema.get(_UNKNOWN):
        return {k: v for k, v in out.items() if k != "type"}
    if schema.get("nullable") or schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
    if properties := schema.get("properties"):
        out["properties"] = {n: _loosened(v) for n, v in properties.items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            out[key] = _loosened(schema[key]) if isinstance(schema[key], Mapping) else schema[key]
    return out


def _published(schema: Mapping[str, Any], references: str, waiting: list[str]) -> JSON:
    out: JSON = {}
    for key, value in schema.items():
        if key in _TABLE_KEYS:
            continue
        if key == "$ref":
            waiting.append(value)
            out[key] = references + full_name(value)
        elif key == "properties":
            out[key] = {n: _published(v, references, waiting) for n, v in value.items()}
        elif key in {"items", "additionalProperties"} and isinstance(value, Mapping):
            out[key] = _published(value, references, waiting)
        else:
            out[key] = value
    if "$ref" in out and len(out) > 1:
        out["allOf"] = [{"$ref": out.pop("$ref")}]
    return out
