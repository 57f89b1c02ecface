"""The claims of one pod in one scheduling cycle: Kubernetes' plugin DynamicResources, PreFilter to Score.

Source: KEP-4381 with 4816, 5004, 5007 and 5517.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dra_kubeletplugin.base.json_types import JSON, ReadOnlyJSON
from dra_kubeletplugin.resourceapi import node_selectors

from ..allocator.faults import AllocationError, AllocationTimeout, NodeFault
from . import extended, node_resources, pod_groups
from .binding import Readiness, state_of
from .claim_cache import ClaimCache, is_allocated, reserved_for
from .node_allocation import NodeAllocator, fingerprint
from .node_info import NodeInfo
from .pod_info import PodInfo
from .status import Plugin, Rejection, SchedulerError

_ALTERNATIVES = 8  # the maximum number of alternatives of a request


def rejected(reason: str) -> Rejection:
    return Rejection.of(Plugin.DEVICES, reason)


class MissingClaim(Exception):
    """A claim of a pod does not exist, is being deleted or belongs to another pod. The pod is not scheduled."""


def claims_of(pod: PodInfo, store: ClaimCache) -> list[JSON]:
    """Returns the claims that a pod names, in order. Raises :class:`MissingClaim`."""
    return [claim for _, claim in _entries(pod, store)]


def _entries(pod: PodInfo, store: ClaimCache) -> list[tuple[JSON, JSON]]:
    """Returns the pod's ``resourceClaims`` entries, each with its claim."""
    made = {s["name"]: s for s in (pod.pod.get("status") or {}).get("resourceClaimStatuses") or []}
    out = []
    for entry in pod.spec.get("resourceClaims") or []:
        name = entry.get("resourceClaimName")
        if not name:
            if entry["name"] not in made:
                raise MissingClaim(f'pod "{pod.key}": ResourceClaim not created yet')
            generated = made[entry["name"]].get("resourceClaimName")
            if not generated:
                continue  # the pod needs no claim for this entry
        claim = store.get(pod.namespace, name or generated)
        if claim is None:
            raise MissingClaim(f'resourceclaim.resource.k8s.io "{name or generated}" not found')
        meta = claim["metadata"]
        if meta.get("deletionTimestamp"):
            raise MissingClaim(f'resourceclaim "{meta["name"]}" is being deleted')
        if not name and not pod_groups.made_for(claim, pod.pod):
            raise MissingClaim(f"ResourceClaim {meta['name']} was not created for pod {pod.key}")
        out.append((entry, claim))
    return out


@dataclass(frozen=True)
class NodeAllocation:
    """The possible allocation of a pod's unallocated claims on one node."""

    indices: list[int]  # of the claims
    results: list[JSON]
    extended: JSON | None  # the draft of the claim for extended resources, with the requests for this node
    mappings: list[JSON]
    node_resources: list[JSON] = field(default_factory=list)  # for the pod's status, see the module node_resources


