"""Converts objects between resource.k8s.io/v1, v1beta2 and v1beta1.

v1 and v1beta2 have the same shape. v1beta1 wraps a device's fields in ``basic`` and writes the fields of ``exactly`` directly
into the request. Unknown fields are kept. Source: KEP-4381 and recorded conversions of an API server.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from .fields import rows

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")  # preferred first


def convert(obj: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Returns a copy of ``obj`` in ``version``.

    Raises ``ValueError`` if one of the two versions is not in :data:`VERSIONS`.
    """
    source = obj["apiVersion"].rpartition("/")[2]
    if source not in VERSIONS or version not in VERSIONS:
        raise ValueError(f"cannot convert {obj['apiVersion']} to {GROUP}/{version}: versions are {', '.join(VERSIONS)}")
    out = _copied(dict(obj))
    out["apiVersion"] = f"{GROUP}/{version}"
    if (source == "v1beta1") == (version == "v1beta1"):
        return out
    match obj["kind"]:
        case "ResourceSlice":
            _devices(out.get("spec"), wrap=version == "v1beta1")
        case "ResourceClaim":
            _requests(out.get("spec"), wrap=version != "v1beta1")
        case "ResourceClaimTemplate":
            _requests((out.get("spec") or {}).get("spec"), wrap=version != "v1beta1")
        case kind if kind.endswith("List"):
            out["items"] = [
                convert({"apiVersion": obj["apiVersion"], "kind": kind[:-4], **item}, version) for item in obj["items"]
            ]
    return out


def _copied(obj: dict[str, Any]) -> dict[str, Any]:
    try:
        return copy.deepcopy(obj)
    except RecursionError:
        # Parameters of 10 KiB can be nested deeper than Python's recursion limit, but not too deep for msgspec.
        return msgspec.json.decode(msgspec.json.encode(obj), type=dict[str, Any])


def _devices(spec: dict[str, Any] | None, *, wrap: bool) -> None:
    if not spec or not spec.get("devices"):
        return
    if wrap:
        spec["devices"] = [
            {"name": d.get("name", ""), "basic": {k: v for k, v in d.items() if k != "name"}} for d in spec["devices"]
        ]
    else:
        spec["devices"] = [
            {**{k: v for k, v in d.items() if k != "basic"}, **(d.get("basic") or {})} for d in spec["devices"]
        ]


def _requests(spec: dict[str, Any] | None, *, wrap: bool) -> None:
    devices = (spec or {}).get("devices") or {}
    if not devices.get("requests"):
        return
    devices["requests"] = [_wrapped(r) if wrap else _flat(r) for r in devices["requests"]]


def _wrapped(request: dict[str, Any]) -> dict[str, Any]:
    exactly = {k: request[k] for k in rows("ExactDeviceRequest") if k in request}
    rest = {k: v for k, v in request.items() if k not in exactly}
    if any(v not in ("", 0, None, []) for v in exactly.values()):
        name = {"name": rest.pop("name")} if "name" in rest else {}
        return {**name, "exactly": exactly, **rest}
    return rest


def _flat(request: dict[str, Any]) -> dict[str, Any]:
    exactly = request.get("exactly")
    rest = {k: v for k, v in request.items() if k not in {"exactly", "name"}}
    name = {"name": request["name"]} if "name" in request else {}
    return {**name, **({"deviceClassName": ""} if exactly is None else exactly), **rest}
