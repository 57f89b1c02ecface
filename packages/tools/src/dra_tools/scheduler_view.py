"""A snapshot in the form that a scheduler uses: nodes with their pods, claims with their devices, slices by node."""

from __future__ import annotations

import copy
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any

from dra_devkit import quotas
from dra_devkit.generations import PoolKey, key_of
from dra_devkit.kubernetes_releases import allocator_behavior
from dra_devkit.quotas import QuotaUse
from dra_devkit.scheduling.allocator.pools import DeviceId
from dra_devkit.scheduling.allocator.search import TIME_LIMIT
from dra_devkit.scheduling.framework import extended, pod_groups, pod_info
from dra_devkit.scheduling.framework.cache import Cache
from dra_devkit.scheduling.framework.claim_cache import reserved_for
from dra_devkit.scheduling.framework.node_allocation import AllocationMemory, NodeAllocator
from dra_devkit.scheduling.framework.pod_info import PodInfo, is_finished
from dra_devkit.scheduling.framework.slice_cache import Slices
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import join_names
from dra_kubeletplugin.kube.resource import CLASSES, NODES
from dra_kubeletplugin.resourceapi.allocation import results_of

from .snapshot import Snapshot

_UNLIMITED = {"cpu": "1M", "memory": "1Pi", "ephemeral-storage": "1Pi", "pods": "100k"}


class SchedulerView:
    """The scheduler's caches, filled from a snapshot.

    If a node was not read, it uses a substitute for each node name in slices. If a class was not read, it uses
    substitutes that select any device.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.behavior = allocator_behavior(snapshot.version)
        self.cache = Cache()
        self.memory = AllocationMemory()
        self.quotas = quota_use(snapshot)
        self.kept: set[str] = set()  # UIDs of claims that no suggested change frees, because a simulation made them
        self.found: dict[Hashable, Any] = {}  # results that are valid until a claim changes
        nodes = {str(n["metadata"]["name"]): n for n in snapshot.nodes}
        if not snapshot.is_complete(NODES):
            nodes = {str(n["metadata"]["name"]): n for n in _named_by_slices(snapshot.slices)} | nodes
        for node in nodes.values():
            self.cache.node_changed(node)
        for namespace in snapshot.namespaces:
            self.cache.namespace_changed(namespace, gone=False)
        self.namespaces = {
            str(n["metadata"]["name"]): dict(n["metadata"].get("labels") or {}) for n in snapshot.namespaces
        }
        self.groups = {(str(g["metadata"]["namespace"]), str(g["metadata"]["name"])): g for g in snapshot.groups}
        self._claims = {str(c["metadata"]["uid"]): c for c in snapshot.claims}
        self.cache.claims.observe_all(snapshot.claims)
        substitutes = () if snapshot.is_complete(CLASSES) else _named_by(snapshot.claims, snapshot.templates)
        self.cache.classes = {str(c["metadata"]["name"]): c for c in (*substitutes, *snapshot.classes)}
        self.cache.extended = extended.class_names(self.cache.classes.values())
        self.cache.slices.slices = _by_node(snapshot.tainted_slices)
        self._place(p for p in snapshot.pods if not is_finished(p))
        self._holders: dict[DeviceId, list[JSON]] | None = None

    def _place(self, pods: Iterable[JSON]) -> None:
        needs: dict[tuple[int, ...], pod_info.Needs] = {}  # by the identity of parts that pods share
        by_node: dict[str, dict[str, PodInfo]] = {}  # by node and UID
        for pod in pods:
            parts = pod_info.parts_of_needs(pod)
            info = pod_info.read(pod, needs.get(parts))
            needs[parts] = info.needs
            if info.node:
                by_node.setdefault(info.node, {})[info.uid] = info
            else:
                self.cache.nominate(info, info.nominated)
        for name, infos in by_node.items():
            self.cache.place_all(list(infos.values()), name)

    def with_snapshot(self, snapshot: Snapshot) -> SchedulerView:
        """Returns a view with the same caches for a snapshot that differs only in events."""
        out = copy.copy(self)
        out.snapshot = snapshot
        return out

    def group_of(self, pod: PodInfo) -> JSON | None:
        """Returns the PodGroup of a pod; None without a group, or if the snapshot does not have the group."""
        return self.groups.get((pod.namespace, pod.group))

    @property
    def slices(self) -> Slices:
        return self.cache.slices.slices

    @property
    def claims(self) -> Collection[JSON]:
        return self._claims.values()

    def set_claim(self, claim: JSON) -> None:
        """Adds or replaces a claim."""
        self._claims[str(claim["metadata"]["uid"])] = claim
        self._holders = None
        self.found.clear()
        self.cache.claims.observe(claim)

    def remove_claim(self, claim: JSON) -> None:
        self._claims.pop(str(claim["metadata"]["uid"]), None)
        self._holders = None
        self.found.clear()
        self.cache.claims.forget(claim)

    def allocations(self, limit: float = TIME_LIMIT) -> NodeAllocator:
        """Returns an allocator for one pass over all nodes. ``limit``: seconds for one node."""
        nodes = len(self.snapshot.nodes) or 1
        return NodeAllocator(self.memory, self.cache.devices(), nodes, limit, behavior=self.behavior)

    def holders(self, device: DeviceId) -> list[JSON]:
        """Returns the claims that have a device or a share of it."""
        if self._holders is None:
            self._holders = {}
            for claim in self.claims:
                for result in results_of(claim):
                    if not result.get("adminAccess"):
                        held = DeviceId(result["driver"], result["pool"], result["device"])
                        self._holders.setdefault(held, []).append(claim)
        return self._holders.get(device, [])


def quota_use(snapshot: Snapshot) -> QuotaUse:
    """Returns the use of the snapshot's quotas by its pods and claims."""
    kinds = ((quotas.PODS, snapshot.pods), (quotas.CLAIMS, snapshot.claims)) if snapshot.quotas else ()
    return QuotaUse(snapshot.quotas, snapshot.classes, [(kind, obj) for kind, objects in kinds for obj in objects])