@dataclass
class PodClaims:
    """The claims of a pod. The claim for its extended resources is last.

    Args:
        unusable: indices of allocated claims that cannot be used on at least one node.
        consumers: the entry of ``reservedFor`` for each claim, in the same order: the pod, or its PodGroup.
        names: the pod's name for each claim, in the same order.
        too_large: by node, the ``node_resources`` for which the node has too little.
    """

    claims: list[JSON] = field(default_factory=list)
    extended: JSON | None = None
    by_class: Mapping[str, str] = field(default_factory=dict)  # extended resource → class
    unusable: list[int] = field(default_factory=list)
    offers: dict[str, NodeAllocation] = field(default_factory=dict)
    consumers: list[JSON] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    too_large: dict[str, list[JSON]] = field(default_factory=dict)
    timeout: float = 0.0  # seconds for binding conditions

    @cached_property
    def _allocated(self) -> list[int]:
        return [i for i, c in enumerate(self.claims) if is_allocated(c)]

    @cached_property
    def _open(self) -> list[int]:
        """The indices of the claims that are not allocated yet, without the claim for extended resources."""
        return [i for i, c in enumerate(self.claims) if not is_allocated(c) and not self.is_extended(i)]

    @cached_property
    def _open_claims(self) -> list[JSON]:
        return [self.claims[i] for i in self._open]

    @cached_property
    def _keys(self) -> tuple[bytes, ...]:
        return tuple(map(fingerprint, self._open_claims))

    def is_extended(self, index: int) -> bool:
        return self.claims[index] is self.extended

    # --- filter ---------------------------------------------------------------------------------

    def rejects(self, pod: PodInfo, node: NodeInfo, allocations: NodeAllocator) -> Rejection | None:
        """Returns why the node is rejected, or None. This may take long, so callers run it in a thread.

        Raises :class:`SchedulerError` if the claims cannot be allocated on any node.
        """
        if not self.claims:
            return None
        filled: JSON | None = None
        mappings: list[JSON] = []
        if self.extended is not None:
            if not extended.is_draft(self.extended):
                return rejected("cannot schedule extended resource claim")
            missing = {r: c for r, c in self.by_class.items() if not node.allocatable.get(r)}
            if missing:
                filled, mappings = extended.for_node(self.extended, pod, missing)
            elif len(self.claims) == 1:
                return None  # the node's device plugins provide all extended resources of the pod
        unusable = [i for i in self._allocated if not self._usable(self.claims[i], node)]
        wanted, claims, keys = self._open, self._open_claims, self._keys
        if filled is not None:
            wanted, claims = [*wanted, len(self.claims) - 1], [*claims, filled]
            keys = (*keys, fingerprint(filled))
        results: list[JSON] = []
        if wanted:
            try:
                found = allocations.on(node, claims, keys)
            except (AllocationTimeout, NodeFault) as e:
                return rejected(str(e))
            except AllocationError as e:
                raise SchedulerError(f'running "{Plugin.DEVICES.value}" filter plugin: {e}') from e
            if found is None:
                return rejected("cannot allocate all claims")
            results = found
        if unusable:
            self.unusable += [i for i in unusable if i not in self.unusable]
            return rejected("resourceclaim not available on the node")
        offer = NodeAllocation(wanted, results, filled, mappings)
        if rejection := self._use_node(pod, node, offer, allocations):
            return rejection
        self.offers[node.name] = offer
        return None

    def _use_node(
        self, pod: PodInfo, node: NodeInfo, offer: NodeAllocation, allocations: NodeAllocator
    ) -> Rejection | None:
        """Adds to an offer the resources of the node that its devices use. Returns why the node rejects them, or None."""
        results = dict(zip(offer.indices, offer.results, strict=True))
        for index, claim in enumerate(self.claims):
            allocation = results.get(index) or (claim.get("status") or {}).get("allocation")
            devices = allocations.using_node(allocation) if allocation else ()
            if not devices:
                continue
            users = {user["uid"] for user in reserved_for(claim)}
            if users and self.consumers[index]["uid"] not in users:
                if rejection := node_resources.rejects_sharing(claim, devices):
                    return rejection
            try:
                offer.node_resources.append(node_resources.of_claim(claim, self._containers(pod, index), devices))
            except AllocationError as e:
                raise SchedulerError(f'running "{Plugin.DEVICES.value}" filter plugin: {e}') from e
        rejection = node_resources.rejects(pod, node, offer.node_resources) if offer.node_resources else None
        if rejection:
            self.too_large[node.name] = offer.node_resources
        return rejection

    def _containers(self, pod: PodInfo, index: int) -> list[str]:
        """Returns the names of the containers that use a claim."""
        containers = [*(pod.spec.get("initContainers") or ()), *pod.spec["containers"]]
        name = self.names[index]
        return [
            c["name"]
            for c in containers
            if any(u["name"] == name for u in (c.get("resources") or {}).get("claims") or ())
        ]

    def _usable(self, claim: JSON, node: NodeInfo) -> bool:
        selector = claim["status"]["allocation"].get("nodeSelector")
        if selector is not None and not node_selectors.selector_matches(node.node, selector):
            return False
        return state_of(claim, self.timeout).readiness not in {Readiness.FAILED, Readiness.TIMED_OUT}

    @property
    def has_alternatives(self) -> bool:
        """Whether any request has alternatives."""
        return any(
            r.get("firstAvailable") for c in self.claims for r in (c["spec"].get("devices") or {}).get("requests") or []
        )

    # --- score ----------------------------------------------------------------------------------

    def score(self, node: str) -> int:
        """Returns the score of a node. For each request with alternatives, the first alternative adds the most, the last the least."""
        offer = self.offers.get(node)
        if offer is None:
            return 0
        score = 0
        for index, result in zip(offer.indices, offer.results, strict=True):
            chosen = {r["request"] for r in result["devices"].get("results") or []}
            for request in (self.claims[index]["spec"].get("devices") or {}).get("requests") or []:
                for i, sub in enumerate(request.get("firstAvailable") or []):
                    if f"{request['name']}/{sub['name']}" in chosen:
                        score += _ALTERNATIVES - i
        return score


def read(
    pod: PodInfo,
    store: ClaimCache,
    classes: Mapping[str, ReadOnlyJSON],
    explicit: Mapping[str, str] | None,
    binding_timeout: float,
    group: JSON | None = None,
) -> PodClaims | Rejection:
    """Returns the pod's claims, or why they prevent the pod from running on any node.

    Args:
        explicit: extended resource name → class; None if the gate DRAExtendedResource is off.
        binding_timeout: in seconds.
        group: the pod's PodGroup, if claims can be reserved for it (gate DRAWorkloadResourceClaims).
    """
    try:
        entries = _entries(pod, store)
    except MissingClaim as e:
        return rejected(str(e))
    claims, own_reference = [claim for _, claim in entries], pod_groups.pod_reference(pod.pod)
    consumers = [
        pod_groups.group_reference(group) if group and pod_groups.shares(group, e) else own_reference
        for e, _ in entries
    ]
    names = [str(entry["name"]) for entry, _ in entries]
    by_class = extended.wanted(pod, explicit, classes) if explicit is not None else {}
    extended_claim = None
    if by_class:
        extended_claim = store.extended_of(pod.uid) or extended.draft(pod)
    for claim in claims:
        if is_allocated(claim):
            continue
        meta = claim["metadata"]
        if store.is_pending(meta["uid"]):
            return rejected(f"resource claim {meta['namespace']}/{meta['name']} is in the process of being allocated")
        if fault := _unknown_class(claim, classes):
            return rejected(fault)
    if extended_claim is not None:
        claims, consumers, names = [*claims, extended_claim], [*consumers, own_reference], [*names, ""]
    return PodClaims(claims, extended_claim, by_class, consumers=consumers, names=names, timeout=binding_timeout)


def _unknown_class(claim: JSON, classes: Collection[str]) -> str:
    for request in (claim["spec"].get("devices") or {}).get("requests") or []:
        named = [(request["name"], request["exactly"])] if request.get("exactly") else []
        named += [(f"{request['name']}/{sub['name']}", sub) for sub in request.get("firstAvailable") or []]
        if not named:
            meta = claim["metadata"]
            return f"resource claim {meta['namespace']}/{meta['name']}, request {request['name']}: unknown request type"
        for name, one in named:
            if one["deviceClassName"] not in classes:
                return f"request {name}: device class {one['deviceClassName']} does not exist"
    return ""
