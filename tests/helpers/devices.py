"""What an inventory publishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.devices.inventory import Inventory


def published_devices(inventory: Inventory, pool: str | None = None) -> list[Mapping[str, Any]]:
    """Returns the devices of one pool, by default of the node's pool, as new objects."""
    found = (c for c in inventory.contents() if c.name == (inventory.pool if pool is None else pool))
    return [entry.json for content in found for entry in content.devices]
