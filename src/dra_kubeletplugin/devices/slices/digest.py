"""When two slices are the same: by digests, so that thousands of devices are never held twice to be compared.

Times of taints, empty fields of a device and the order of fields make no difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

JSON = Mapping[str, Any]


def device_digest(device: JSON) -> bytes:
    """Equal for two devices exactly where they are the same."""
    out = {k: v for k, v in device.items() if v not in (None, [], {}, False)}
    if "taints" in out:
        out["taints"] = [{k: v for k, v in t.items() if k != "timeAdded"} for t in out["taints"]]
    return _digest(out)


def spec_digest(head: JSON, devices: Iterable[bytes], counter_sets: object) -> bytes:
    """Equal for two specs exactly where they are the same.

    Args:
        head: all fields but devices and counter sets.
        devices: the digest of each, in order.
        counter_sets: as the spec has them; None where it has none.
    """
    return hashlib.sha256(_digest([head, counter_sets or []]) + b"".join(devices)).digest()


def digest(spec: JSON) -> bytes:
    """:func:`spec_digest` of a whole spec."""
    head = {k: v for k, v in spec.items() if k not in {"devices", "sharedCounters"}}
    return spec_digest(head, map(device_digest, spec.get("devices") or []), spec.get("sharedCounters"))


def _digest(value: object) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).digest()
