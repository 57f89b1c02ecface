"""What :func:`explain` answers: typed, frozen, and with words that programs can rely on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..snapshot import Gap


class ReasonKind(StrEnum):
    """What stands in the way of a pod. The values are stable: a dashboard may count them."""

    # The pod itself, wherever it would go
    GATED = "scheduling-gates"
    SCHEDULER_NAME = "scheduler-name"
    NODE_GIVEN = "node-name-given"
    DELETED = "pod-deleted"
    NODE_GONE = "node-gone"
    CLAIM_MISSING = "claim-missing"
    CLAIM_NOT_MADE = "claim-not-made"
    CLAIM_DELETED = "claim-deleted"
    CLAIM_OF_OTHER = "claim-of-another-pod"
    TEMPLATE_MISSING = "template-missing"
    CLASS_MISSING = "class-missing"
    ADMIN_LABEL = "admin-access-label"
    RESERVATION = "reservation"
    BY_HAND = "allocated-by-hand"
    BINDING = "binding-conditions"
    SELECTOR_ERROR = "selector-error"
    TOO_MANY = "more-than-a-claim-gets"
    NO_NODES = "no-nodes"
    OTHER = "other"
    # A node
    CORDONED = "node-unschedulable"
    NODE_TAINT = "node-taint"
    NODE_AFFINITY = "node-affinity"
    PORTS = "node-ports"
    RESOURCES = "node-resources"
    EXTENDED = "extended-resource"
    SPREAD = "topology-spread"
    POD_AFFINITY = "pod-affinity"
    CLAIM_ELSEWHERE = "claim-allocated-elsewhere"
    # Devices of a node
    NO_DEVICES = "no-devices"
    TOO_FEW = "too-few-devices"
    CLASS_SELECTOR = "class-selector"
    SELECTOR = "selector"
    NOT_HERE = "device-of-another-node"
    CAPACITY = "capacity"
    DEVICE_TAINT = "device-taint"
    HELD = "held"
    COUNTERS = "counters"
    POOL_INCOMPLETE = "pool-incomplete"
    POOL_INVALID = "pool-invalid"
    CONSTRAINT = "constraint"
    COMPETITION = "competition"
    TIMEOUT = "timeout"
    # After a node was found
    KUBELET = "kubelet"


class ExplanationState(StrEnum):
    RUNS = "runs"
    ENDED = "ended"  # and will not run again; whether well, its summary says
    SCHEDULED = "scheduled"
    FITS = "fits"  # waits, and nothing that can be seen stands in the way
    WAITS = "waits"
    UNKNOWN = "unknown"  # what would have to be read may not be


@dataclass(frozen=True)
class Example:
    """One place where a reason was seen, what was seen there, and how many places are like it."""

    where: str
    detail: str
    count: int


@dataclass(frozen=True)
class Reason:
    """Something in the way. ``text`` says what, the same for all nodes; ``change`` what would have to be otherwise.

    ``devices`` is how many devices of the group it concerns; 0 where it is about nodes or the pod.
    """

    kind: ReasonKind
    text: str
    change: str
    devices: int = 0
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class RequestOnNodes:
    """One request, or one alternative of it, on the nodes of a group.

    ``wanted`` is the number of devices; None for all that match. ``usable`` is the most that a node of the group has, of
    ``devices`` that were looked at on all of them.
    """

    claim: str
    request: str
    device_class: str
    wanted: int | None
    usable: int
    devices: int
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that refuse the pod for the same reasons, or take it. The first of ``reasons`` is the scheduler's."""

    nodes: tuple[str, ...]
    fits: bool
    reasons: tuple[Reason, ...]
    requests: tuple[RequestOnNodes, ...]


@dataclass(frozen=True)
class SuggestedChange:
    """Something that would be enough: tried on the nodes of a group, with the allocator itself."""

    text: str
    nodes: int
    example: str


@dataclass(frozen=True)
class HeldDevice:
    """A device that a claim has."""

    request: str
    driver: str
    pool: str
    device: str
    node: str
    slice: str
    detail: str


@dataclass(frozen=True)
class ClaimState:
    """A claim of the pod. ``name`` is empty where it has not been made; ``users`` are pods that it is reserved for."""

    entry: str
    name: str
    template: str
    allocated: bool
    devices: tuple[HeldDevice, ...]
    users: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """Why a pod or a claim waits, or what it has.

    ``reasons`` hold whatever the node is; ``groups`` are nodes by what they say, those nearest to taking the pod first.
    ``changes`` were tried, and each would be enough alone. ``said`` is the cluster's own word for it. ``notes`` are what was
    not looked at.
    """

    subject: str
    state: ExplanationState
    summary: str
    node: str = ""
    reasons: tuple[Reason, ...] = ()
    groups: tuple[NodeGroup, ...] = ()
    changes: tuple[SuggestedChange, ...] = ()
    claims: tuple[ClaimState, ...] = ()
    said: str = ""
    notes: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def kinds(self) -> frozenset[ReasonKind]:
        """All that stands in the way, anywhere."""
        found = [*self.reasons, *(r for g in self.groups for r in g.reasons)]
        found += [r for g in self.groups for q in g.requests for r in q.reasons]
        return frozenset(r.kind for r in found)

    @property
    def nodes(self) -> tuple[str, ...]:
        """That would take it."""
        return tuple(n for g in self.groups if g.fits for n in g.nodes)
