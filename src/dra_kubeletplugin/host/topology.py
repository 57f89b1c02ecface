"""Checks a description as a whole: unique addresses, existing parents, consistent NUMA nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..base.text import counted
from . import sysfs
from .model import Function, Machine, VirtualFunctions, routing_id
from .validation import Faults

Taken = dict[tuple[str, int], tuple[int, str]]  # (domain, routing id) -> (index in the list, name for errors)
LAST = 0xFFFF  # highest routing id of a domain


def build_topology(functions: Sequence[Function | None], faults: Faults) -> Sequence[Function]:
    """Assigns addresses to virtual functions, and reports addresses that two functions have."""
    taken: Taken = {}
    for i, fn in enumerate(functions):
        if fn is not None and _reserve(taken, fn.address, 0, 1, 1, (i, fn.address)):
            faults.add(("functions", i, "address"), f"{fn.address} occurs twice")
    out: list[Function] = []
    for i, fn in enumerate(functions):
        if fn is None:
            continue
        if fn.vfs is not None:
            name = f"the virtual functions of {fn.address}"
            offset = fn.vfs.offset or _free_offset(taken, fn, fn.vfs)
            before = _reserve(taken, fn.address, offset, fn.vfs.stride, fn.vfs.total, (i, name))
            if before or routing_id(fn.address) + offset + fn.vfs.stride * (fn.vfs.total - 1) > LAST:
                why = f"share addresses with {before}" if before else "reach beyond the last bus"
                faults.add(("functions", i, "vfs"), f"{name} {why}: set another offset, stride or total")
            fn = dataclasses.replace(fn, vfs=dataclasses.replace(fn.vfs, offset=offset))
        out.append(fn)
    return out


def _reserve(taken: Taken, address: str, offset: int, stride: int, count: int, owner: tuple[int, str]) -> str:
    """Reserves addresses. If one of them is already reserved, returns the owner of the first such address, else ""."""
    domain, first = address.partition(":")[0], routing_id(address) + offset
    for number in range(first, first + stride * count, stride):
        if (before := taken.setdefault((domain, number), owner)) != owner:
            return before[1]
    return ""


def _free_offset(taken: Taken, fn: Function, vfs: VirtualFunctions) -> int:
    """Returns the lowest offset at which all addresses are free. It begins at the next device number."""
    domain, own = fn.address.partition(":")[0], routing_id(fn.address)
    start = (own | 7) + 1
    while start <= LAST:
        used = [n for n in range(start, start + vfs.stride * vfs.total, vfs.stride) if (domain, n) in taken]
        if not used:
            break
        start = used[-1] + 1
    return start - own


def check_functions(machine: Machine, faults: Faults) -> None:
    """Reports functions whose parent or NUMA node is not described, and cycles of parents."""
    by_address = {f.address: f for f in machine.functions}
    for i, fn in enumerate(machine.functions):
        seen, at = {fn.address}, fn
        while at.behind is not None:
            if at.behind not in by_address:
                if at is fn:
                    faults.add(
                        ("functions", i, "behind"), f"{fn.behind} is not described{faults.near(at.behind, by_address)}"
                    )
                break
            if at.behind in seen:
                faults.add(("functions", i, "behind"), f"{fn.address} is above itself: correct `behind`")
                break
            seen.add(at.behind)
            at = by_address[at.behind]
        if fn.numa is not None and machine.numa_nodes and fn.numa not in machine.numa_nodes:
            described = ", ".join(map(str, machine.numa_nodes))
            faults.add(("functions", i, "numa"), f"node {fn.numa} is not in numa_nodes, which has {described}")


def check_numa(machine: Machine, faults: Faults) -> None:
    """Checks that each CPU belongs to one node, and that each node lists its distance to every node."""
    owner: dict[int, int] = {}
    for number, node in machine.numa_nodes.items():
        if node.distances and len(node.distances) != len(machine.numa_nodes):
            have, wanted = counted(len(node.distances), "distance"), counted(len(machine.numa_nodes), "node")
            text = f"{have} for {wanted}: list the distance to each node, also to the node itself"
            faults.add(("numa_nodes", number, "distances"), text)
        for cpu in sysfs.cpu_list(node.cpus):
            if owner.setdefault(cpu, number) != number:
                faults.add(("numa_nodes", number, "cpus"), f"CPU {cpu} already belongs to node {owner[cpu]}")
