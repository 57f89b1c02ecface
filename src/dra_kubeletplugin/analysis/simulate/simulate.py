"""``simulate``: whether and where pods would fit, how many more would, and what stops the rest. Nothing is written anywhere.

Pods are placed one after the other as the scheduler does it, by priority and then in order, on a snapshot that fills up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
from ..explain.explain import explain_pod
from ..explain.model import Explanation
from ..explain.node_feasibility import not_looked_at
from ..scheduler_view import SchedulerView
from ..snapshot import KINDS, Gap, Snapshot
from .workloads import SimulatedWorkload, allocated, checked, claim_for, workloads

JSON = dict[str, Any]
MOST_MORE = 1000  # pods that are tried beyond those that were asked for
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Placement:
    """Where a pod would go, and which devices it would have: ``request: driver/pool/device``."""

    pod: str
    node: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Fit:
    """One workload. ``more`` is how many pods beyond it would fit, None where that was not asked; ``limited`` that it was not
    counted further. ``stopped`` is why the first pod that did not fit did not.
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
        """How many pods each node has of it."""
        return dict(Counter(p.node for p in self.placed))


@dataclass(frozen=True)
class Simulation:
    """``devices`` are all that are published, ``free`` those of them that nobody has in the end."""

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
    """Whether the pods of ``manifests`` would fit into the cluster of ``snapshot``.

    Args:
        manifests: pods and workloads (Deployment, StatefulSet, Job, DaemonSet ...), with the claims, templates and classes that
            they need where the cluster has them not; what both have is as in the manifests.
        namespace: of manifests that name none.
        fill: also count how many more pods of each workload would fit, each alone, after all that are asked for.
        progress: hears how many pods were tried, and of how many.

    Raises :class:`QuestionError` for manifests that a server would refuse, and where there are no pods in them.
    """
    found = sorted(workloads(manifests, namespace), key=lambda w: -int(w.spec.get("priority") or 0))
    if not found:
        raise QuestionError("the manifests have no pods: no Pod, Deployment, StatefulSet, Job, DaemonSet or the like")
    used = [m for m in checked(manifests, namespace) if m["kind"] != "Pod"]
    return _Simulator(SchedulerView(_with(snapshot, used)), progress).run(found, fill=fill)


