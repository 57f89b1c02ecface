"""Compares slices by digests, so that thousands of devices are never in memory twice.

The times of taints, empty fields of a device and the order of fields are ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

JSON = Mapping[str, Any]


def device_digest(device: JSON) -> bytes:
    """Returns a digest that is equal for two devices if and only if they are the same."""
    out = {k: v for k, v in device.items() if v not in (None, [], {}, False)}
    if "taints" in out:
        out["taints"] = [{k: v for k, v in t.items() if k != "timeAdded"} for t in out["taints"]]
    return _digest(out)


def spec_digest(head: JSON, devices: Iterable[bytes], counter_sets: object) -> bytes:
    """Returns a digest that is equal for two specs if and only if they are the same.

    Args:
        head: all fields but devices and counter sets.
        devices: the digest of each, in order.
        counter_sets: as in the spec; None if there are none.
    """
    return hashlib.sha256(_digest([head, counter_sets or []]) + b"".join(devices)).digest()


def digest(spec: JSON) -> bytes:
    """Returns :func:`spec_digest` of a whole spec."""
    head = {k: v for k, v in spec.items() if k not in {"devices", "sharedCounters"}}
    return spec_digest(head, map(device_digest, spec.get("devices") or []), spec.get("sharedCounters"))


def _digest(value: object) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).digest()
