"""Completes the functions of a description with defaults, and checks the description as a whole.

It checks that addresses are unique, that parents exist, and that NUMA nodes are consistent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from dra_kubeletplugin.base.text import counted, did_you_mean

from .model import Function, HostDescription, VirtualFunctions, root_of, routing_id

Place = tuple[str | int, ...]
Taken = dict[tuple[str, int], tuple[int, str]]  # (domain, routing id) -> (index in the list, name for errors)
LAST = 0xFFFF  # highest routing id of a domain


class Fault(NamedTuple):
    """An error in a description: the keys and indexes that lead to it, and its text."""

    place: Place
    text: str


def with_defaults(functions: Sequence[Function]) -> tuple[tuple[Function, ...], list[Fault]]:
    """Returns the functions with the defaults that depend on other fields and functions, and a fault for each address used twice."""
    taken: Taken = {}
    faults: list[Fault] = []
    for i, fn in enumerate(functions):
        if _reserve(taken, fn.address.lower(), 0, 1, 1, (i, fn.address)):
            faults.append(Fault(("functions", i, "address"), f"{fn.address} occurs twice"))
    out: list[Function] = []
    for i, fn in enumerate(functions):
        address, vfs = fn.address.lower(), fn.vfs
        if vfs is not None:
            name = f"the virtual functions of {address}"
            offset = vfs.offset or _free_offset(taken, address, vfs)
            before = _reserve(taken, address, offset, vfs.stride, vfs.total, (i, name))
            if before or routing_id(address) + offset + vfs.stride * (vfs.total - 1) > LAST:
                why = f"share addresses with {before}" if before else "reach beyond the last bus"
                faults.append(Fault(("functions", i, "vfs"), f"{name} {why}: set another offset, stride or total"))
            device = fn.device if vfs.device is None else vfs.device
            vfs = msgspec.structs.replace(vfs, offset=offset, device=device)
        complete = msgspec.structs.replace(
            fn,
            address=address,
            behind=fn.behind and fn.behind.lower(),
            root=fn.root if fn.root or fn.behind else root_of(address),
            subsystem_vendor=fn.vendor if fn.subsystem_vendor is None else fn.subsystem_vendor,
            vfs=vfs,
        )
        out.append(complete)
    return tuple(out), faults


def _reserve(taken: Taken, address: str, offset: int, stride: int, count: int, owner: tuple[int, str]) -> str:
    """Reserves addresses. If one of them is already reserved, returns the owner of the first such address, else ""."""
    domain, first = address.partition(":")[0], routing_id(address) + offset
    for number in range(first, first + stride * count, stride):
        if (before := taken.setdefault((domain, number), owner)) != owner:
            return before[1]
    return ""


def _free_offset(taken: Taken, address: str, vfs: VirtualFunctions) -> int:
    """Returns the lowest offset at which all addresses are free. It begins at the next device number."""
    domain, own = address.partition(":")[0], routing_id(address)
    start = (own | 7) + 1
    while start <= LAST:
        used = [n for n in range(start, start + vfs.stride * vfs.total, vfs.stride) if (domain, n) in taken]
        if not used:
            break
        start = used[-1] + 1
    return start - own


def check_functions(description: HostDescription) -> Iterator[Fault]:
    """Yields functions whose parent or NUMA node is not described, and cycles of parents."""
    by_address = {f.address: f for f in description.functions}
    for i, fn in enumerate(description.functions):
        if fn.behind is not None and fn.behind not in by_address:
            near = did_you_mean(fn.behind, by_address)
            yield Fault(("functions", i, "behind"), f"{fn.behind} is not described{near}")
        seen = {fn.address}
        above = by_address.get(fn.behind or "")
        while above is not None and above.address not in seen:
            seen.add(above.address)
            above = by_address.get(above.behind or "")
        if above is not None:
            yield Fault(("functions", i, "behind"), f"{fn.address} is above itself: correct `behind`")
        if fn.numa is not None and description.numa_nodes and fn.numa not in description.numa_nodes:
            described = ", ".join(map(str, description.numa_nodes))
            yield Fault(("functions", i, "numa"), f"node {fn.numa} is not in numa_nodes, which has {described}")


def check_numa(description: HostDescription) -> Iterator[Fault]:
    """Yields a fault for each CPU of two nodes, and for each node that does not list its distance to every node."""
    owner: dict[int, int] = {}
    for number, node in description.numa_nodes.items():
        if node.distances and len(node.distances) != len(description.numa_nodes):
            have, wanted = counted(len(node.distances), "distance"), counted(len(description.numa_nodes), "node")
            text = f"{have} for {wanted}: list the distance to each node, also to the node itself"
            yield Fault(("numa_nodes", number, "distances"), text)
        for cpu in node.cpu_numbers():
            if owner.setdefault(cpu, number) != number:
                yield Fault(("numa_nodes", number, "cpus"), f"CPU {cpu} already belongs to node {owner[cpu]}")
