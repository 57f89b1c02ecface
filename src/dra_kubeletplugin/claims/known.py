"""What is known of a claim's devices: by the inventory, or from the slices of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..driver import AllocatedDevice
from ..inventory import Inventory
from ..resources.types import Device
from .amounts import Supply, takes_json
from .elsewhere import Found
from .record import allocated_json

JSON = dict[str, Any]


class Known(Supply):
    """For one claim. Its questions may be asked from the thread of the records: what they read is replaced, never changed."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._found: dict[tuple[str, str], Found] = {}

    def add(self, pool: str, found: Found) -> None:
        """A device of another process's pool."""
        self._found[pool, found.device.name] = found

    def device(self, pool: str, name: str) -> Device | None:
        if found := self._found.get((pool, name)):
            return found.device
        return self._inventory.find(name, pool)

    def counters(self, pool: str, counter_set: str) -> Mapping[str, str] | None:
        for (found_in, _), found in self._found.items():
            if found_in == pool and counter_set in found.counter_sets:
                return found.counter_sets[counter_set]
        return self._inventory.counters(pool, counter_set)

    def entry(self, device: AllocatedDevice) -> JSON:
        """A device as a record has it before it is prepared: with what it takes, and how it is published if that is ours."""
        out = allocated_json(device)
        out["takes"] = takes_json(device.device, bool(device.share_id), device.consumed_capacity)
        if (device.pool, device.name) not in self._found:
            out |= {"published": self._inventory.description(device.name, device.pool)}
        return out
