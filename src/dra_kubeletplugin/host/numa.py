"""NUMA nodes and their distances. Source: Documentation/ABI/stable/sysfs-devices-node of the kernel, KEP-6072."""

from __future__ import annotations

from pathlib import Path

from . import sysfs

_MAX_NODES = 1024  # the kernel's maximum number of nodes


class Numa:
    """The NUMA nodes of one machine.

    Distances are read at first use and cached, because they do not change before a reboot.
    """

    def __init__(self, root: Path) -> None:
        self._nodes = f"{root}/devices/system/node"
        self._cpus = f"{root}/devices/system/cpu"
        self._near: dict[int, list[int]] = {}

    def nodes(self) -> list[int]:
        """Returns the numbers of the nodes, sorted; empty if the kernel has no NUMA support."""
        return sorted(
            int(n[4:]) for n in sysfs.names(self._nodes) if n.startswith("node") and n.isascii() and n[4:].isdigit()
        )

    def of_cpu(self, cpu: int) -> int | None:
        """Returns the node of a CPU, or None if there is no such CPU or it belongs to no node."""
        for name in sysfs.names(f"{self._cpus}/cpu{cpu}"):
            if name.startswith("node") and name.isascii() and name[4:].isdigit():
                return int(name[4:])
        return next((n for n in self.nodes() if cpu in self.cpus(n)), None)

    def cpus(self, node: int) -> list[int]:
        """Returns the CPUs of a node; empty for a memory-only node."""
        return sysfs.cpu_list(sysfs.text(f"{self._nodes}/node{node}/cpulist"))

    def near(self, node: int) -> list[int]:
        """Returns ``node``, followed by the nearest nodes of the same socket, sorted by number.

        The nearest nodes are all nodes at the smallest distance. A node whose socket is unknown counts as in the same socket, because
        omitting a near node would be worse. If the firmware has no distances, the result is only ``node``.

        Raises ``ValueError`` for a number that no node can have, such as -1 (no affinity). A driver must never publish -1: it would
        match all other devices without affinity.
        """
        if not 0 <= node < _MAX_NODES:
            raise ValueError(f"{node} is not a NUMA node: omit the attribute if a device has no affinity")
        if node not in self._near:
            self._near[node] = [node, *self._nearest(node)]
        return list(self._near[node])

    def _nearest(self, node: int) -> list[int]:
        nodes = self.nodes()
        row = (sysfs.text(f"{self._nodes}/node{node}/distance") or "").split()
        if node not in nodes or len(row) != len(nodes) or not all(d.isascii() and d.isdigit() for d in row):
            return []
        # The file has one distance per online node, in order. If nodes are offline, a position is not a node's number.
        distances = {n: int(d) for n, d in zip(nodes, row, strict=True) if n != node}
        least = min(distances.values(), default=0)
        socket = self._socket(node)
        near = (n for n, d in distances.items() if d == least)
        return [n for n in near if socket is None or self._socket(n) in {None, socket}]

    def _socket(self, node: int) -> int | None:
        cpus = self.cpus(node)
        return sysfs.integer(f"{self._cpus}/cpu{cpus[0]}/topology/physical_package_id") if cpus else None