def _with(snapshot: Snapshot, objects: Iterable[JSON]) -> Snapshot:
    """The snapshot with objects that take the place of those of the same name."""
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
    def __init__(self, scene: SchedulerView, progress: Progress) -> None:
        self.scene = scene
        self._progress = progress
        self._templates = {(t["metadata"]["namespace"], t["metadata"]["name"]): t for t in scene.snapshot.templates}
        self._done = 0

    def run(self, wanted: Sequence[SimulatedWorkload], *, fill: bool) -> Simulation:
        nodes = self.scene.cache.snapshot().nodes
        pods = {w.shown: list(w.pods(nodes)) for w in wanted}
        total = sum(map(len, pods.values()))
        fits = [self._place_all(w, pods[w.shown], total) for w in wanted]
        if fill:
            fits = [self._with_more(w, fit) for w, fit in zip(wanted, fits, strict=True)]
        every = {
            (s["spec"]["driver"], s["spec"]["pool"]["name"], d["name"])
            for s in self.scene.snapshot.slices
            for d in s["spec"].get("devices") or []
        }
        held = {
            (r["driver"], r["pool"], r["device"])
            for c in self.scene.claims
            for r in results_of(c)
            if not r.get("adminAccess")
        }
        unseen = (n for w in wanted for p in pods[w.shown][:1] for n in not_looked_at(pod_info.read(p)))
        notes = tuple(dict.fromkeys((*map(str, self.scene.snapshot.unread), *unseen)))
        return Simulation(tuple(fits), len(nodes), len(every), len(every - held), notes, self.scene.snapshot.gaps)

    def _place_all(self, workload: SimulatedWorkload, pods: Sequence[JSON], total: int) -> Fit:
        placed: list[Placement] = []
        stopped: Explanation | None = None
        for pod in pods:
            self._done += 1
            self._progress(self._done, total)
            if stopped is not None and not workload.per_node:
                continue  # its pods are alike, and nothing gets free meanwhile
            found, why = self._place(pod, [])
            if found is not None:
                placed.append(found)
            stopped = stopped or why
        return Fit(workload.shown, len(pods), tuple(placed), None, False, stopped)

    def _with_more(self, workload: SimulatedWorkload, fit: Fit) -> Fit:
        """Tries more pods, and takes them back."""
        if workload.per_node:
            return fit
        undo: list[Callable[[], None]] = []
        more = 0
        why = None
        while fit.fits and more < MOST_MORE and why is None:
            found, why = self._place(workload.pod(workload.count + more), undo)
            more += found is not None
            self._progress(more, MOST_MORE)
        for step in reversed(undo):
            step()
        return replace(fit, more=more, limited=more >= MOST_MORE, stopped=fit.stopped or why)

    # --- one pod --------------------------------------------------------------------------------

    def _place(self, pod: JSON, undo: list[Callable[[], None]]) -> tuple[Placement | None, Explanation | None]:
        """Where it goes, or why nowhere. ``undo`` gets what takes it back."""
        pod = self._with_claims(pod, undo)
        info = pod_info.read(pod)
        cache = self.scene.cache
        claims = pod_devices.read(info, cache.claims, cache.classes, cache.extended, TIMEOUT)
        if isinstance(claims, Rejection):
            return None, explain_pod(self.scene, info)
        snapshot = cache.snapshot()
        cycle = Cycle(info, snapshot, claims, self.scene.allocations())
        try:
            feasible = cycle.feasible()
        except SchedulerError:
            feasible = []
        if not feasible:
            return None, explain_pod(self.scene, info)
        node = scoring.best(info, feasible, snapshot.nodes, snapshot.namespaces, claims.score, lists=claims.lists)
        devices = self._take(info, claims, node.name, undo)
        cache.place(info, node.name)
        undo.append(lambda: _ignore(cache.displace(info.uid)))
        return Placement(info.key, node.name, tuple(devices)), None

    def _with_claims(self, pod: JSON, undo: list[Callable[[], None]]) -> JSON:
        """The pod with the claims that are made for it."""
        made = []
        for entry in pod["spec"].get("resourceClaims") or []:
            template = self._templates.get((pod["metadata"]["namespace"], str(entry.get("resourceClaimTemplateName"))))
            if template is None:
                continue
            claim = claim_for(pod, entry, template)
            self.scene.set_claim(claim)
            undo.append(lambda claim=claim: self.scene.remove_claim(claim))  # type: ignore[misc]
            made.append({"name": entry["name"], "resourceClaimName": claim["metadata"]["name"]})
        return {**pod, "status": {**pod["status"], "resourceClaimStatuses": made}}

    def _take(self, pod: PodInfo, claims: PodClaims, node: str, undo: list[Callable[[], None]]) -> list[str]:
        """Writes what the node offers into the claims; answers the devices."""
        offer = claims.offers.get(node)
        results = dict(zip(offer.indices, offer.results, strict=True)) if offer else {}
        shown = []
        for index, before in enumerate(claims.claims):
            claim = before
            if extended.is_draft(before):
                if index not in results or offer is None or offer.extended is None:
                    continue  # device plugins have it
                meta = {**before["metadata"], "name": f"{pod.name}-extended-resources"}
                claim = {**offer.extended, "metadata": meta}
            allocation = results.get(index) or claim["status"]["allocation"]
            after = allocated(claim, allocation, pod)
            self.scene.set_claim(after)
            undo.append(self._back(before, after))
            shown += [f"{r['request']}: {r['driver']}/{r['pool']}/{r['device']}" for r in results_of(after)]
        return shown

    def _back(self, before: JSON, after: JSON) -> Callable[[], None]:
        if extended.is_draft(before):
            return lambda: self.scene.remove_claim(after)
        return lambda: self.scene.set_claim(before)


def _ignore(_: object) -> None:
    return None


__all__ = ["Fit", "Placement", "Simulation", "simulate"]
