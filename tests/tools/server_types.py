"""Writes ``resourceapi/schemas/types.json``, the types of all kinds that the local API server serves.

    python -m tests.tools.server_types kubernetes-1.36.json /path/to/kubectl

The schemas are the OpenAPI v3 schemas of a server, with short names. kubectl's Go types add ``go`` to a field: its protobuf number,
then ``p`` for a pointer and ``a`` for a field that is written even if it is empty. ``nested`` of a type contains the fields that are
inline in JSON but in a separate message in protobuf. The modules ``types_newer_fields`` and ``types_pod_groups`` contain the types
that these sources lack.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import types_newer_fields, types_pod_groups
from .go_structs import GoField, read

JSON = dict[str, Any]
OUT = Path(__file__).parents[2] / "src/dra_kubeletplugin/resourceapi/schemas/types.json"
ROOTS = {
    "": (
        "Namespace", "Node", "Pod", "Event", "ServiceAccount", "ConfigMap", "Secret", "Service", "ResourceQuota",
        "LimitRange", "Binding", "Status", "DeleteOptions",
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
    "resource.k8s.io": ("ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "DeviceTaintRule"),
}  # fmt: skip
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
            numbers, nested = self._wire(go_name(name))
            for field, spec in schema.get("properties", {}).items():
                if field in numbers:
                    spec["go"] = numbers[field]
            self.found[key] = schema | ({"nested": nested} if nested else {})
        return key

    def _wire(self, name: str) -> tuple[dict[str, str], JSON]:
        numbers: dict[str, str] = {}
        nested: JSON = {}
        for field in self.structs.get(name, ()):
            if field.json and field.json != "-":
                marks = ("p" if field.pointer else "") + ("" if field.omitted_when_empty else "a")
                numbers[field.json] = f"{field.number or ''}{marks}"
            elif not field.json and field.type in self.structs:
                inner, _ = self._wire(field.type)
                digits = {f: n.rstrip("pa") for f, n in inner.items()}
                nested[str(field.number)] = {n: f for f, n in digits.items()}
                numbers |= {f: n.lstrip("0123456789") for f, n in inner.items()}
        return numbers, nested

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


def main(schemas: str, kubectl: str) -> None:
    found = json.loads(Path(schemas).read_text())["schemas"]
    types = Types(found, read(Path(kubectl)))
    kinds = {}
    for name, schema in sorted(found.items()):
        for gvk in schema.get("x-kubernetes-group-version-kind", ()):
            if gvk["kind"] in ROOTS.get(gvk["group"], ()):
                kinds[f"{gvk['group']}/{gvk['version']}/{gvk['kind']}"] = types.add(name)
    for schema in types.found.values():
        schema.pop("x-kubernetes-group-version-kind", None)
    write(kinds, types.found)


def write(kinds: dict[str, str], types: JSON) -> None:
    """Writes the file, including the types that the sources lack."""
    more_kinds, more_types = types_pod_groups.kinds_and_types()
    kinds, types = types_newer_fields.extended(kinds | more_kinds, types | more_types)
    content = json.dumps({"kinds": kinds, "types": types}, separators=(",", ":"), sort_keys=True)
    OUT.write_text(content.replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
