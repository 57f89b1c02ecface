"""Adds the numbers of protobuf fields to the types of :mod:`.server_types`.

``wire`` of a field contains the numbers from the message of its type to the field. There are several numbers, joined with dots, if
fields are inline in JSON but in a separate message in protobuf, and if a list is wrapped in a message.

Source: the messages of Kubernetes 1.36 (package, message, field: number and type), and ``generated.proto`` of k8s.io/api 1.37 for
PodGroup. Fields that are new in 1.37 have their number in ``resourceapi/fields.toml`` of the framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
Messages = Mapping[str, Mapping[str, Mapping[str, tuple[int, str]]]]
_PACKAGES = ("k8s.io.api.", "k8s.io.apimachinery.pkg.", "k8s.io.apiextensions_apiserver.pkg.apis.")
_TAINT_RULE = ("DeviceTaintRule", "DeviceTaintRuleSpec", "DeviceTaintRuleStatus", "DeviceTaintSelector")
# Types of scheduling.k8s.io/v1beta1. The numbers of the fields are 1, 2, 3 and so on.
_POD_GROUP_FIELDS: Mapping[str, tuple[str, ...]] = {
    "PodGroup": ("metadata", "spec", "status"),
    "PodGroupSpec": (
        "parentCompositePodGroupName", "workloadRef", "schedulingPolicy", "schedulingConstraints", "resourceClaims",
        "disruptionMode", "priorityClassName", "priority", "preemptionPolicy",
    ),
    "PodGroupStatus": ("conditions", "resourceClaimStatuses"),
    "PodGroupResourceClaim": ("name", "resourceClaimName", "resourceClaimTemplateName"),
    "PodGroupResourceClaimStatus": ("name", "resourceClaimName"),
    "PodGroupSchedulingConstraints": ("topology",),
    "PodGroupSchedulingPolicy": ("basic", "gang"),
    "GangSchedulingPolicy": ("minCount",),
    "TopologyConstraint": ("key",),
    "WorkloadReference": ("workloadName", "templateName"),
    "DisruptionMode": ("single", "all"),
}  # fmt: skip


def numbered(types: Mapping[str, Schema], messages: Messages) -> dict[str, Schema]:
    """Returns the types with ``wire`` in each field that has a number."""
    return {name: _numbered(name, schema, messages) for name, schema in types.items()}


def _numbered(name: str, schema: Schema, messages: Messages) -> Schema:
    if "properties" not in schema:
        return schema
    names = {_plain(field): field for field in schema["properties"]}
    found = dict(_newer(name))
    for package in _PACKAGES:
        path, _, message = (package + name).rpartition(".")
        if message in messages.get(path, {}):
            found |= dict(_paths(path, message, schema["properties"], names, messages))
    properties = {k: {**v, "wire": found[k]} if k in found else v for k, v in schema["properties"].items()}
    return {**schema, "properties": properties}


def _plain(name: str) -> str:
    """Returns the part of a field's name that is the same in JSON and in protobuf."""
    return re.sub(r"\W", "", name).lower()


def _paths(
    package: str, message: str, properties: Schema, names: Mapping[str, str], messages: Messages
) -> Iterator[tuple[str, str]]:
    """Yields the name in JSON and the numbers of each field of a message, and of the messages that are inline in JSON."""
    for field, (number, kind) in messages[package][message].items():
        name = names.get(_plain(field))
        if name is not None:
            is_wrapped = properties[name].get("type") == "array" and not kind.startswith("repeated ")
            yield name, f"{number}.1" if is_wrapped else str(number)
            continue
        inner_package, _, inner = kind.removeprefix(".").rpartition(".")
        inner_package = inner_package or package
        if inner in messages.get(inner_package, {}):
            others = {k: v for k, v in names.items() if k not in {_plain(f) for f in messages[package][message]}}
            for inner_name, numbers in _paths(inner_package, inner, properties, others, messages):
                yield inner_name, f"{number}.{numbers}"


def _newer(name: str) -> Iterator[tuple[str, str]]:
    """Yields the numbers of fields that are new in 1.37."""
    if name.startswith("scheduling.v1beta1."):
        fields = _POD_GROUP_FIELDS.get(name.rpartition(".")[2], ())
        yield from ((field, str(i)) for i, field in enumerate(fields, 1))


def with_newer_messages(messages: Messages) -> Messages:
    """Returns the messages with DeviceTaintRule of v1, which has the numbers of v1beta2."""
    stable, beta = "k8s.io.api.resource.v1", "k8s.io.api.resource.v1beta2"
    return {**messages, stable: {**messages[stable], **{name: messages[beta][name] for name in _TAINT_RULE}}}


_TEXT: Schema = {"type": "string"}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def discovery_types() -> tuple[dict[str, str], dict[str, Schema]]:
    """Returns the kinds and the types of discovery documents that the published schemas do not contain."""
    meta = "apis.meta.v1."
    version, address = {"$ref": f"{meta}GroupVersionForDiscovery"}, {"$ref": f"{meta}ServerAddressByClientCIDR"}
    fields: Mapping[str, Schema] = {
        "APIGroup": {
            "name": _TEXT, "versions": _list(version), "preferredVersion": version,
            "serverAddressByClientCIDRs": _list(address),
        },
        "APIGroupList": {"groups": _list({"$ref": f"{meta}APIGroup"})},
        "APIVersions": {"versions": _list(_TEXT), "serverAddressByClientCIDRs": _list(address)},
        "GroupVersionForDiscovery": {"groupVersion": _TEXT, "version": _TEXT},
        "ServerAddressByClientCIDR": {"clientCIDR": _TEXT, "serverAddress": _TEXT},
    }  # fmt: skip
    types = {f"{meta}{name}": {"type": "object", "properties": properties} for name, properties in fields.items()}
    return {f"/v1/{kind}": f"{meta}{kind}" for kind in ("APIGroup", "APIGroupList", "APIVersions")}, types
