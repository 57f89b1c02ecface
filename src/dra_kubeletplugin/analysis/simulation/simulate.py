"""Simulates whether and where pods would fit, how many more would fit, and why the rest do not. The cluster does not change.

It places pods one by one like the scheduler, by priority and then in the order of the manifests. Each placed pod takes its
resources from the snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ...errors import QuestionError
from ...scheduling.framework import devices as pod_devices
from ...scheduling.framework import extended, pod_info, scoring
from ...scheduling.framework.binding import TIMEOUT
from ...scheduling.framework.claim_cache import results_of
from ...scheduling.framework.cycle import Cycle
from ...scheduling.framework.devices import PodClaims
from ...scheduling.framework.pod_info import PodInfo
from ...scheduling.framework.status import Rejection, SchedulerError
from ..explanation.explain import explain_pod
from ..explanation.model import Explanation
from ..explanation.node_feasibility import not_looked_at
from ..scheduler_view import SchedulerView
from ..snapshot import KINDS, Gap, Snapshot
from .workloads import SimulatedWorkload, allocated, checked, claim_for, workloads

JSON = dict[str, Any]
MAX_MORE = 1000  # pods that are tried in addition to the requested ones
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
    """

    workload: str
    pods: int
    placed: tuple[Placement, ...]
    more: int | None
    limited: bool
    stopped: Explanation | None

    @property
    def fits(self) -> bool:
        return len(self.placed) == self.pods

    @property
    def nodes(self) -> dict[str, int]:
        """Number of placed pods by node."""
        return dict(Counter(p.node for p in self.placed))


@dataclass(frozen=True)
class Simulation:
    """The result. ``devices`` counts all published devices, ``free`` counts devices without a holder after the simulation."""

    workloads: tuple[Fit, ...]
    nodes: int
    devices: int
    free: int
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
        there[KINDS[obj["kind"]].plural][_key(obj)] = obj
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
        every = {
            (s["spec"]["driver"], s["spec"]["pool"]["name"], d["name"])
            for s in self.view.snapshot.slices
            for d in s["spec"].get("devices") or []
        }
        held = {
            (r["driver"], r["pool"], r["device"])
            for c in self.view.claims
            for r in results_of(c)
            if not r.get("adminAccess")
        }
        unseen = (n for w in wanted for p in pods[w.shown][:1] for n in not_looked_at(pod_info.read(p)))
        notes = tuple(dict.fromkeys((*map(str, self.view.snapshot.unread), *unseen)))
        return Simulation(tuple(fits), len(nodes), len(every), len(every - held), notes, self.view.snapshot.gaps)

    def _place_all(self, workload: SimulatedWorkload, pods: Sequence[JSON], total: int) -> Fit:
        placed: list[Placement] = []
        stopped: Explanation | None = None
        for pod in pods:
            self._done += 1
            self._progress(self._done, total)
            if stopped is not None and not workload.per_node:
                continue  # the workload's pods are alike, and no device is freed, so no further pod fits
            found, why = self._place(pod, ExitStack())
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
        with ExitStack() as undo:
            while fit.fits and more < MAX_MORE and why is None:
                found, why = self._place(workload.pod(workload.count + more), undo)
                more += found is not None
                self._progress(more, MAX_MORE)
        return replace(fit, more=more, limited=more >= MAX_MORE, stopped=fit.stopped or why)

    # --- one pod --------------------------------------------------------------------------------

    def _place(self, pod: JSON, undo: ExitStack) -> tuple[Placement | None, Explanation | None]:
        """Places a pod. Returns the placement, or the explanation of why it fits nowhere.

        Args:
            undo: gets the calls that undo the placement. The placement stays if the stack is never closed.
        """
        pod = self._with_claims(pod, undo)
        info = pod_info.read(pod)
        cache = self.view.cache
        claims = pod_devices.read(info, cache.claims, cache.classes, cache.extended, TIMEOUT)
        if isinstance(claims, Rejection):
            return None, explain_pod(self.view, info)
        snapshot = cache.snapshot()
        cycle = Cycle(info, snapshot, claims, self.view.allocations())
        try:
            feasible = cycle.feasible()
        except SchedulerError:
            feasible = []
        if not feasible:
            return None, explain_pod(self.view, info)
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
            if extended.is_draft(before):
                undo.callback(self.view.remove_claim, after)
            else:
                undo.callback(self.view.set_claim, before)
            shown += [f"{r['request']}: {r['driver']}/{r['pool']}/{r['device']}" for r in results_of(after)]
        return shown


__all__ = ["Fit", "Placement", "Simulation", "simulate"]
