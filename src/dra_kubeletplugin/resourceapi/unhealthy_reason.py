"""The attribute of a published device with the reason why it is unhealthy, because a taint has no message.

Every reader of slices sees the reason, also for free devices and while no plugin runs. The value of an attribute has at most 64 bytes.
"""

from __future__ import annotations

from ..base.json_types import ReadOnlyJSON
from ..errors import clip
from .validation.slices import MAX_ATTRIBUTE_VALUES, MAX_ATTRIBUTES_AND_CAPACITIES, MAX_VALUE_BYTES

ATTRIBUTE = "dra-kubeletplugin.dev/unhealthy"


def with_reason(device: ReadOnlyJSON, reason: str) -> ReadOnlyJSON:
    """Returns the device with the reason, or unchanged if it has no room for another attribute."""
    attributes = {n: v for n, v in (device.get("attributes") or {}).items() if n != ATTRIBUTE}
    values = sum(len(v) if isinstance(v, list) else 1 for kinds in attributes.values() for v in kinds.values())
    total = len(attributes) + len(device.get("capacity") or ())
    if total >= MAX_ATTRIBUTES_AND_CAPACITIES or values >= MAX_ATTRIBUTE_VALUES:
        return device
    return {**device, "attributes": {**attributes, ATTRIBUTE: {"string": clip(reason, MAX_VALUE_BYTES)}}}


def reason_of(device: ReadOnlyJSON) -> str:
    """Returns the reason that a plugin published with an unhealthy device; empty for other devices."""
    return clip(((device.get("attributes") or {}).get(ATTRIBUTE) or {}).get("string") or "")
