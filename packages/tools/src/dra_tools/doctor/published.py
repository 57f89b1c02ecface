"""Checks published ResourceSlices: incomplete pools, slices of deleted nodes, tainted devices, and devices that are not published.
Source: KEP-4381, ``ResourcePool``: the scheduler uses a pool only if all slices of its newest generation exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dra_devkit.generations import PoolKey, generation_of, key_of, newest
from dra_devkit.scheduling.framework.device_taint_rules import tainted
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.text import counted, join_names, natural
from dra_kubeletplugin.errors import ApiError, DraError
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.decoding import Bare, as_json
from dra_kubeletplugin.kube.errors import ForbiddenError
from dra_kubeletplugin.kube.paging import read_all
from dra_kubeletplugin.kube.resource import CLASSES, NODES, SLICES
from dra_kubeletplugin.resourceapi.unhealthy_reason import reason_of

from ..doubled_resources import doubled_resources, overlapping
from ..reader import served_rules, take
from ..snapshot import Snapshot
from ..unevaluated.objects import all_not_evaluated
from .findings import Finding, failure, ok, unknown, warning

_RULE = "deviceTaintRule"  # a field that this module adds to the taints of DeviceTaintRules
_BLOCKING_EFFECTS = {"NoSchedule", "NoExecute"}
_TAINTED_NODES = 8  # maximum number of nodes with a finding of their own


async def look(
    client: KubeClient,
    node: str = "",
    devices: Mapping[str, frozenset[str]] | None = None,
    registered: Collection[str] | None = None,
) -> AsyncIterator[Finding]:
    """Checks the slices of the cluster or of one node.

    Args:
        node: the node to check; empty for all nodes.
        devices: by driver, the devices that the driver's code finds on this machine now.
        registered: the drivers that register with the kubelet of the node; None if they are not known.
    """
    try:
        resource = await client.dra("resourceslices")
        slices = await read_all(client, resource, as_json, fields=f"spec.nodeName={node}" if node else "")
        names = None if node else set(await read_all(client, NODES, _name))
        slices = [s for s in slices if not node or s["spec"].get("nodeName") == node]
        others = await _others(client, resource, slices) if node else []
        rules = await _rules(client)
        slices = [dict(tainted(sl, rules)) for sl in slices]
    except ApiError as e:
        yield unknown("slices", e.message)
        return
    found = list(faults(slices, names, others))
    of_kind = tuple({**sl, "kind": "ResourceSlice"} for sl in slices)
    found += [unknown("slices", str(part)) for part in all_not_evaluated(Snapshot(slices=of_kind))]
    for driver, there in (devices or {}).items():
        found += list(_compared(driver, there, slices))
    if node and registered is not None:
        found += list(_unserved(slices, registered, node))
    found += [f async for f in _doubled(client, node)]
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


def _unserved(slices: Iterable[ReadOnlyJSON], registered: Collection[str], node: str) -> Iterator[Finding]:
    """Yields a finding for each driver that has devices on the node and no plugin that the kubelet can call."""
    calls = (s["spec"] for s in slices if s["spec"].get("devices") and not s["spec"].get("skipNodeOperations"))
    for driver in sorted({str(spec["driver"]) for spec in calls} - set(registered)):
        text = f"{driver} has devices on node {node}, but no plugin of it registers with the kubelet: pods with these devices do not start"
        remove = f"kubectl delete resourceslices --field-selector spec.driver={driver},spec.nodeName={node}"
        yield failure(
            "slices", text, f"start its plugin on the node, or remove the slices of an uninstalled driver: {remove}"
        )


async def _doubled(client: KubeClient, node: str) -> AsyncIterator[Finding]:
    """Yields a warning for each extended resource that nodes have from a device plugin and from a driver."""
    try:
        known = await take(client, kinds=(NODES, CLASSES))
        nodes = [n for n in known.nodes if node in {"", n["metadata"]["name"]}]
        if not any(overlapping(nodes, known.classes)):
            return
        slices = (await take(client, kinds=(CLASSES, SLICES), find_selectors=lambda found: found.classes)).slices
    except DraError as e:
        yield unknown("slices", f"device plugins beside drivers were not looked for: {e.message}")
        return
    for doubled in doubled_resources(nodes, known.classes, slices):
        yield warning("slices", str(doubled), doubled.change)


async def _rules(client: KubeClient) -> list[dict[str, Any]]:
    """Returns the DeviceTaintRules, with the name of the rule added to its taint; none if this account may not list them."""
    resource = await served_rules(client)
    try:
        rules = await read_all(client, resource, as_json) if resource is not None else []
    except ForbiddenError:
        return []
    for rule in rules:
        rule["spec"]["taint"][_RULE] = str(rule["metadata"]["name"])
    return rules


async def _others(client: KubeClient, resource: Resource, slices: Sequence[ReadOnlyJSON]) -> list[ReadOnlyJSON]:
    """Returns the other slices of pools that look incomplete: a slice of counters, for example, may have no ``nodeName``."""
    missing = [key for key, of in _pools(slices).items() if len(now := newest(of, generation_of)) != _wanted(now)]
    known = {s["metadata"]["uid"] for s in slices}
    found: list[ReadOnlyJSON] = []
    for driver in sorted({driver for driver, _ in missing}):
        found += await read_all(client, resource, as_json, fields=f"spec.driver={driver}")
    return [s for s in found if key_of(s) in missing and s["metadata"]["uid"] not in known]


def _pools(slices: Iterable[ReadOnlyJSON]) -> dict[PoolKey, list[ReadOnlyJSON]]:
    pools: dict[PoolKey, list[ReadOnlyJSON]] = {}
    for s in slices:
        pools.setdefault(key_of(s), []).append(s)
    return pools


def _wanted(slices: Sequence[ReadOnlyJSON]) -> int:
    return int(slices[0]["spec"]["pool"]["resourceSliceCount"])


def faults(
    slices: Sequence[ReadOnlyJSON], nodes: set[str] | None, others: Sequence[ReadOnlyJSON] = ()
) -> Iterator[Finding]:
    """Yields a finding for each problem of pools and devices.

    Args:
        nodes: names of the cluster's nodes; None if they are not known.
        others: more slices of the same pools, which are not of the node that is checked.
    """
    pools, own = _pools([*slices, *others]), set(map(id, slices))
    current: list[ReadOnlyJSON] = []
    for (driver, name), members in sorted(pools.items(), key=lambda pool: (pool[0][0], natural(pool[0][1]))):
        now = newest(members, generation_of)
        current += (s for s in now if id(s) in own)
        wanted = _wanted(now)
        if len(now) != wanted:
            yield failure(
                "slices",
                f"pool {name} of {driver}: {len(now)} of {wanted} slices of generation {generation_of(now[0])} exist, "
                "so the scheduler allocates none of its devices",
                "its driver corrects this; if this stays, see the driver's log for rejected slices",
            )
        if old := len(members) - len(now):
            yield warning(
                "slices",
                f"pool {name} of {driver}: {counted(old, 'slice')} of older generations",
                "its driver removes them; if they stay, the driver does not run",
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
        },
        key=natural,
    )
    if lost:
        yield warning(
            "slices",
            f"slices for nodes that do not exist: {join_names(lost)}",
            "they are deleted with their owner; delete slices without an owner",
        )
    yield from _tainted(current)


def _tainted(slices: Sequence[ReadOnlyJSON]) -> Iterator[Finding]:
    """Yields a finding for each node with devices whose taints keep new pods away. The last finding counts the other nodes."""
    nodes: dict[str, dict[tuple[str, str], list[str]]] = {}  # names of devices by node, driver and taints
    for s in slices:
        for device in s["spec"].get("devices") or ():
            taints = [t for t in device.get("taints") or () if t.get("effect") in _BLOCKING_EFFECTS]
            if taints:
                owner = device if s["spec"].get("perDeviceNodeSelection") else s["spec"]
                reason = f" ({text})" if (text := reason_of(device)) else ""
                key = s["spec"]["driver"], f"{join_names(map(_taint, taints))}{reason}"
                nodes.setdefault(str(owner.get("nodeName") or ""), {}).setdefault(key, []).append(device["name"])
    for node in sorted(nodes)[:_TAINTED_NODES]:
        where = f"node {node}" if node else "devices of several nodes"
        groups = (
            f"{join_names(sorted(names, key=natural))} of {driver} {'has' if len(names) == 1 else 'have'} {taints}"
            for (driver, taints), names in nodes[node].items()
        )
        number = sum(map(len, nodes[node].values()))
        them = "it" if number == 1 else "them"
        text = f"{where}: {counted(number, 'device')} with a taint, so no new pod gets {them}: {join_names(groups)}"
        look = f"kubectl describe node {node}" if node else "kubectl get events -A"
        yield warning("slices", text, f"see the driver's events: {look}")
    if (more := len(nodes) - _TAINTED_NODES) > 0:
        text = f"{counted(more, 'more node')} with tainted devices"
        yield warning("slices", text, "list the devices: dra top --once --filter tainted")


def _taint(taint: ReadOnlyJSON) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    rule = f" of DeviceTaintRule {taint[_RULE]}" if _RULE in taint else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}{rule}"


def _compared(driver: str, there: frozenset[str], slices: Sequence[ReadOnlyJSON]) -> Iterator[Finding]:
    published = {d["name"] for s in slices if s["spec"]["driver"] == driver for d in s["spec"].get("devices") or ()}
    if missing := sorted(there - published, key=natural):
        yield failure(
            "slices",
            f"{driver} finds {join_names(missing)} here, but has not published them",
            "see its readiness (/readyz), which names devices that are left out",
        )
    if gone := sorted(published - there, key=natural):
        yield warning(
            "slices",
            f"{driver} has published {join_names(gone)}, but does not find them here",
            "it unpublishes them unless a claim uses them",
        )


def _name(item: msgspec.Raw) -> str:
    return msgspec.json.decode(item, type=Bare).metadata.name
