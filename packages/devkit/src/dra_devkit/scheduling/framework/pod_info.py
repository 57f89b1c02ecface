"""The facts about a pod that the scheduler needs, read once from the object."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dra_kubeletplugin.base.json_types import JSON, ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import parse

from . import pod_groups

DEFAULT_SCHEDULER = "default-scheduler"
CPU, MEMORY, PODS, EPHEMERAL = "cpu", "memory", "pods", "ephemeral-storage"
_DEFAULT_CPU = 100  # millicores assumed for a container without a request, when nodes are compared
_DEFAULT_MEMORY = 200 * 1024 * 1024
_NATIVE = "kubernetes.io/"
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - the host address of a port that uses all addresses
Port = tuple[str, str, int]  # protocol, host address, port


@dataclass(frozen=True, eq=False)
class Needs:
    """The resources and ports that a pod needs on a node."""

    requests: Mapping[str, int]
    nonzero_requested: tuple[int, int]
    ports: tuple[Port, ...]


_NEEDS = ("containers", "initContainers", "resources", "overhead", "hostNetwork")
OF_CLAIMS = "nodeAllocatableResourceClaimStatuses"
"""The field of a pod's status with what the devices of its claims use of its node (KEP-5517)."""


def parts_of_needs(pod: JSON) -> tuple[int, ...]:
    """Returns the identities of the parts of a pod that decide its needs."""
    spec = pod["spec"]
    return (*(id(spec.get(name)) for name in _NEEDS), id(_entries_of_claims(pod) or None))


def _entries_of_claims(pod: JSON) -> Sequence[ReadOnlyJSON]:
    """Returns what the claims of a pod with a node use of the node. For a pod without a node, the scheduler computes it again."""
    return ((pod.get("status") or {}).get(OF_CLAIMS) or ()) if pod["spec"].get("nodeName") else ()


@dataclass(frozen=True, eq=False)
class PodInfo:
    """A pod as the scheduler sees it. ``requests`` are in millicores for ``cpu`` and in units for other resources."""

    pod: JSON
    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    priority: int
    requests: Mapping[str, int]
    nonzero_requested: tuple[int, int]  # millicores and bytes for comparing nodes, with defaults for missing requests
    ports: tuple[Port, ...]
    tolerations: tuple[JSON, ...]
    created: str

    @property
    def needs(self) -> Needs:
        return Needs(self.requests, self.nonzero_requested, self.ports)

    @property
    def spec(self) -> JSON:
        spec: JSON = self.pod["spec"]
        return spec

    @property
    def node(self) -> str:
        return str(self.spec.get("nodeName") or "")

    @property
    def nominated(self) -> str:
        return str((self.pod.get("status") or {}).get("nominatedNodeName") or "")

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def group(self) -> str:
        """The name of the pod's PodGroup, or ""."""
        return pod_groups.name_of(self.pod)

    @property
    def terminating(self) -> bool:
        return bool(self.pod["metadata"].get("deletionTimestamp"))

    @cached_property
    def claim_keys(self) -> frozenset[str]:
        """``namespace/name`` of the claims that the pod is known to use."""
        made = (self.pod.get("status") or {}).get("resourceClaimStatuses") or []
        named = [c.get("resourceClaimName") for c in [*(self.spec.get("resourceClaims") or []), *made]]
        return frozenset(f"{self.namespace}/{name}" for name in named if name)

    @cached_property
    def wanted(self) -> tuple[tuple[str, int], ...]:
        """The non-zero requests, in the order in which Kubernetes reports insufficient resources."""
        first = [n for n in (CPU, MEMORY, EPHEMERAL) if n in self.requests]
        names = first + sorted(n for n in self.requests if n not in first)
        return tuple((n, self.requests[n]) for n in names if self.requests[n])

    def with_claims(self, entries: Sequence[ReadOnlyJSON]) -> PodInfo:
        """Returns the pod with what its claims use of its node, by entries of :data:`OF_CLAIMS`."""
        needs = _with_claims(self.needs, self.spec, entries)
        return replace(self, requests=needs.requests, nonzero_requested=needs.nonzero_requested)

    @cached_property
    def has_affinity(self) -> bool:
        return bool(self.spec.get("affinity"))

    def affinity(self, kind: str) -> JSON:
        """Returns the pod's ``nodeAffinity``, ``podAffinity`` or ``podAntiAffinity``; empty if it is not set."""
        found: JSON = (self.spec.get("affinity") or {}).get(kind) or {}
        return found

    def terms(self, kind: str) -> list[JSON]:
        """Returns the required terms of ``podAffinity`` or ``podAntiAffinity``."""
        found: list[JSON] = self.affinity(kind).get("requiredDuringSchedulingIgnoredDuringExecution") or []
        return found


def read(pod: JSON, needs: Needs | None = None) -> PodInfo:
    """Reads a pod. Raises ``TypeError``, ``KeyError``, ``ValueError`` or ``AttributeError`` if the object is malformed.

    Args:
        needs: the needs of a pod with equal :func:`parts_of_needs`, if known.
    """
    meta, spec = pod["metadata"], pod["spec"]
    needs = needs or _with_claims(_needs(spec), spec, _entries_of_claims(pod))
    return PodInfo(
        pod,
        str(meta["uid"]),
        str(meta["namespace"]),
        str(meta["name"]),
        dict(meta.get("labels") or {}),
        int(spec.get("priority") or 0),
        needs.requests,
        needs.nonzero_requested,
        needs.ports,
        tuple(dict(t) for t in spec.get("tolerations") or []),
        str(meta.get("creationTimestamp") or ""),
    )


