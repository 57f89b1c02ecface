"""Writes ``schemas/types.json`` of the devkit, the types of all kinds that the local API server serves.

    python -m tests.tools.server_types kubernetes-1.36.json kubernetes-1.36-protobuf.json /path/to/kubectl

The schemas are the OpenAPI v3 schemas of a server, with short names. kubectl's Go types add ``go`` to a field: ``p`` for a pointer and
``a`` for a field that is written even if it is empty. The protobuf messages add ``wire``: see ``protobuf_numbers``. The modules
``types_newer_fields``, ``types_pod_groups`` and ``types_network_policies`` contain the kinds that these sources lack.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from dra_kubeletplugin.base.json_types import JSON

from . import protobuf_numbers, types_network_policies, types_newer_fields, types_pod_groups
from .go_structs import GoField, read

OUT = Path(__file__).parents[2] / "packages/devkit/src/dra_devkit/schemas/types.json"
ROOTS = {
    "": (
        "Namespace", "Node", "Pod", "Event", "ServiceAccount", "ConfigMap", "Secret", "Service", "ResourceQuota",
        "LimitRange", "Binding", "Status", "DeleteOptions", "APIResourceList",
    ),
    "apps": ("DaemonSet", "Deployment", "ReplicaSet"),
    "batch": ("Job",),
    "coordination.k8s.io": ("Lease",),
    "events.k8s.io": ("Event",),
    "rbac.authorization.k8s.io": ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    "admissionregistration.k8s.io": (
        "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
    ),
    "scheduling.k8s.io": ("PriorityClass",),
    "policy": ("PodDisruptionBudget", "Eviction"),
    "apiextensions.k8s.io": ("CustomResourceDefinition",),
    "autoscaling": ("Scale",),
    "authorization.k8s.io": (
        "SelfSubjectAccessReview", "SubjectAccessReview", "LocalSubjectAccessReview", "SelfSubjectRulesReview",
    ),
    "authentication.k8s.io": ("SelfSubjectReview", "TokenRequest", "TokenReview"),
    "resource.k8s.io": (
        "ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "DeviceTaintRule",
        "ResourcePoolStatusRequest",
    ),
}  # fmt: skip
_OWN_MARKS = "resource.v1."  # types whose marks are in ``types_newer_fields``
_DROPPED = {"x-kubernetes-unions", "description"}


def short(name: str) -> str:
    for prefix in ("io.k8s.api.", "io.k8s.apimachinery.pkg.", "io.k8s.apiextensions-apiserver.pkg.apis."):
        name = name.removeprefix(prefix)
    return name


def go_name(name: str) -> str:
    """Returns the name of the Go type of a schema."""
    path = name.removeprefix("io.k8s.").split(".")
    return f"k8s.io/{'/'.join(path[:-1])}:{path[-2]}.{path[-1]}"


class Types:
    def __init__(self, schemas: JSON, structs: Mapping[str, list[GoField]]) -> None:
        self.schemas, self.structs = schemas, structs
        self.found: JSON = {}

    def add(self, name: str) -> str:
        key = short(name)
        if key not in self.found:
            self.found[key] = {}  # The entry exists before its fields are read, because types refer to themselves.
            schema = self._copied(self.schemas[name])
            marks = self._marks(go_name(name)) if not key.startswith(_OWN_MARKS) else {}
            for field, spec in schema.get("properties", {}).items():
                if field in marks:
                    spec["go"] = marks[field]
            self.found[key] = schema
        return key

    def _marks(self, name: str) -> dict[str, str]:
        out: dict[str, str] = {}
        for field in self.structs.get(name, ()):
            if field.json and field.json != "-":
                out[field.json] = ("p" if field.pointer else "") + ("" if field.omitted_when_empty else "a")
            elif not field.json and field.type in self.structs:
                out |= self._marks(field.type)
        return out

    def _copied(self, schema: JSON) -> JSON:
        """Returns a copy of a schema with short names. Names of properties are not treated as keywords of the schema."""
        if (all_of := schema.get("allOf")) and len(all_of) == 1:
            schema = {**all_of[0], **{k: v for k, v in schema.items() if k != "allOf"}}
        out: JSON = {}
        for key, value in schema.items():
            if key == "properties":
                out[key] = {name: self._copied(v) for name, v in value.items()}
            elif key in {"items", "additionalProperties"} and isinstance(value, dict):
                out[key] = self._copied(value)
            elif key == "$ref":
                out[key] = self.add(value.rpartition("/")[2])
            elif key not in _DROPPED:
                out[key] = value
        return out


def main(schemas: str, messages: str, kubectl: str) -> None:
    found = json.loads(Path(schemas).read_text())["schemas"]
    types = Types(found, read(Path(kubectl)))
    kinds = {}
    for name, schema in sorted(found.items()):
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            if gvk["kind"] in ROOTS.get(gvk["group"], ()):
                kinds[f"{gvk['group']}/{gvk['version']}/{gvk['kind']}"] = types.add(name)
    for schema in types.found.values():
        schema.pop("x-kubernetes-group-version-kind", None)
    write(kinds, types.found, json.loads(Path(messages).read_text()))


def extended(kinds: dict[str, str], types: JSON) -> tuple[dict[str, str], JSON]:
    """Returns the kinds and types, and those that the sources lack."""
    added = (
        types_pod_groups.kinds_and_types(),
        types_network_policies.kinds_and_types(),
        protobuf_numbers.discovery_types(),
    )
    for more_kinds, more_types in added:
        kinds, types = kinds | more_kinds, types | more_types
    return types_newer_fields.extended(kinds, types)


def write(kinds: dict[str, str], types: JSON, messages: JSON) -> None:
    """Writes the file, including the types that the sources lack."""
    kinds, types = extended(kinds, types)
    types = protobuf_numbers.numbered(types, protobuf_numbers.with_newer_messages(messages))
    content = json.dumps({"kinds": kinds, "types": types}, separators=(",", ":"), sort_keys=True)
    OUT.write_text(content.replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
