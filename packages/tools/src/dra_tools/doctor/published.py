"""Checks published ResourceSlices: incomplete pools, slices of deleted nodes, tainted devices, and devices that are not published.
Source: KEP-4381, ``ResourcePool``: the scheduler uses a pool only if all slices of its newest generation exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from dra_devkit.generations import key_of, newest_by_pool
from dra_kubeletplugin.base.json_types import JSON, ReadOnlyJSON
from dra_kubeletplugin.base.text import counted, join_names, natural
from dra_kubeletplugin.errors import ApiError, DraError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.decoding import Bare, as_json
from dra_kubeletplugin.kube.errors import ForbiddenError
from dra_kubeletplugin.kube.paging import read_all
from dra_kubeletplugin.kube.resource import CLASSES, NODES, SLICES, TAINT_RULES
from dra_kubeletplugin.resourceapi.unhealthy_reason import reason_of

from ..doubled_resources import doubled_resources, overlapping
from ..reader import served_as, slices_of_incomplete_pools, take
from ..snapshot import Snapshot
from ..taints import BLOCKING_EFFECTS, taint_with_rule, with_rules
from ..unevaluated.objects import all_not_evaluated
from ..usage.usage import count_usage
from .findings import Finding, failure, ok, unknown, warning

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
        names = (
            None
            if node
            else set(await read_all(client, NODES, lambda item: msgspec.json.decode(item, type=Bare).metadata.name))
        )
        slices = [s for s in slices if not node or s["spec"].get("nodeName") == node]
        others: list[JSON] = []
        if node:
            known = {s["metadata"]["uid"] for s in slices}
            pools = await slices_of_incomplete_pools(client, resource, slices)
            others = [s for s in chain.from_iterable(pools.values()) if s["metadata"]["uid"] not in known]
        # Items of a list have no kind. In other versions than v1 a device has another form, whose fields are no unknown ones.
        head = {"kind": "ResourceSlice", "apiVersion": resource.api_version if resource.version == "v1" else ""}
        unevaluated = all_not_evaluated(Snapshot(slices=tuple({**sl, **head} for sl in slices)))
        slices = list(with_rules(slices, await _rules(client)))
    except ApiError as e:
        yield unknown("slices", e.message)
        return
    found = list(faults(slices, names, others))
    found += [unknown("slices", str(part)) for part in unevaluated]
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


async def _rules(client: KubeClient) -> list[JSON]:
    """Returns the DeviceTaintRules; none if this account may not list them."""
    resource = await served_as(client, TAINT_RULES)
    try:
        return await read_all(client, resource, as_json) if resource is not None else []
    except ForbiddenError:
        return []


def faults(
    slices: Sequence[ReadOnlyJSON], nodes: set[str] | None, others: Sequence[ReadOnlyJSON] = ()
) -> Iterator[Finding]:
    """Yields a finding for each problem of pools and devices.

    Args:
        nodes: names of the cluster's nodes; None if they are not known.
        others: more slices of the same pools, which are not of the node that is checked.
    """
    every = [*slices, *others]
    # The rules of the scheduler for pools that it does not use are those of `dra top`.
    for text in count_usage(every, ()).notes:
        todo = "its driver corrects this; if it stays, see the driver's log, and in managedFields whether two programs write these slices"
        yield failure("slices", text, todo)
    now = newest_by_pool(every)
    for (driver, name), old in sorted(
        (Counter(map(key_of, every)) - Counter({k: len(v) for k, v in now.items()})).items()
    ):
        text = f"pool {name} of {driver}: {counted(old, 'slice')} of older generations"
        yield warning("slices", text, "its driver removes them; if they stay, the driver does not run")
    named = {str(s["spec"].get("nodeName") or "") for s in slices} - {""}
    if nodes is not None and (lost := sorted(named - nodes, key=natural)):
        text = f"slices for nodes that do not exist: {join_names(lost)}"
        yield warning("slices", text, "they are deleted with their owner; delete slices without an owner")
    own = set(map(id, slices))
    yield from _tainted([s for members in now.values() for s in members if id(s) in own])


def _tainted(slices: Sequence[ReadOnlyJSON]) -> Iterator[Finding]:
    """Yields a finding for each node with devices whose taints keep new pods away. The last finding counts the other nodes."""
    nodes: dict[str, dict[tuple[str, str], list[str]]] = {}  # names of devices by node, driver and taints
    for s in slices:
        for device in s["spec"].get("devices") or ():
            taints = [t for t in device.get("taints") or () if t.get("effect") in BLOCKING_EFFECTS]
            if taints:
                owner = device if s["spec"].get("perDeviceNodeSelection") else s["spec"]
                reason = f" ({text})" if (text := reason_of(device)) else ""
                key = s["spec"]["driver"], f"{join_names(map(taint_with_rule, taints))}{reason}"
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
