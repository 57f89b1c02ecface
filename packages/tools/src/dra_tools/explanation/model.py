"""The result types of :func:`explain`: frozen dataclasses with stable values for programs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..snapshot import Gap
from ..unevaluated.parts import UnevaluatedPart


class ReasonKind(StrEnum):
    """The kind of an obstacle for a pod. The values are stable, so a dashboard may count them."""

    # The pod itself, on any node
    GATED = "scheduling-gates"
    SCHEDULER_NAME = "scheduler-name"
    NODE_GIVEN = "node-name-given"
    DELETED = "pod-deleted"
    NODE_MISSING = "node-missing"
    CLAIM_MISSING = "claim-missing"
    CLAIM_NOT_CREATED = "claim-not-created"
    QUOTA = "quota"
    CLAIM_DELETED = "claim-deleted"
    CLAIM_OF_OTHER = "claim-of-another-pod"
    TEMPLATE_MISSING = "template-missing"
    CLASS_MISSING = "class-missing"
    ADMIN_LABEL = "admin-access-label"
    RESERVATION = "reservation"
    BY_HAND = "allocated-by-hand"
    BINDING = "binding-conditions"
    SELECTOR_ERROR = "selector-error"
    TOO_MANY = "too-many-devices"
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
    CLAIM_ON_OTHER_NODE = "claim-on-another-node"
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
    # After a node was selected
    KUBELET = "kubelet"


NOT_BLOCKING = frozenset({ReasonKind.GATED, ReasonKind.SCHEDULER_NAME})
"""Kinds of a pod's reasons that do not prevent the examination of nodes."""
NOT_TRIED = "no change was tried, because objects that decide the result could not be read"
OF_DEVICES = frozenset({ReasonKind.CONSTRAINT, ReasonKind.COUNTERS, ReasonKind.COMPETITION, ReasonKind.TIMEOUT})
"""Kinds of a node's reasons that concern several of its devices together."""


class ExplanationState(StrEnum):
    RUNS = "runs"
    ENDED = "ended"  # the pod does not run again; the summary contains success or failure
    SCHEDULED = "scheduled"
    FITS = "fits"  # the pod waits, and no obstacle is visible
    WAITS = "waits"
    UNKNOWN = "unknown"  # objects that decide the result may not be read, or the time limit was exceeded


@dataclass(frozen=True)
class Example:
    """One place where a reason was found, its detail there, and the number of places with the same detail."""

    where: str
    detail: str
    count: int


@dataclass(frozen=True)
class Reason:
    """One obstacle.

    Args:
        text: the obstacle; the same for all nodes.
        change: the change that would remove it.
        command: a command that makes the change on the first of the nodes, to paste; empty if there is none.
        devices: number of devices in the node group with this obstacle; 0 if it is an obstacle of nodes or of the pod.
        time: when an Event last reported the obstacle, RFC 3339; empty if it was found in the present objects.
    """

    kind: ReasonKind
    text: str
    change: str
    devices: int = 0
    examples: tuple[Example, ...] = ()
    command: str = ""
    time: str = ""


@dataclass(frozen=True)
class RequestOnNodes:
    """One request, or one alternative of it, on the nodes of a group.

    Args:
        wanted: the number of devices; None for all that match.
        usable: the largest number of usable devices on one node of the group.
        devices: the number of devices examined on all nodes of the group.
        resource: name of an extended resource; empty for a claim's request.
        container: the containers that request the extended resource; empty for a claim's request.
    """

    claim: str
    request: str
    device_class: str
    wanted: int | None
    usable: int
    devices: int
    reasons: tuple[Reason, ...]
    resource: str = ""
    container: str = ""

    @property
    def shown(self) -> str:
        return shown_request(self.request, self.resource, self.container)


def shown_request(request: str, resource: str, container: str) -> str:
    """Returns the words for a request: its name in the claim, or the extended resource as the pod's author wrote it."""
    return f"{resource} in container {container}" if resource else f"request {request}"


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that fit the pod, or that refuse it for the same reasons. The scheduler reports the first of ``reasons``."""

    nodes: tuple[str, ...]
    fits: bool
    reasons: tuple[Reason, ...]
    requests: tuple[RequestOnNodes, ...]


@dataclass(frozen=True)
class SuggestedChange:
    """A change that would be enough: with it, the pod could be scheduled.

    Args:
        nodes: the number of nodes on which it was tried and would be enough.
        command: a command that makes the change on the first of these nodes, to paste; empty if there is none.
    """

    text: str
    nodes: int
    example: str
    command: str = ""


@dataclass(frozen=True)
class HeldDevice:
    """A device that a claim has. ``resource`` and ``container`` are set for an extended resource."""

    request: str
    driver: str
    pool: str
    device: str
    node: str
    slice: str
    detail: str
    resource: str = ""
    container: str = ""

    @property
    def shown(self) -> str:
        return shown_request(self.request, self.resource, self.container) if self.resource else self.request


@dataclass(frozen=True)
class ClaimState:
    """A claim of the pod. ``name`` is empty if the claim is not created yet; ``users`` are the pods that the claim is reserved for."""

    entry: str
    name: str
    template: str
    allocated: bool
    devices: tuple[HeldDevice, ...]
    users: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The explanation why a pod or a claim waits, or which devices it has.

    Args:
        reasons: obstacles on any node.
        groups: nodes grouped by their reasons; groups that fit, or lack least, come first.
        changes: changes that were tried; each one alone would be enough. Empty if the pod has ``reasons``.
        apart: a sentence that says which nodes would take the pod if it had none of ``reasons``; empty if nodes were not examined.
        message: the cause that the scheduler or the kubelet reports for the pod.
        message_time: when the cluster last reported the message, RFC 3339; empty if it is not known.
        notes: parts that were not examined, and other remarks.
        unevaluated: parts of the pod, its claims and their devices that were not evaluated, so that the result is not known.
    """

    subject: str
    state: ExplanationState
    summary: str
    node: str = ""
    reasons: tuple[Reason, ...] = ()
    groups: tuple[NodeGroup, ...] = ()
    changes: tuple[SuggestedChange, ...] = ()
    claims: tuple[ClaimState, ...] = ()
    apart: str = ""
    message: str = ""
    message_time: str = ""
    notes: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    unevaluated: tuple[UnevaluatedPart, ...] = ()

    @property
    def reported(self) -> str:
        """When an Event last reported the cause in the summary; empty if the summary is about the present objects."""
        return next((r.time for r in self.reasons[:1] if r.text == self.summary), "")

    @property
    def kinds(self) -> frozenset[ReasonKind]:
        """The kinds of all obstacles."""
        found = [*self.reasons, *(r for g in self.groups for r in g.reasons)]
        found += [r for g in self.groups for q in g.requests for r in q.reasons]
        return frozenset(r.kind for r in found)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that fit."""
        return tuple(n for g in self.groups if g.fits for n in g.nodes)
