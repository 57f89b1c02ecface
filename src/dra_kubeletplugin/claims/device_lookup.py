"""Looks up a claim's devices: in the inventory, or in slices that another process published."""

from __future__ import annotations

from collections.abc import Mapping

from ..base.json_types import JSON
from ..devices.inventory import Inventory
from ..driver import AllocatedDevice
from ..resourceapi.amounts import Capacity
from ..resourceapi.quantity import Quantity
from .capacity import Supply, draws_of, takes_json
from .record import allocated_json
from .remote_devices import RemoteDevice


class DeviceLookup(Supply):
    """The devices and limits for one claim.

    Its methods can be called from the record thread: the data that they read is replaced, never changed in place.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._found: dict[tuple[str, str], RemoteDevice] = {}

    def add(self, pool: str, found: RemoteDevice) -> None:
        """Adds a device from another process's pool."""
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
        for (found_pool, _), found in self._found.items():
            if found_pool == pool and counter_set in found.counter_sets:
                return found.counter_sets[counter_set]
        return self._inventory.counters(pool, counter_set)

    def entry(self, device: AllocatedDevice) -> JSON:
        """Returns the entry that a claim's record stores for a device that is not prepared yet.

        The entry has the amounts that the claim takes of the device. For a device of the inventory, it also has the published description.
        """
        out = allocated_json(device)
        draws = self.draws(device.pool, device.name) or {}
        out["takes"] = takes_json(draws, device.consumed_capacity if device.share_id else None)
        if (device.pool, device.name) not in self._found:
            out["published"] = self._inventory.description(device.name, device.pool)
        return out
