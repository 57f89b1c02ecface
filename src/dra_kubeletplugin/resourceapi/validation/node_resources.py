"""Validates the amounts of a node's resources that a device uses, and their overhead (KEP-5517, as of 1.37)."""

from __future__ import annotations

from ...base.json_types import ReadOnlyJSON
from ..quantity import Quantity, parse
from .field_errors import FieldError, forbidden, invalid, required

_HUGE_PAGES = "hugepages-"
NODE_RESOURCES = ("cpu", "memory", "ephemeral-storage")  # and huge pages, by their size


def node_resources(device: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns every error of ``nodeAllocatableResources`` of a device."""
    out: list[FieldError] = []
    for name, resource in sorted((device.get("nodeAllocatableResources") or {}).items()):
        where = f"{path}.nodeAllocatableResources[{name}]"
        if name not in NODE_RESOURCES and not name.startswith(_HUGE_PAGES):
            allowed = f"{', '.join(NODE_RESOURCES)}, {_HUGE_PAGES}SIZE"
            out.append(invalid(where, name, f"must be one of these resources of nodes: {allowed}"))
        if not (resource.get("mapping") or resource.get("overhead")):
            out.append(required(where, "one of `mapping` and `overhead`"))
        if mapping := resource.get("mapping"):
            out += _mapping(mapping, device.get("capacity") or {}, f"{where}.mapping")
        for field, amount in sorted((resource.get("overhead") or {}).items()):
            if amount is not None and parse(amount) < Quantity(0):
                out.append(invalid(f"{where}.overhead.{field}", amount, "must be greater than or equal to 0"))
    return out


def _mapping(mapping: ReadOnlyJSON, capacity: ReadOnlyJSON, path: str) -> list[FieldError]:
    key, by_capacity = mapping.get("capacityKey"), mapping.get("capacityMultiplier")
    by_device = mapping.get("deviceMultiplier")
    out: list[FieldError] = []
    if by_device is not None and (key is not None or by_capacity is not None):
        return [forbidden(path, "`deviceMultiplier` excludes `capacityKey` and `capacityMultiplier`")]
    if by_device is None and (key is None or by_capacity is None):
        return [required(path, "`deviceMultiplier`, or `capacityKey` with `capacityMultiplier`")]
    if key is not None and key not in capacity:
        out.append(invalid(f"{path}.capacityKey", key, "must be a capacity of the device"))
    for field in ("capacityMultiplier", "deviceMultiplier"):
        amount = mapping.get(field)
        if amount is not None and parse(amount) <= Quantity(0):
            out.append(invalid(f"{path}.{field}", amount, "must be greater than zero"))
    return out
