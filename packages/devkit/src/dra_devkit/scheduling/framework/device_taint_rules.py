"""DeviceTaintRules (KEP-5055): adds taints of an administrator to devices of any driver, as if the slices contained them."""

from __future__ import annotations

from collections.abc import Iterable

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

SELECTED_BY = frozenset({"driver", "pool", "device"})
"""The fields of a rule's selector."""


def taints_of(rules: Iterable[ReadOnlyJSON], driver: str, pool: str, device: str) -> list[ReadOnlyJSON]:
    """Returns the taints that rules put on a device."""
    return [r["spec"]["taint"] for r in rules if _selects(r["spec"].get("deviceSelector"), driver, pool, device)]


def _selects(selector: ReadOnlyJSON | None, driver: str, pool: str, device: str) -> bool:
    """Returns whether a selector matches a device. A missing selector matches no device, an empty selector every device.

    A selector with fields of an old alpha version (class, CEL) matches no device here.
    """
    if selector is None or not selector.keys() <= SELECTED_BY:
        return False
    return all(
        selector.get(field) in (None, value)
        for field, value in (("driver", driver), ("pool", pool), ("device", device))
    )


def tainted(found: ReadOnlyJSON, rules: Iterable[ReadOnlyJSON]) -> ReadOnlyJSON:
    """Returns a slice with the rules' taints before the taints of its devices, or the slice itself if no rule applies."""
    spec, rules = found["spec"], list(rules)
    driver, pool = spec["driver"], spec["pool"]["name"]
    devices, changed = [], False
    for device in spec.get("devices") or []:
        added = taints_of(rules, driver, pool, device["name"])
        changed = changed or bool(added)
        devices.append({**device, "taints": [*added, *(device.get("taints") or [])]} if added else device)
    return {**found, "spec": {**spec, "devices": devices}} if changed else found
