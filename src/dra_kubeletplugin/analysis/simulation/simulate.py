"""Simulates whether and where pods would fit, how many more would fit, and why the rest do not. The cluster does not change.

It places pods one by one like the scheduler, by priority and then in the order of the manifests. Each placed pod takes its
resources from the snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ...errors import QuestionError
from ...kube.resource import NODES
from ...resourceapi.allocation import results_of
from ...resourceapi.usage.rows import counted
from ...resourceapi.usage.usage import count_usage
from ...scheduling.framework import devices as pod_devices
from ...scheduling.framework import extended, pod_info, scoring
from ...scheduling.framework.binding import TIMEOUT
from ...scheduling.framework.cycle import Cycle
from ...scheduling.framework.devices import PodClaims
from ...scheduling.framework.pod_info import PodInfo
from ...scheduling.framework.status import Plugin, Rejection, SchedulerError
from ..explanation import cluster_reasons
from ..explanation.explain import explain_pod
from ..explanation.model import NOT_BLOCKING, Explanation
from ..explanation.node_feasibility import unexamined_features
from ..scheduler_view import SchedulerView
from ..snapshot import KINDS, Gap, Snapshot
from .workloads import SimulatedWorkload, allocated, checked, claim_for, workloads

JSON = dict[str, Any]
MAX_MORE = 1000  # pods that are tried in addition to the requested ones
_CHANGEABLE = {Plugin.SPREAD, Plugin.POD_AFFINITY}  # plugins that accept a node again after another pod was placed
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Placement:
    """The node of a pod and its devices as ``request: driver/pool/device``."""

    pod: str
    node: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Fit:
    """The result of one workload.

    Args:
        more: how many further pods would fit; None if they were not counted.
        limited: whether counting stopped at the limit, so that even more pods may fit.
        stopped: the explanation for the first pod that did not fit; None if all fit.
        no_more: the explanation, without changes, for the first further pod that did not fit; None if none was tried or all fit.
    """

    workload: str
    pods: int
    placed: tuple[Placement, ...]
    more: int | None
    limited: bool
    stopped: Explanation | None
    no_more: Explanation | None = None

    @property
    def fits(self) -> bool:
        return len(self.placed) == self.pods

    @property
    def nodes(self) -> dict[str, int]:
        """Number of placed pods by node."""
        return dict(Counter(p.node for p in self.placed))


@dataclass(frozen=True)
class Simulation:
    """The result. ``free`` to ``unavailable`` are numbers of devices after the simulation, as in :class:`~..Count`."""

    workloads: tuple[Fit, ...]
    nodes: int
    devices: int
    free: int
    held: int = 0
    shared: int = 0
    blocked: int = 0
    unavailable: int = 0
    notes: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def fits(self) -> bool:
        return all(w.fits for w in self.workloads)


def simulate(
    snapshot: Snapshot,
    manifests: Sequence[JSON],
    *,
    namespace: str = "default",
    fill: bool = False,
    progress: Progress = lambda done, of: None,
) -> Simulation:
    """Returns whether the pods of ``manifests`` would fit into the cluster of ``snapshot``.

    If a selector cannot be evaluated for a device that the search reaches, the pod fits on no node.

    Args:
        manifests: pods and workloads (Deployment, StatefulSet, Job, DaemonSet ...), with claims, templates and classes
            that the cluster does not have. An object in the manifests replaces the cluster's object of the same name.
        namespace: the namespace for manifests that do not set it.
        fill: also count how many more pods of each workload would fit, each workload alone, after all requested pods.
        progress: called with the number of pods tried and the number of all pods.

    Raises:
        QuestionError: a server would refuse a manifest, or there are no pods in the manifests.
    """
    found = sorted(workloads(manifests, namespace), key=lambda w: -int(w.spec.get("priority") or 0))
    if not found:
        raise QuestionError("the manifests have no pods: no Pod, Deployment, StatefulSet, Job, DaemonSet or the like")
    used = [m for m in checked(manifests, namespace) if m["kind"] != "Pod"]
    return _Simulator(SchedulerView(_with(snapshot, used)), progress).run(found, fill=fill)


def _with(snapshot: Snapshot, objects: Iterable[JSON]) -> Snapshot:
    """Returns the snapshot with objects added; they replace objects of the same name."""
    there: dict[str, dict[tuple[str, str], JSON]] = {}
    for plural, known in snapshot.objects.items():
        there[plural] = {_key(o): o for o in known}
    for obj in objects:
        there.setdefault(KINDS[obj["kind"]].plural, {})[_key(obj)] = obj
    found = {plural: list(known.values()) for plural, known in there.items()}
    return Snapshot.by_plural(found, snapshot.gaps, snapshot.unread, live=snapshot.live)


def _key(obj: JSON) -> tuple[str, str]:
    return str(obj["metadata"].get("namespace") or ""), str(obj["metadata"]["name"])


class _Simulator:
    def __init__(self, view: SchedulerView, progress: Progress) -> None:
        self.view = view
        self._progress = progress
        self._templates = {(t["metadata"]["namespace"], t["metadata"]["name"]): t for t in view.snapshot.templates}
        self._done = 0

    def run(self, wanted: Sequence[SimulatedWorkload], *, fill: bool) -> Simulation:
        nodes = self.view.cache.snapshot().nodes
        pods = {w.shown: list(w.pods(nodes)) for w in wanted}
        total = sum(map(len, pods.values()))
        fits = [self._place_all(w, pods[w.shown], total) for w in wanted]
        if fill:
            fits = [self._with_more(w, fit) for w, fit in zip(wanted, fits, strict=True)]
        known = self.view.snapshot
        usage = count_usage(known.tainted_slices, self.view.claims, nodes=None if known.gap(NODES) else known.nodes)
        after = counted(usage.devices)
        unseen = (n for w in wanted for p in pods[w.shown][:1] for n in self._notes(w, pod_info.read(p)))
        notes = tuple(dict.fromkeys((*map(str, known.unread), *unseen)))
        return Simulation(
            tuple(fits), len(nodes), after.devices, after.free, after.held, after.shared, after.blocked, after.unavailable,
            notes, known.gaps,
        )  # fmt: skip

    def _notes(self, workload: SimulatedWorkload, pod: PodInfo) -> Iterator[str]:
        """Yields the features of a pod that the simulation ignores, among them scheduling gates and other schedulers."""
        yield from unexamined_features(pod)
        for reason in cluster_reasons.reasons(self.view, pod):
            if reason.kind in NOT_BLOCKING:
                yield f"{workload.shown}: {reason.text}"

    def _place_all(self, workload: SimulatedWorkload, pods: Sequence[JSON], total: int) -> Fit:
        placed: list[Placement] = []
        stopped: Explanation | None = None
        rejecting: set[str] = set()
        for pod in pods:
            self._done += 1
            self._progress(self._done, total)
            if stopped is not None and not workload.per_node:
                continue  # the workload's pods are alike, and no device is freed, so no further pod fits
            of_workload = set() if workload.per_node else rejecting
            found, why = self._place(pod, ExitStack(), of_workload, changes=True)
            if found is not None:
                placed.append(found)
            stopped = stopped or why
        return Fit(workload.shown, len(pods), tuple(placed), None, False, stopped)

    def _with_more(self, workload: SimulatedWorkload, fit: Fit) -> Fit:
        """Counts further pods that would fit, and undoes their placement."""
        if workload.per_node:
            return fit
        more = 0
        why = None
        rejecting: set[str] = set()
        with ExitStack() as undo:
            while fit.fits and more < MAX_MORE and why is None:
                found, why = self._place(workload.pod(workload.count + more), undo, rejecting, changes=False)
                more += found is not None
                self._progress(more, MAX_MORE)
        return replace(fit, more=more, limited=more >= MAX_MORE, no_more=why)

    # --- one pod --------------------------------------------------------------------------------

    def _place(
        self, pod: JSON, undo: ExitStack, rejecting: set[str], *, changes: bool
    ) -> tuple[Placement | None, Explanation | None]:
        """Places a pod. Returns the placement, or the explanation of why it fits nowhere.

        Args:
            undo: gets the calls that undo the placement. The placement stays if the stack is never closed.
            rejecting: nodes that rejected an earlier pod of the workload, and so reject this pod. Gets more such nodes.
            changes: whether the explanation tries changes that would be enough.
        """
        pod = self._with_claims(pod, undo)
        info = pod_info.read(pod)
        cache = self.view.cache
        claims = pod_devices.read(info, cache.claims, cache.classes, cache.extended, TIMEOUT)
        blocking = any(r.kind not in NOT_BLOCKING for r in cluster_reasons.reasons(self.view, info))
        if blocking or isinstance(claims, Rejection):
            return None, explain_pod(self.view, info, changes=changes)
        snapshot = cache.snapshot()
        cycle = Cycle(info, snapshot, claims, self.view.allocations())
        try:
            feasible = cycle.feasible(without=rejecting)
        except SchedulerError:
            feasible = []
        if all(e.get("resourceClaimTemplateName") for e in info.spec.get("resourceClaims") or ()):
            # A placement only takes resources, so these nodes reject every further pod that has claims of its own.
            rejecting.update(name for name, r in cycle.rejected.items() if r.plugin not in _CHANGEABLE)
        if not feasible:
            return None, explain_pod(self.view, info, changes=changes)
        node = scoring.best(
            info, feasible, snapshot.nodes, snapshot.namespaces, claims.score, has_alternatives=claims.has_alternatives
        )
        devices = self._take(info, claims, node.name, undo)
        cache.place(info, node.name)
        undo.callback(cache.displace, info.uid)
        return Placement(info.key, node.name, tuple(devices)), None

    def _with_claims(self, pod: JSON, undo: ExitStack) -> JSON:
        """Creates the pod's claims from templates. Returns the pod with the claims' names in its status."""
        made = []
        for entry in pod["spec"].get("resourceClaims") or []:
            template = self._templates.get((pod["metadata"]["namespace"], str(entry.get("resourceClaimTemplateName"))))
            if template is None:
                continue
            claim = claim_for(pod, entry, template)
            self.view.set_claim(claim)
            self.view.kept.add(str(claim["metadata"]["uid"]))
            undo.callback(self.view.remove_claim, claim)
            made.append({"name": entry["name"], "resourceClaimName": claim["metadata"]["name"]})
        return {**pod, "status": {**pod["status"], "resourceClaimStatuses": made}}

    def _take(self, pod: PodInfo, claims: PodClaims, node: str, undo: ExitStack) -> list[str]:
        """Writes the node's offer into the claims. Returns descriptions of the devices."""
        offer = claims.offers.get(node)
        results = dict(zip(offer.indices, offer.results, strict=True)) if offer else {}
        shown = []
        for index, before in enumerate(claims.claims):
            claim = before
            if extended.is_draft(before):
                if index not in results or offer is None or offer.extended is None:
                    continue  # a device plugin provides the resource
                meta = {**before["metadata"], "name": f"{pod.name}-extended-resources"}
                claim = {**offer.extended, "metadata": meta}
            allocation = results.get(index) or claim["status"]["allocation"]
            after = allocated(claim, allocation, pod)
            self.view.set_claim(after)
            self.view.kept.add(str(after["metadata"]["uid"]))
            if extended.is_draft(before):
                undo.callback(self.view.remove_claim, after)
            else:
                undo.callback(self.view.set_claim, before)
            shown += [f"{r['request']}: {r['driver']}/{r['pool']}/{r['device']}" for r in results_of(after)]
        return shown