def name_of(obj: Mapping[str, Any]) -> str:
    """Returns ``namespace/name``."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def describe_claim(claim: JSON) -> str:
    """Describes a claim and its users, for example ``claim ml/a of pod ml/a-0`` or ``claim ml/b of PodGroup ml/train``."""
    users = users_of(claim)
    if not users and (group := group_owner(claim)):
        users = [f"{pod_groups.KIND} {claim['metadata']['namespace']}/{group}"]
    return f"claim {name_of(claim)} " + (f"of {join_names(users, 1)}" if users else "that no pod uses")


def group_owner(claim: JSON) -> str:
    """Returns the name of the PodGroup for which a claim was made; empty for other claims."""
    owners = claim["metadata"].get("ownerReferences") or []
    return next((str(o.get("name")) for o in owners if o.get("controller") and o.get("kind") == pod_groups.KIND), "")


def users_of(claim: JSON) -> list[str]:
    """Returns the users for which a claim is reserved, for example ``pod ml/a-0`` or ``PodGroup ml/train``."""
    namespace = claim["metadata"]["namespace"]
    return [f"{_kind_of_user(r)} {namespace}/{r.get('name')}" for r in reserved_for(claim)]


def _kind_of_user(reference: JSON) -> str:
    if pod_groups.is_group(reference):
        return pod_groups.KIND
    return str(reference.get("resource", "pods")).removesuffix("s")


def _by_node(slices: Iterable[JSON]) -> Slices:
    """Groups slices by node and by pool as the scheduler's cache does, in one pass."""
    local: dict[str, list[JSON]] = {}
    wide: list[JSON] = []
    by_pool: dict[PoolKey, list[JSON]] = {}
    for sl in slices:
        spec = sl["spec"]
        node = "" if spec.get("sharedCounters") else str(spec.get("nodeName") or "")
        (local.setdefault(node, []) if node else wide).append(sl)
        by_pool.setdefault(key_of(sl), []).append(sl)
    return Slices({n: tuple(s) for n, s in local.items()}, tuple(wide), {k: tuple(s) for k, s in by_pool.items()})


def _named_by_slices(slices: Iterable[JSON]) -> Iterator[JSON]:
    names = {str(s["spec"].get("nodeName") or "") for s in slices} - {""}
    for name in sorted(names):
        labels = {"kubernetes.io/hostname": name}
        yield {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {"allocatable": _UNLIMITED}}


def _named_by(claims: Iterable[JSON], templates: Iterable[JSON]) -> Iterator[JSON]:
    specs = [*(c["spec"] for c in claims), *(t["spec"]["spec"] for t in templates)]
    for name in sorted({str(one["deviceClassName"]) for spec in specs for _, one in named_requests(spec)}):
        yield {"metadata": {"name": name}, "spec": {}}


def named_requests(spec: Mapping[str, Any]) -> Iterator[tuple[str, JSON]]:
    """Yields the requests of a claim's spec with their names, and each alternative separately."""
    for request in (spec.get("devices") or {}).get("requests") or []:
        if request.get("exactly"):
            yield str(request["name"]), request["exactly"]
        for sub in request.get("firstAvailable") or []:
            yield f"{request['name']}/{sub['name']}", sub
