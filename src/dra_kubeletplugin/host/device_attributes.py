"""The device attributes that Kubernetes defines, so that a scheduler can match devices of different drivers.

Source: KEP-4381, KEP-5491 (lists), KEP-6072 (NUMA), and
https://kubernetes.io/docs/reference/node/dra-standard-device-attributes/. The values are the same as those of the Go package
``k8s.io/dynamic-resource-allocation/deviceattribute`` in 1.37.
"""

from __future__ import annotations

import re

DOMAIN = "resource.kubernetes.io"
PCIE_ROOT = f"{DOMAIN}/pcieRoot"
"""The PCIe root complex, ``pci<domain>:<bus>``.

Devices with the same root share a tree of switches. A CPU has a list of roots, because it is local to several roots.
"""
PCI_BUS_ID = f"{DOMAIN}/pciBusID"
"""The PCI address, with a domain of four digits."""
NUMA_NODE = f"{DOMAIN}/numaNode"
"""The NUMA node; absent for a device without affinity. In a list, the nearest other nodes follow the device's own node."""

_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_ROOT = re.compile(r"pci[0-9a-f]{4,5}:[0-9a-f]{2}")


def pci_bus_id(address: str) -> str | None:
    """Returns the attribute's value for an address.

    Returns None if the address does not have the standard form. For example, addresses behind Intel's VMD have domains of five digits.
    """
    lower = address.lower()
    return lower if _BUS_ID.fullmatch(lower) else None


def pcie_root(component: str) -> str | None:
    """Returns the attribute's value for the first part of a path below sysfs's ``devices``; None for other buses (Hyper-V, ACPI)."""
    return component if _ROOT.fullmatch(component) else None
