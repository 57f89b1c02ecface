"""Simulates whether and where pods would fit, how many more would fit, and why the rest do not. The cluster does not change.

It places pods one by one like the scheduler, by priority and then in the order of the manifests. Each placed pod takes its
resources from the snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from dra_devkit import quotas
from dra_devkit.scheduling.framework import devices as pod_devices
from dra_devkit.scheduling.framework import extended, pod_groups, pod_info, scoring
from dra_devkit.scheduling.framework.binding import TIMEOUT
from dra_devkit.scheduling.framework.cycle import Cycle
from dra_devkit.scheduling.framework.devices import PodClaims
from dra_devkit.scheduling.framework.pod_info import DEFAULT_SCHEDULER, PodInfo
from dra_devkit.scheduling.framework.status import Plugin, Rejection, SchedulerError
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import QuestionError
from dra_kubeletplugin.kube.resource import NODES
from dra_kubeletplugin.resourceapi.allocation import results_of

from ..explanation import cluster_reasons
from ..explanation.explain import explain_pod
from ..explanation.model import Explanation, ExplanationState
from ..explanation.node_feasibility import unexamined_features
from ..scheduler_view import SchedulerView, name_of, quota_use
from ..snapshot import KINDS, Gap, Snapshot, last_definitions
from ..unevaluated.objects import not_evaluated, not_evaluated_of_device
from ..unevaluated.parts import UnevaluatedPart, merged, subject_of
from ..usage.rows import counted
from ..usage.usage import count_usage
from .workloads import SimulatedWorkload, allocated, checked, claim_for, claim_name, workloads

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
    """The result. ``free`` to ``unavailable`` are numbers of devices after the simulation, as in :class:`~..Count`.

    Args:
        unevaluated: objects whose pods are not all counted, and parts of pods and devices that are not evaluated.
    """

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
    unevaluated: tuple[UnevaluatedPart, ...] = ()

    @property
    def fits(self) -> bool:
        return all(w.fits for w in self.workloads)

    @property
    def known(self) -> bool:
        """Whether the result is known: all pods were counted and evaluated, or a pod does not fit in any case."""
        refused = any(w.stopped and w.stopped.state is not ExplanationState.UNKNOWN for w in self.workloads)
        return refused or not (self.unevaluated or self.gaps or not self.fits)


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
        manifests: pods and workloads (Deployment, StatefulSet, Job, DaemonSet, and objects of any kind with a pod template),
            with claims, templates and classes that the cluster does not have. An object in the manifests replaces the
            cluster's object of the same name.
        namespace: the namespace for manifests that do not set it.
        fill: also count how many more pods of each workload would fit, each workload alone, after all requested pods.
        progress: called with the number of pods tried and the number of all pods.

    Raises:
        QuestionError: a server would refuse a manifest, or there are no pods in the manifests.
    """
    manifests, repeated = last_definitions(manifests, namespace)
    wanted, omitted = workloads(manifests, namespace)
    found = sorted(wanted, key=lambda w: -int(w.spec.get("priority") or 0))
    if not (found or omitted):
        raise QuestionError("the manifests have no pods: no Pod, Deployment, StatefulSet, Job, DaemonSet or the like")
    used = [m for m in checked(manifests, namespace) if m["kind"] != "Pod"]
    view = SchedulerView(_with(snapshot, used))
    omitted += _claim_in_quotas(view, snapshot)
    done = _Simulator(view, progress).run(found, fill=fill)
    notes = tuple(filter(None, [snapshot.repeated, repeated]))
    return replace(done, notes=notes, unevaluated=merged((*omitted, *done.unevaluated)))


def _with(snapshot: Snapshot, objects: Iterable[JSON]) -> Snapshot:
    """Returns the snapshot with objects added; they replace objects of the same name."""
    there: dict[str, dict[tuple[str, str], JSON]] = {}
    for plural, known in snapshot.objects.items():
        there[plural] = {_key(o): o for o in known}
    for obj in objects:
        there.setdefault(KINDS[obj["kind"]].plural, {})[_key(obj)] = obj
    found = {plural: list(known.values()) for plural, known in there.items()}
    after = Snapshot.by_plural(found, snapshot.gaps, snapshot.unread, live=snapshot.live, version=snapshot.version)
    return replace(after, unknown=snapshot.unknown)


def _claim_in_quotas(view: SchedulerView, cluster: Snapshot) -> Iterator[UnevaluatedPart]:
    """Counts the claims of the manifests in the quotas, which have the use of the cluster. Yields the claims that a quota refuses."""
    view.quotas = quota_use(replace(cluster, quotas=view.snapshot.quotas, classes=view.snapshot.classes))
    there = set(map(_key, cluster.claims))
    for claim in view.snapshot.claims:
        if _key(claim) not in there:
            for reason in cluster_reasons.quota_reasons(view, quotas.CLAIMS, claim, "the claim"):
                yield UnevaluatedPart(subject_of(claim), f"{reason.text}: it is used as if the quota were larger")
            view.quotas.add(quotas.CLAIMS, claim)


def _without_gates(pod: JSON) -> JSON:
    """Returns the pod as if its scheduling gates were removed and it had the default scheduler."""
    return {**pod, "spec": {k: v for k, v in pod["spec"].items() if k not in {"schedulingGates", "schedulerName"}}}


