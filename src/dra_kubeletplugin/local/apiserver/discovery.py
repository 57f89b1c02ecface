"""What clients ask before they ask for objects: groups, versions, resources, and a little OpenAPI for kubectl."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...resources.convert import GROUP
from .kinds import KINDS, Kind

JSON = dict[str, Any]
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
VERSION = "v1.36.2"


def answer(path: str, accept: str, served: Collection[str] | None = None) -> JSON | None:
    """The document at ``path``; None where it is no discovery path. ``served`` are the versions of resource.k8s.io, None for all."""
    parts = [p for p in path.split("/") if p]
    match parts:
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(g, served) for g in _groups(served)]}
        case ["api", "v1"]:
            return _resources("", "v1")
        case ["apis", group] if group in _groups(served):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, served)}
        case ["apis", group, version] if version in _versions(group, served):
            return _resources(group, version)
        case ["version"]:
            return {"major": "1", "minor": "36", "gitVersion": f"{VERSION}+dra-local", "platform": "linux/amd64"}
        case ["healthz" | "livez" | "readyz"]:
            return {"status": "ok"}
        case ["openapi", "v3"]:
            paths = {f"api{'s/' + g if g else ''}/{v}" for g in ["", *_groups(served)] for v in _versions(g, served)}
            return {"paths": {p: {"serverRelativeURL": f"/openapi/v3/{p}"} for p in sorted(paths)}}
        case ["openapi", "v3", "api", "v1"]:
            return _openapi("", "v1")
        case ["openapi", "v3", "apis", group, version] if version in _versions(group, served):
            return _openapi(group, version)
    del accept
    return None


def _groups(served: Collection[str] | None) -> list[str]:
    return sorted({k.group for k in KINDS if k.group and _versions(k.group, served)})


def _versions(group: str, served: Collection[str] | None) -> list[str]:
    versions = next((k.versions for k in KINDS if k.group == group), ())
    return [v for v in versions if is_served(group, v, served)]


def is_served(group: str, version: str, served: Collection[str] | None) -> bool:
    return group != GROUP or served is None or version in served


def _group(group: str, served: Collection[str] | None) -> JSON:
    versions = [{"groupVersion": f"{group}/{v}", "version": v} for v in _versions(group, served)]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str) -> JSON:
    out = []
    for kind in KINDS:
        if kind.group != group or version not in kind.versions:
            continue
        entry: JSON = {
            "name": kind.plural,
            "singularName": kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": _VERBS,
        }
        if kind.short:
            entry["shortNames"] = list(kind.short)
        out.append(entry)
        if kind.status:
            status = {
                "name": f"{kind.plural}/status",
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind.kind,
            }
            out.append({**status, "verbs": ["get", "patch", "update"]})
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": out,
    }


def _openapi(group: str, version: str) -> JSON:
    """Says of every kind that the server validates fields itself, so that kubectl leaves it to us."""
    paths: JSON = {}
    for kind in KINDS:
        if kind.group == group and version in kind.versions:
            paths[_path(kind, version)] = {"patch": _operation(kind, version)}
    title = {"title": "Kubernetes", "version": VERSION}
    return {"openapi": "3.0.0", "info": title, "paths": paths, "components": {"schemas": _schemas(group, version)}}


def _path(kind: Kind, version: str) -> str:
    head = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
    return f"{head}{'/namespaces/{namespace}' if kind.namespaced else ''}/{kind.plural}/{{name}}"


def _gvk(kind: Kind, version: str) -> JSON:
    return {"group": kind.group, "version": version, "kind": kind.kind}


def _operation(kind: Kind, version: str) -> JSON:
    names = ("dryRun", "fieldManager", "fieldValidation", "force")
    parameters = [{"name": n, "in": "query", "schema": {"type": "string"}} for n in names]
    return {
        "operationId": f"patch{kind.kind}{version}",
        "parameters": parameters,
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": _gvk(kind, version),
        "responses": {"200": {"description": "OK"}},
    }


def _schemas(group: str, version: str) -> JSON:
    out: JSON = {}
    for kind in KINDS:
        if kind.group == group and version in kind.versions:
            name = f"io.k8s.api.{kind.group or 'core'}.{version}.{kind.kind}"
            out[name] = {
                "type": "object",
                "description": f"{kind.kind}, served by the local cluster.",
                "x-kubernetes-preserve-unknown-fields": True,
                "x-kubernetes-group-version-kind": [_gvk(kind, version)],
            }
    return out
