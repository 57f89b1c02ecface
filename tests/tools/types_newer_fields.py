"""Adds the fields of Kubernetes 1.37 to the resource.k8s.io types of 1.36, for :mod:`.server_types`.

This module also contains the marks of v1 fields. kubectl's marks do not fit: lists and maps of these types keep the form in which they
were sent, because validation distinguishes an empty list from an absent list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
_VERSIONS = ("v1", "v1beta2", "v1beta1")
_TEXT: Schema = {"type": "string"}
_QUANTITY: Schema = {"$ref": "api.resource.Quantity"}
_TEXTS: Schema = {"type": "array", "items": {**_TEXT, "default": ""}, "x-kubernetes-list-type": "atomic"}
_SET: Schema = {**_TEXTS, "x-kubernetes-list-type": "set"}
_RULE = "DeviceTaintRule"
_REQUEST = {"allocationMode": "", "count": ""}
# Marks of Go fields in v1 (see ``shapes.Field``) that differ from the marks that ``shapes`` assumes without them.
_MARKS: Mapping[str, Mapping[str, str]] = {
    "AllocatedDeviceStatus": {"conditions": "pa"},
    "CapacityRequestPolicy": {"default": "pa"},
    "CapacityRequestPolicyRange": {"min": "p"},
    "DeviceClaim": {"requests": "pa"},
    "DeviceSubRequest": _REQUEST,
    "DeviceTaint": {"value": ""},
    "DeviceToleration": dict.fromkeys(("key", "operator", "value", "effect"), ""),
    "ExactDeviceRequest": _REQUEST,
    "NetworkDeviceData": {"interfaceName": "", "hardwareAddress": ""},
    "ResourceClaim": {"status": "p"},  # not written before the claim has a status
    "ResourceClaimConsumerReference": {"apiGroup": ""},
}


def _reference(name: str) -> Schema:
    return {"$ref": name}


def _struct(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields}


def _derived(version: str) -> Schema:
    item = {"default": {}, **_reference(f"resource.{version}.DeviceDerivedAttribute")}
    key = {"x-kubernetes-list-map-keys": ["name"], "x-kubernetes-list-type": "map"}
    return {"type": "array", "items": item, **key}


def _fields(version: str) -> Iterator[tuple[str, str, Schema]]:
    """Yields each added field: type, field and schema."""
    old = version == "v1beta1"
    resources = {"type": "object", "additionalProperties": _reference(f"resource.{version}.NodeAllocatableResource")}
    yield "ResourceSliceSpec", "partitionTypeAttribute", _TEXT
    yield "ResourceSliceSpec", "skipNodeOperations", _SET
    yield "DeviceRequestAllocationResult", "skipNodeOperations", _SET
    yield "DeviceCounterConsumption", "compatibilityGroups", _TEXTS
    yield "BasicDevice" if old else "Device", "nodeAllocatableResources", resources
    yield "DeviceRequest" if old else "ExactDeviceRequest", "derivedAttributes", _derived(version)
    yield "DeviceSubRequest", "derivedAttributes", _derived(version)


def _types(version: str) -> Iterator[tuple[str, Schema]]:
    mapping = _struct(capacityKey=_TEXT, capacityMultiplier=_QUANTITY, deviceMultiplier=_QUANTITY)
    yield "NodeAllocatableMapping", mapping
    yield "NodeAllocatableOverhead", _struct(perContainer=_QUANTITY, perPod=_QUANTITY)
    at = f"resource.{version}."
    parts = {"mapping": f"{at}NodeAllocatableMapping", "overhead": f"{at}NodeAllocatableOverhead"}
    yield "NodeAllocatableResource", _struct(**{k: _reference(v) for k, v in parts.items()})
    required = {"required": ["name", "expression"]}
    yield "DeviceDerivedAttribute", {**_struct(name=_TEXT, expression=_TEXT), **required}


def extended(kinds: Mapping[str, str], types: Mapping[str, Schema]) -> tuple[dict[str, str], dict[str, Schema]]:
    """Returns the tables with the additions of 1.37. The type DeviceTaintRule of v1 is a copy of the v1beta2 type."""
    out_kinds, out = dict(kinds), dict(types)
    for version in _VERSIONS:
        out |= {f"resource.{version}.{name}": schema for name, schema in _types(version)}
        for name, field, schema in _fields(version):
            known = out[f"resource.{version}.{name}"]
            properties = {**known["properties"], field: schema}
            out[f"resource.{version}.{name}"] = {**known, "properties": properties}
    beta, stable = "resource.v1beta2.", "resource.v1."
    for name, marks in _MARKS.items():
        known = out[f"{stable}{name}"]
        properties = {k: v | {"go": marks[k]} if k in marks else v for k, v in known["properties"].items()}
        out[f"{stable}{name}"] = {**known, "properties": properties}
    for name in [n for n in types if n.startswith(f"{beta}{_RULE}") or n == f"{beta}DeviceTaintSelector"]:
        out[name.replace(beta, stable)] = json.loads(json.dumps(types[name]).replace(beta, stable))
    out_kinds[f"resource.k8s.io/v1/{_RULE}"] = f"{stable}{_RULE}"
    return out_kinds, out
