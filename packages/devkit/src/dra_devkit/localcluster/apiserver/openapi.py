"""Makes the OpenAPI v3 documents of the served kinds. They contain no schemas: kubectl reads that the server validates the fields.

kubectl requests version 2 for lists of mixed kinds only, always in protobuf, and skips its own validation of kinds without a schema
there. So version 2 is an empty document, and the server validates the objects.
"""

from __future__ import annotations

from collections.abc import Collection

from dra_kubeletplugin.base.json_types import JSON

from .discovery import Discovery
from .kinds import Registry, ServedKind

_OPTIONS = ("dryRun", "fieldManager", "fieldValidation", "force")
VERSION_2 = "/openapi/v2"
EMPTY = b"\n\x032.0\x12\x0c\n\nKubernetes"
"""A document without kinds, as the message ``openapi.v2.Document`` of github.com/google/gnostic."""
PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


class OpenApi:
    def __init__(self, registry: Registry, discovery: Discovery) -> None:
        self.registry, self.discovery = registry, discovery

    def document_at(self, path: str, served: Collection[str]) -> JSON | None:
        """Returns the document at ``path``; None if there is no document."""
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
        return None

    def _document(self, group: str, version: str) -> JSON:
        kinds = [k for k in self.registry if k.group == group and version in k.versions]
        info = {"title": "Kubernetes", "version": self.discovery.version}
        return {"openapi": "3.0.0", "info": info, "paths": dict(_path(k, version) for k in kinds)}


def _path(kind: ServedKind, version: str) -> tuple[str, JSON]:
    head = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
    patch = {
        "operationId": f"patch{kind.group.partition('.')[0].title()}{version.title()}{kind.kind}",
        "parameters": [{"name": n, "in": "query", "schema": {"type": "string"}} for n in _OPTIONS],
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {"group": kind.group, "version": version, "kind": kind.kind},
        "responses": {"200": {"description": "OK"}},
    }
    return f"{head}{'/namespaces/{namespace}' if kind.namespaced else ''}/{kind.plural}/{{name}}", {"patch": patch}