def _key(obj: JSON) -> tuple[str, str]:
    return str(obj["metadata"].get("namespace") or ""), str(obj["metadata"]["name"])


class _Simulator:
    def __init__(self, view: SchedulerView, progress: Progress) -> None:
        self.view = view
        self._progress = progress
        self._templates = {(t["metadata"]["namespace"], t["metadata"]["name"]): t for t in view.snapshot.templates}
        self._unevaluated: dict[UnevaluatedPart, None] = {}
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
        for workload in wanted:
            for pod in pods[workload.shown][:1]:
                self._keep_features(workload, pod_info.read(pod))
        self._keep(UnevaluatedPart(u.subject, f"it cannot be read: {u.why}") for u in known.unread)
        numbers = (after.devices, after.free, after.held, after.shared, after.blocked, after.unavailable)
        return Simulation(tuple(fits), len(nodes), *numbers, gaps=known.gaps, unevaluated=merged(self._unevaluated))

    def _keep(self, parts: Iterable[UnevaluatedPart]) -> None:
        self._unevaluated.update(dict.fromkeys(parts))

    def _keep_features(self, workload: SimulatedWorkload, pod: PodInfo) -> None:
        """Keeps the features of a workload's pods that the simulation does not evaluate."""
        features = [f.removeprefix("not examined: ") for f in unexamined_features(pod, self.view.group_of(pod))]
        if gates := pod.spec.get("schedulingGates"):
            names = ", ".join(str(g["name"]) for g in gates)
            features.append(f"the pod has scheduling gates: {names}: it is placed as if they were removed")
        if (name := pod.spec.get("schedulerName") or DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER:
            features.append(f"the pod names the scheduler {name}: it is placed by the rules of {DEFAULT_SCHEDULER}")
        for quota, missing in self.view.quotas.unspecified(pod.pod):
            features.append(
                f"ResourceQuota {name_of(quota)} refuses pods that do not specify {missing}: they are placed as if a LimitRange set it"
            )
        self._keep(UnevaluatedPart(workload.shown, f) for f in features)

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
            placed += [found] if found else []
            stopped = stopped or why
        self._keep(stopped.unevaluated if stopped else ())
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
        pod = _without_gates(pod)
        if refused := tuple(cluster_reasons.quota_reasons(self.view, quotas.PODS, pod, "the pod")):
            found = Explanation(f"pod {name_of(pod)}", ExplanationState.WAITS, refused[0].text, reasons=refused)
            return None, found
        self._count(quotas.PODS, pod, undo)
        pod = self._with_claims(pod, undo)
        info = pod_info.read(pod)
        cache = self.view.cache
        claims = pod_devices.read(info, cache.claims, cache.classes, cache.extended, TIMEOUT)
        if cluster_reasons.reasons(self.view, info) or isinstance(claims, Rejection):
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
        for obj in cluster_reasons.open_claims_and_classes(self.view, info):
            self._keep(not_evaluated(self.view.snapshot, obj))
        devices = self._take(info, claims, node.name, undo)
        offer = claims.offers.get(node.name)
        cache.place(info.with_claims(offer.node_resources) if offer else info, node.name)
        undo.callback(cache.displace, info.uid)
        return Placement(info.key, node.name, tuple(devices)), None

    def _count(self, kind: str, obj: JSON, undo: ExitStack) -> None:
        """Counts a new object in the quotas of its namespace."""
        self.view.quotas.add(kind, obj)
        undo.callback(self.view.quotas.remove, kind, obj)

    def _with_claims(self, pod: JSON, undo: ExitStack) -> JSON:
        """Creates the pod's claims from templates; pods of a PodGroup share its claims. Returns the pod with their names in its status."""
        made = []
        group = self.view.groups.get((pod["metadata"]["namespace"], pod_groups.name_of(pod)))
        for entry in pod["spec"].get("resourceClaims") or []:
            template = self._templates.get((pod["metadata"]["namespace"], str(entry.get("resourceClaimTemplateName"))))
            if template is None:
                continue
            shared = pod_groups.shares(group, entry)
            claim = self._claim_of_group(group, entry) if group and shared else None
            if claim is None:
                claim = claim_for(group if group and shared else pod, entry, template)
                if any(self.view.quotas.exceeded(quotas.CLAIMS, claim)):
                    continue  # the reasons of the pod contain the quota
                self._count(quotas.CLAIMS, claim, undo)
                self.view.set_claim(claim)
                self.view.kept.add(str(claim["metadata"]["uid"]))
                undo.callback(self.view.remove_claim, claim)
            made.append({"name": entry["name"], "resourceClaimName": claim["metadata"]["name"]})
        return {**pod, "status": {**pod["status"], "resourceClaimStatuses": made}}

    def _claim_of_group(self, group: JSON, entry: JSON) -> JSON | None:
        """Returns the existing claim of a PodGroup for an entry of ``resourceClaims``."""
        made = (group.get("status") or {}).get("resourceClaimStatuses") or []
        names = [s.get("resourceClaimName") for s in made if s.get("name") == entry["name"]]
        name = str(names[0]) if names else claim_name(group, entry)
        return self.view.cache.claims.get(group["metadata"]["namespace"], name)

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
            for r in results_of(after):
                slices = self.view.slices.by_pool.get((r["driver"], r["pool"]), ())
                self._keep(not_evaluated_of_device(self.view.snapshot, slices, str(r["device"])))
        return shown