def _needs(spec: JSON) -> Needs:
    requests = pod_requests(spec)
    containers = [*spec["containers"], *_sidecars(spec)]
    cpu = requests.get(CPU, 0) or _DEFAULT_CPU * len(containers)
    memory = requests.get(MEMORY, 0) or _DEFAULT_MEMORY * len(containers)
    if requests.get(CPU) or requests.get(MEMORY):
        cpu = _nonzero_requested(spec, CPU, _DEFAULT_CPU, requests.get(CPU, 0))
        memory = _nonzero_requested(spec, MEMORY, _DEFAULT_MEMORY, requests.get(MEMORY, 0))
    return Needs(requests, (cpu, memory), tuple(_ports(spec)))


def _with_claims(needs: Needs, spec: JSON, entries: Sequence[ReadOnlyJSON]) -> Needs:
    """Adds what claims use of the node. An amount in ``spec.resources`` already contains that."""
    if not entries:
        return needs
    of_pod = spec.get("resources") or {}
    requests, more = dict(needs.requests), {CPU: 0, MEMORY: 0}
    for entry in entries:
        for name, amount in used_by_claim(entry).items():
            if not any(name in (of_pod.get(kind) or {}) for kind in ("requests", "limits")):
                _add(requests, {name: amount})
                _add(more, {name: amount})
    cpu, memory = needs.nonzero_requested
    return Needs(requests, (cpu + more[CPU], memory + more[MEMORY]), needs.ports)


def used_by_claim(entry: ReadOnlyJSON, references: int | None = None) -> dict[str, int]:
    """Returns what a claim uses of the node of a pod, by its entry in :data:`OF_CLAIMS`.

    Args:
        references: the number of containers that are counted; by default all that use the claim. As in Kubernetes 1.37, an init
            container counts for the whole life of the pod (kubernetes#140812).
    """
    times = len(entry.get("containers") or ()) if references is None else references
    used: dict[str, int] = {}
    for name, amount in (entry.get("resources") or {}).items():
        _add(used, {name: amount_of(name, amount)})
    for row in entry.get("mapping") or ():
        _add(used, {row["name"]: amount_of(row["name"], row["quantity"])})
    for row in entry.get("overhead") or ():
        amount = parse(str(row.get("perPod") or 0)) + parse(str(row.get("perContainer") or 0)) * times
        _add(used, {row["name"]: amount_of(row["name"], amount)})
    return used


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Returns the resources that a pod needs on a node.

    For each resource this is the sum of the containers or the peak of the init containers, whichever is higher. A resource in
    ``spec.resources`` replaces that amount. The overhead is added last. An init container with restartPolicy Always keeps
    running, so it is added to the containers and to later init containers.
    """
    total: dict[str, int] = {}
    for container in spec["containers"]:
        _add(total, container_requests(container))
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or []:
        wanted = container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(running, wanted)
            _add(total, wanted)
            _raise_to(peak, running)
        else:
            at_once = dict(running)
            _add(at_once, wanted)
            _raise_to(peak, at_once)
    _raise_to(total, peak)
    of_pod = spec.get("resources") or {}
    for name, amount in {**(of_pod.get("limits") or {}), **(of_pod.get("requests") or {})}.items():
        total[name] = amount_of(name, amount)
    _add(total, {name: amount_of(name, amount) for name, amount in (spec.get("overhead") or {}).items()})
    return total


def container_requests(container: Mapping[str, Any]) -> dict[str, int]:
    """Returns the requests of a container. A limit without a request counts as the request."""
    resources = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {str(name): amount_of(name, amount) for name, amount in wanted.items()}


def amount_of(name: str, amount: Any) -> int:
    value = parse(str(amount)).value
    return math.ceil(value * 1000) if name == CPU else math.ceil(value)


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Returns whether all containers of the pod have ended, so that it uses nothing of its node."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def is_extended(name: str) -> bool:
    """Returns whether a resource is an extended resource: fully qualified, not Kubernetes' own, not the name of a quota."""
    if "/" not in name or name.startswith("requests."):
        return False
    return name.startswith(IMPLICIT) or _NATIVE not in name


IMPLICIT = (
    "deviceclass.resource.kubernetes.io/"  # prefix of the extended resource that each DeviceClass has; its name follows
)


def _nonzero_requested(spec: Mapping[str, Any], name: str, default: int, requested: int) -> int:
    missing = sum(1 for c in [*spec["containers"], *_sidecars(spec)] if not container_requests(c).get(name))
    return requested + missing * default


def _sidecars(spec: Mapping[str, Any]) -> list[JSON]:
    return [c for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"]


def _ports(spec: Mapping[str, Any]) -> Iterable[Port]:
    for container in [*spec["containers"], *_sidecars(spec)]:
        for port in container.get("ports") or []:
            number = port.get("hostPort") or (port["containerPort"] if spec.get("hostNetwork") else 0)
            if number:
                yield str(port.get("protocol") or "TCP"), str(port.get("hostIP") or ANY_ADDRESS), int(number)


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise_to(total: dict[str, int], other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        total[name] = max(total.get(name, 0), amount)
