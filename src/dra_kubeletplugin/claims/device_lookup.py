"""What is known of a claim's devices: by the inventory, or from the slices of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..devices.inventory import Inventory
from ..driver import AllocatedDevice
from ..resourceapi.amounts import Capacity
from ..resourceapi.quantity import Quantity
from .capacity import Supply, draws_of, takes_json
from .record import allocated_json
from .remote_devices import RemoteDevice

JSON = dict[str, Any]


class DeviceLookup(Supply):
    """For one claim. Its questions may be asked from the thread of the records: what they read is replaced, never changed."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._found: dict[tuple[str, str], RemoteDevice] = {}

    def add(self, pool: str, found: RemoteDevice) -> None:
        """A device of another process's pool."""
        self._found[pool, found.device.name] = found

    def draws(self, pool: str, name: str) -> JSON | None:
        if found := self._found.get((pool, name)):
            return draws_of(found.device)
        return self._inventory.draws(name, pool)

    def capacity(self, pool: str, name: str) -> Mapping[str, str] | None:
        found = self._found.get((pool, name))
        device = found.device if found else self._inventory.find(name, pool)
        if device is None:
            return None
        return {n: str(c.value if isinstance(c, Capacity) else Quantity(c)) for n, c in device.capacity.items()}

    def counters(self, pool: str, counter_set: str) -> Mapping[str, str] | None:
        for (found_in, _), found in self._found.items():
            if found_in == pool and counter_set in found.counter_sets:
                return found.counter_sets[counter_set]
        return self._inventory.counters(pool, counter_set)

    def entry(self, device: AllocatedDevice) -> JSON:
        """A device as a record has it before it is prepared: with what it takes, and how it is published if that is ours."""
        out = allocated_json(device)
        draws = self.draws(device.pool, device.name) or {}
        out["takes"] = takes_json(draws, device.consumed_capacity if device.share_id else None)
        if (device.pool, device.name) not in self._found:
            out["published"] = self._inventory.description(device.name, device.pool)
        return out
