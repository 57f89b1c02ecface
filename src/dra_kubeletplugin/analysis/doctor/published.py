"""Checks published ResourceSlices: incomplete pools, slices of deleted nodes, devices that their driver has not published.
Source: KEP-4381, ``ResourcePool``: the scheduler uses a pool only if all slices of its newest generation exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...base.text import counted, join_names
from ...errors import ApiError
from ...kube import KubeClient
from ...kube.decoding import Bare
from ...kube.paging import as_json, read_all
from ...kube.resource import NODES
from .findings import Finding, failure, ok, unknown, warning

JSON = Mapping[str, Any]


async def look(
    client: KubeClient, node: str = "", devices: Mapping[str, frozenset[str]] | None = None
) -> AsyncIterator[Finding]:
    """Checks the slices of the cluster or of one node.

    Args:
        node: the node to check; empty for all nodes.
        devices: by driver, the devices that the driver's code finds on this machine now.
    """
    try:
        resource = await client.dra("resourceslices")
        slices = await read_all(client, resource, as_json, fields=f"spec.nodeName={node}" if node else "")
        names = None if node else set(await read_all(client, NODES, _name))
    except ApiError as e:
        yield unknown("slices", e.message)
        return
    slices = [s for s in slices if not node or s["spec"].get("nodeName") == node]
    found = list(faults(slices, names))
    for driver, there in (devices or {}).items():
        found += list(_compared(driver, there, slices))
    for fault in found:
        yield fault
    count = sum(len(s["spec"].get("devices") or ()) for s in slices)
    by = ", ".join(sorted({s["spec"]["driver"] for s in slices}))
    if not slices:
        yield warning(
            "slices",
            f"nothing is published{f' for node {node}' if node else ''}",
            "see the drivers' logs and readiness (/readyz)",
        )
    elif not count:
        yield warning(
            "slices",
            f"no slice of {by} has a device",
            "check which devices the drivers find: read their logs, and run `dra inspect`",
        )
    elif not found:
        yield ok("slices", f"{counted(count, 'device')} in {counted(len(slices), 'slice')} of {by}")


def faults(slices: Sequence[JSON], nodes: set[str] | None) -> Iterator[Finding]:
    """Yields a finding for each problem of pools and devices.

    Args:
        nodes: names of the cluster's nodes; None if they are not known.
    """
    pools: dict[tuple[str, str], list[JSON]] = {}
    for s in slices:
        pools.setdefault((s["spec"]["driver"], s["spec"]["pool"]["name"]), []).append(s)
    for (driver, name), members in sorted(pools.items()):
        newest = max(s["spec"]["pool"]["generation"] for s in members)
        now = [s for s in members if s["spec"]["pool"]["generation"] == newest]
        wanted = now[0]["spec"]["pool"]["resourceSliceCount"]
        if len(now) != wanted:
            yield failure(
                "slices",
                f"pool {name} of {driver}: {len(now)} of {wanted} slices of generation {newest} exist, so none of its devices is "
                "allocated",
                "its driver corrects this; if this stays, see the driver's log for rejected slices",
            )
        if old := len(members) - len(now):
            yield warning(
                "slices",
                f"pool {name} of {driver}: {counted(old, 'slice')} of older generations",
                "its driver removes them; if this stays, it does not run",
            )
        seen: dict[str, int] = {}
        for s in now:
            for device in s["spec"].get("devices") or ():
                seen[device["name"]] = seen.get(device["name"], 0) + 1
        if twice := [d for d, n in seen.items() if n > 1]:
            yield failure(
                "slices",
                f"pool {name} of {driver} has {join_names(twice)} more than once: the scheduler does not use the pool",
                "check in managedFields whether two programs write these slices",
            )
    lost = sorted(
        {
            s["spec"]["nodeName"]
            for s in slices
            if nodes is not None and s["spec"].get("nodeName") not in (None, "", *nodes)
        }
    )
    if lost:
        yield warning(
            "slices",
            f"slices for nodes that do not exist: {join_names(lost)}",
            "they are deleted with their owner; delete slices without an owner",
        )
    tainted = [
        f"{d['name']} of {s['spec']['driver']}: {t.get('key')}={t.get('value', '')}:{t.get('effect')}"
        for s in slices for d in s["spec"].get("devices") or () for t in d.get("taints") or ()
    ]  # fmt: skip
    if tainted:
        yield warning(
            "slices",
            f"{counted(len(tainted), 'taint')} on devices: {join_names(tainted)}",
            "a taint comes from a health report, whose reason is in the driver's log, or the driver always sets it",
        )


def _compared(driver: str, there: frozenset[str], slices: Sequence[JSON]) -> Iterator[Finding]:
    published = {d["name"] for s in slices if s["spec"]["driver"] == driver for d in s["spec"].get("devices") or ()}
    if missing := sorted(there - published):
        yield failure(
            "slices",
            f"{driver} finds {join_names(missing)} here, but has not published them",
            "see its readiness (/readyz), which names devices that are left out",
        )
    if gone := sorted(published - there):
        yield warning(
            "slices",
            f"{driver} has published {join_names(gone)}, but does not find them here",
            "it unpublishes them unless a claim uses them",
        )


def _name(item: msgspec.Raw) -> str:
    return msgspec.json.decode(item, type=Bare).metadata.name
