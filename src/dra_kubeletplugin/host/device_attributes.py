"""Attributes whose names and values Kubernetes defines, so that devices of different drivers can be matched.

Source: KEP-4381, KEP-5491 (lists), KEP-6072 (NUMA), and
https://kubernetes.io/docs/reference/node/dra-standard-device-attributes/. Values are those of Go's helper of 1.37.
"""

from __future__ import annotations

import re

DOMAIN = "resource.kubernetes.io"
PCIE_ROOT = f"{DOMAIN}/pcieRoot"
"""The root complex, ``pci<domain>:<bus>``: devices below one share a tree of switches. A list for a CPU, which is near several."""
PCI_BUS_ID = f"{DOMAIN}/pciBusID"
"""The address, with a domain of four digits."""
NUMA_NODE = f"{DOMAIN}/numaNode"
"""The NUMA node, left out without affinity; as a list, those at the same distance follow it."""
MDEV_UUID = f"{DOMAIN}/mdevUUID"
"""The UUID of a mediated device, lower case."""

_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_ROOT = re.compile(r"pci[0-9a-f]{4,5}:[0-9a-f]{2}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def pci_bus_id(address: str) -> str | None:
    """The value for an address; None where it has none, as below Intel's VMD, whose domains have five digits."""
    lower = address.lower()
    return lower if _BUS_ID.fullmatch(lower) else None


def pcie_root(component: str) -> str | None:
    """The value for the first component below sysfs' ``devices``; None for what hangs elsewhere (Hyper-V, ACPI)."""
    return component if _ROOT.fullmatch(component) else None


def mdev_uuid(uuid: str) -> str:
    """The value for a mediated device.

    Raises ``ValueError`` where ``uuid`` has not the form 8-4-4-4-12.
    """
    lower = uuid.lower()
    if not _UUID.fullmatch(lower):
        raise ValueError(f"{uuid!r} is no UUID of a mediated device: see /sys/bus/mdev/devices")
    return lower
