"""Validates the amounts of a node's resources that a device uses, and their overhead (KEP-5517), in the forms of 1.36 and 1.37."""

from __future__ import annotations

from ...base.json_types import ReadOnlyJSON
from ..quantity import Quantity, parse
from .field_errors import FieldError, forbidden, invalid, required

_HUGE_PAGES = "hugepages-"
_NAMES = ("cpu", "memory")  # and huge pages, by their size
_NAMES_1_36 = (*_NAMES, "ephemeral-storage")


def node_resources(device: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns every error of ``nodeAllocatableResources`` and ``nodeAllocatableResourceMappings`` of a device."""
    out: list[FieldError] = []
    for name, row in sorted((device.get("nodeAllocatableResourceMappings") or {}).items()):
        where = f"{path}.nodeAllocatableResourceMappings[{name}]"
        out += _name(name, where, _NAMES_1_36)
        amount = row.get("allocationMultiplier")
        if amount is not None and parse(amount) < Quantity(0):
            out.append(invalid(f"{where}.allocationMultiplier", amount, "must be greater than or equal to 0"))
    for name, resource in sorted((device.get("nodeAllocatableResources") or {}).items()):
        where = f"{path}.nodeAllocatableResources[{name}]"
        out += _name(name, where, _NAMES)
        if not (resource.get("mapping") or resource.get("overhead")):
            out.append(required(where, "one of `mapping` and `overhead`"))
        if mapping := resource.get("mapping"):
            out += _mapping(mapping, device.get("capacity") or {}, f"{where}.mapping")
        for field, amount in sorted((resource.get("overhead") or {}).items()):
            if amount is not None and parse(amount) < Quantity(0):
                out.append(invalid(f"{where}.overhead.{field}", amount, "must be greater than or equal to 0"))
    return out


def _name(name: str, path: str, known: tuple[str, ...]) -> list[FieldError]:
    if name in known or name.startswith(_HUGE_PAGES):
        return []
    return [invalid(path, name, f"must be one of these resources of nodes: {', '.join(known)}, {_HUGE_PAGES}SIZE")]


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
