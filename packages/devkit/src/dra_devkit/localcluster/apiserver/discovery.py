"""API discovery: the served groups, versions and resources, and the server's version."""

from __future__ import annotations

from collections.abc import Collection

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.conversion import GROUP

from .kinds import Registry, ServedKind

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_NEWEST_FIRST = ("v1", "v1beta2", "v1beta1", "v1alpha3")
# subresource → its verbs, and the kind of its objects if that differs from the kind of the resource
_SUBRESOURCES: dict[str, tuple[list[str], JSON]] = {
    "status": (["get", "patch", "update"], {}),
    "scale": (["get", "patch", "update"], {"group": "autoscaling", "version": "v1", "kind": "Scale"}),
    "binding": (["create"], {"kind": "Binding"}),
    "eviction": (["create"], {"group": "policy", "version": "v1", "kind": "Eviction"}),
    "token": (["create"], {"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"}),
    "log": (["get"], {}),
    "finalize": (["update"], {}),
    "exec": (["create", "get"], {"kind": "PodExecOptions"}),
    "attach": (["create", "get"], {"kind": "PodAttachOptions"}),
    "portforward": (["create", "get"], {"kind": "PodPortForwardOptions"}),
}
_UNLISTED = {("ResourceClaim", "binding"), ("ResourceClaim", "driver")}  # exist in RBAC rules only


class Discovery:
    """The discovery documents of one server. The argument ``served`` of its methods contains the served versions of resource.k8s.io."""

    def __init__(self, registry: Registry, version: str) -> None:
        self.registry = registry
        self.version = version

    def document_at(self, path: str, served: Collection[str]) -> JSON | None:
        """Returns the document at ``path``; None if it is not a discovery path."""
        match [p for p in path.split("/") if p]:
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
            case ["apis"]:
                groups = [self._group(g, served) for g in self.groups(served)]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["api", "v1"]:
                return self._resources("", "v1")
            case ["apis", group] if group in self.groups(served):
                return {"kind": "APIGroup", "apiVersion": "v1", **self._group(group, served)}
            case ["apis", group, version] if version in self.versions(group, served):
                return self._resources(group, version)
            case ["version"]:
                minor = self.version.split(".")[1]
                version_info = {"major": "1", "minor": minor, "gitVersion": f"{self.version}+dra-local"}
                return {**version_info, "platform": "linux/amd64"}
            case ["healthz" | "livez" | "readyz"]:
                return {"status": "ok"}
        return None

    def groups(self, served: Collection[str]) -> list[str]:
        return sorted({k.group for k in self.registry if k.group and self.versions(k.group, served)})

    def versions(self, group: str, served: Collection[str]) -> list[str]:
        found = dict.fromkeys(v for k in self.registry if k.group == group for v in k.versions)
        order = {v: i for i, v in enumerate(_NEWEST_FIRST)}
        return sorted((v for v in found if is_served(group, v, served)), key=lambda v: order.get(v, len(order)))

    def _group(self, group: str, served: Collection[str]) -> JSON:
        versions = [{"groupVersion": f"{group}/{v}", "version": v} for v in self.versions(group, served)]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _resources(self, group: str, version: str) -> JSON:
        out: list[JSON] = []
        for kind in self.registry:
            if kind.group == group and version in kind.versions:
                out += _entries(kind)
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": out,
        }


def is_served(group: str, version: str, served: Collection[str]) -> bool:
    return group != GROUP or version in served


def _entries(kind: ServedKind) -> list[JSON]:
    entry: JSON = {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": ["create"] if kind.virtual else _VERBS,
    }
    if kind.short:
        entry["shortNames"] = list(kind.short)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    out = [entry]
    for sub in (*(("status",) if kind.status else ()), *kind.subresources):
        if (kind.kind, sub) in _UNLISTED:
            continue
        verbs, other = _SUBRESOURCES[sub]
        named: JSON = {"name": f"{kind.plural}/{sub}", "singularName": "", "namespaced": kind.namespaced}
        out.append({**named, "kind": kind.kind, "verbs": verbs, **other})
    return out
