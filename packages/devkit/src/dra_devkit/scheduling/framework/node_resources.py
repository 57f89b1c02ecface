"""The resources of a node that allocated devices use, such as cpu (KEP-5517).

A device states them in ``nodeAllocatableResourceMappings`` (Kubernetes 1.36) or ``nodeAllocatableResources`` (1.37). The scheduler adds
them to the pod's requests, and writes them into the pod's ``nodeAllocatableResourceClaimStatuses``. Source: the plugin DynamicResources,
``nodeallocatabledynamicresources.go``, and ``component-helpers/resource/helpers.go`` of Kubernetes 1.36 and 1.37.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dra_kubeletplugin.base.json_types import JSON, ReadOnlyJSON
from dra_kubeletplugin.resourceapi.allocation import results_of
from dra_kubeletplugin.resourceapi.quantity import Quantity, parse

from ...generations import PoolKey, newest_by_pool
from ..allocator.faults import AllocationError
from .node_info import NodeInfo
from .pod_info import CPU, EPHEMERAL, MEMORY, PodInfo, amount_of, pod_requests, used_by_claim
from .slice_cache import Slices
from .status import Plugin, Rejection

# The field of a device in 1.36, and the field since 1.37.
MAPPINGS, RESOURCES = "nodeAllocatableResourceMappings", "nodeAllocatableResources"
_HUGE_PAGES = "hugepages-"
Amounts = dict[str, Quantity]  # by the name of the resource


class DeviceIndex:
    """The devices that use resources of their node. They are found once for each version of a pool's slices."""

    def __init__(self) -> None:
        self._slices = Slices()
        self._pools: dict[PoolKey, tuple[Sequence[JSON], Mapping[str, JSON]]] = {}

    def devices_of(self, allocation: JSON, slices: Slices) -> list[tuple[JSON, JSON]]:
        """Returns the results of an allocation whose devices use resources of their node, each with the device."""
        if slices is not self._slices:  # keeps only the pools whose slices are the same
            self._pools = {k: known for k, known in self._pools.items() if slices.by_pool.get(k) is known[0]}
            self._slices = slices
        found = []
        for result in results_of({"status": {"allocation": allocation}}):
            key = (str(result["driver"]), str(result["pool"]))
            if key not in self._pools:
                of_pool = slices.by_pool.get(key, ())
                self._pools[key] = of_pool, dict(_devices(of_pool))
            if device := self._pools[key][1].get(result["device"]):
                found.append((result, device))
        return found


def _devices(slices: Sequence[JSON]) -> Iterator[tuple[str, JSON]]:
    for newest in newest_by_pool(slices).values():
        for sl in newest:
            for device in sl["spec"].get("devices") or ():
                if device.get(RESOURCES) or device.get(MAPPINGS):
                    yield device["name"], device


def names_used(slices: Slices) -> frozenset[str]:
    """Returns the names of all resources of nodes that devices use."""
    devices = (device for of_pool in slices.by_pool.values() for _, device in _devices(of_pool))
    return frozenset(name for d in devices for name in (*(d.get(RESOURCES) or ()), *(d.get(MAPPINGS) or ())))


def rejects_sharing(claim: ReadOnlyJSON, devices: Sequence[tuple[JSON, JSON]]) -> Rejection | None:
    """Returns why a claim with these devices is for one pod only: a device itself is a part of the node's resources."""
    text = f"node allocatable resource claim {claim['metadata']['name']}"
    if any(d.get(MAPPINGS) for _, d in devices):
        return rejected(f"{text} is already used by another pod")
    if any(row.get("mapping") for _, d in devices for row in (d.get(RESOURCES) or {}).values()):
        return rejected(f"{text} has a mapped device and cannot be shared across pods")
    return None


