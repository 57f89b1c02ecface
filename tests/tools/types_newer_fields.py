"""Adds DeviceTaintRule of v1 and the marks of v1 fields to the resource.k8s.io types of 1.36, for :mod:`.server_types`.

kubectl's marks do not fit: lists and maps of these types keep the form in which they were sent, because validation distinguishes an empty
list from an absent list. The fields of 1.37 are in ``resourceapi/fields.toml`` of the framework.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
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


def extended(kinds: Mapping[str, str], types: Mapping[str, Schema]) -> tuple[dict[str, str], dict[str, Schema]]:
    """Returns the tables with the marks and the additions of 1.37. The type DeviceTaintRule of v1 is a copy of the v1beta2 type."""
    out_kinds, out = dict(kinds), dict(types)
    beta, stable = "resource.v1beta2.", "resource.v1."
    for name, marks in _MARKS.items():
        known = out[f"{stable}{name}"]
        properties = {k: v | {"go": marks[k]} if k in marks else v for k, v in known["properties"].items()}
        out[f"{stable}{name}"] = {**known, "properties": properties}
    for name in [n for n in types if n.startswith(f"{beta}{_RULE}") or n == f"{beta}DeviceTaintSelector"]:
        out[name.replace(beta, stable)] = json.loads(json.dumps(types[name]).replace(beta, stable))
    out_kinds[f"resource.k8s.io/v1/{_RULE}"] = f"{stable}{_RULE}"
    return out_kinds, out