def of_claim(claim: ReadOnlyJSON, containers: Sequence[str], devices: Sequence[tuple[JSON, JSON]]) -> JSON:
    """Returns the entry for a claim in the pod's status.

    Args:
        containers: the names of the containers that use the claim.
        devices: the allocated devices that use resources of their node; see :meth:`DeviceIndex.devices_of`.

    Raises :class:`AllocationError` if an amount depends on a capacity, and the device is not shared, so that no capacity is consumed.
    """
    meta = claim["metadata"]
    where = f"claim {meta.get('namespace')}/{meta['name']}, device "
    old: Amounts = {}
    mapping: Amounts = {}
    overhead: dict[str, Amounts] = {}  # by the name of the resource, then perPod and perContainer
    for result, device in devices:
        for name, row in (device.get(MAPPINGS) or {}).items():
            factor = row.get("allocationMultiplier") or "1"
            _add(old, name, _mapped(result, row.get("capacityKey"), factor, f"{where}{result['device']}", name))
        for name, row in (device.get(RESOURCES) or {}).items():
            if m := row.get("mapping"):
                factor = m.get("capacityMultiplier") or m.get("deviceMultiplier") or "1"
                _add(mapping, name, _mapped(result, m.get("capacityKey"), factor, f"{where}{result['device']}", name))
            for kind, amount in (row.get("overhead") or {}).items():
                _add(overhead.setdefault(name, {}), kind, parse(amount))
    entry = {"resourceClaimName": meta["name"], "containers": list(containers)}
    if old:
        entry["resources"] = {name: old[name].text for name in sorted(old)}
    if mapping:
        entry["mapping"] = [{"name": name, "quantity": mapping[name].text} for name in sorted(mapping)]
    if overhead:
        entry["overhead"] = [{"name": n, **{k: q.text for k, q in overhead[n].items()}} for n in sorted(overhead)]
    return entry


def _mapped(result: JSON, key: str | None, factor: str, where: str, resource: str) -> Quantity:
    if not key:
        return parse(factor)
    consumed = result.get("consumedCapacity")
    if consumed is None:
        raise AllocationError(
            f"{where}: ConsumedCapacity is nil, but Capacity key '{key}' is set in NodeAllocatableResources for resource "
            f"{resource}"
        )
    amount = parse(consumed.get(key, "0"))
    return Quantity(amount.value * parse(factor).value, amount.format)


def _add(amounts: Amounts, name: str, amount: Quantity) -> None:
    amounts[name] = amounts[name] + amount if name in amounts else amount


def rejects(pod: PodInfo, node: NodeInfo, entries: Sequence[ReadOnlyJSON]) -> Rejection | None:
    """Returns why a node rejects a pod whose claims use resources of the node.

    Args:
        entries: the entries of the pod's status, if the pod gets this node.
    """
    for entry in entries:
        if entry.get("resources") and not entry["containers"]:  # 1.37 permits it
            name = entry["resourceClaimName"]
            return rejected(
                f"claim {name}: node-allocatable resource claim not referenced by any container within the pod"
            )
    if fault := _exceeds_pod(pod.spec, entries):
        return rejected(fault)
    reasons, resolvable = [], True
    for name, wanted in pod.with_claims(entries).wanted:
        has = node.allocatable.get(name, 0)
        if is_of_node(name) and wanted > has - node.requested.get(name, 0):
            reasons.append(f"Insufficient {name}")
            resolvable = resolvable and wanted <= has
    return Rejection(Plugin.NODE_ALLOCATABLE, tuple(reasons), resolvable) if reasons else None


def rejected(reason: str) -> Rejection:
    return Rejection.of(Plugin.NODE_ALLOCATABLE, reason)


def is_of_node(name: str) -> bool:
    return name in {CPU, MEMORY, EPHEMERAL} or name.startswith(_HUGE_PAGES)


def _exceeds_pod(spec: ReadOnlyJSON, entries: Sequence[ReadOnlyJSON]) -> str:
    """Returns why the containers and claims of a pod exceed the amounts in its ``spec.resources``; empty if they do not."""
    of_pod = spec.get("resources") or {}
    if not of_pod:
        return ""
    total = pod_requests({k: v for k, v in spec.items() if k not in {"resources", "overhead"}})
    for entry in entries:
        for name, amount in used_by_claim(entry).items():
            total[name] = total.get(name, 0) + amount
    for kind in ("request", "limit"):
        for name, amount in (of_pod.get(f"{kind}s") or {}).items():
            if (kind == "request" or name.startswith(_HUGE_PAGES)) and total.get(name, 0) > amount_of(name, amount):
                covered = f"the aggregated container and node-allocatable DRA {kind}s"
                return f"pod level {kind} for {name} is insufficient to cover {covered}"
    limits = of_pod.get("limits") or {}
    if any(e.get("resources") for e in entries):  # 1.36 has no further check
        return ""
    for container in spec["containers"]:
        own = [used_by_claim(e, 1) for e in entries if container["name"] in e["containers"]]
        for name, limit in ((container.get("resources") or {}).get("limits") or {}).items():
            wanted = amount_of(name, limit) + sum(used.get(name, 0) for used in own)
            if name in limits and not name.startswith(_HUGE_PAGES) and wanted > amount_of(name, limits[name]):
                covered = f"the limit and DRA overhead for container {container['name']}"
                return f"pod level limit for {name} is insufficient to cover {covered}"
    return ""
