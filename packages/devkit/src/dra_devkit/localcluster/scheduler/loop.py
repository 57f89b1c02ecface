"""The scheduler: takes one pod at a time from its queue, selects a node for it, and binds several pods in parallel.

It has Kubernetes' extension points PreEnqueue, PreFilter, Filter, PostFilter, Score, Reserve, PreBind and Bind. An
error while a pod is scheduled does not affect other pods.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, NAMESPACES, NODES, PODS, SLICES

from ...kubernetes_releases import Features
from ...scheduling.framework import device_taint_rules, devices, pod_info, queueing_hints, scoring, unsupported
from ...scheduling.framework.binding import TIMEOUT
from ...scheduling.framework.cache import Cache
from ...scheduling.framework.cycle import Cycle
from ...scheduling.framework.devices import PodClaims
from ...scheduling.framework.node_allocation import AllocationMemory, AllocationSlow, NodeAllocator
from ...scheduling.framework.node_info import NodeInfo
from ...scheduling.framework.pod_info import PodInfo, is_finished
from ...scheduling.framework.preemption import Victims, not_helpful, preempt
from ...scheduling.framework.queueing_hints import ChangeKind, ClusterChange
from ...scheduling.framework.status import NodeDiagnosis, Plugin, Rejection, SchedulerError
from .. import informer
from ..event_recorder import EventRecorder
from ..informer import Informers, server_message
from .claimbinder import ClaimBinder, PodBinding
from .new_nodes import NewNodes
from .queue import QueuedPod, SchedulingQueue
from .reporting import Reporter

log = logging.getLogger(__name__)
T = TypeVar("T")
_SLOW_AFTER = 0.01  # seconds that a search may block the event loop
_NO_NODES = frozenset({Plugin.NODE_NAME})


class Scheduler:
    """The scheduler.

    Args:
        features: the simulated Kubernetes release with its feature gates.
        binding_timeout: seconds from a claim's allocation until its binding conditions must be true.
    """

    def __init__(self, client: KubeClient, features: Features, binding_timeout: float = TIMEOUT) -> None:
        self.client = client
        self.features = features
        self.binding_timeout = binding_timeout
        self.cache = Cache()
        self.queue = SchedulingQueue(self._gate, self._uses)
        self.events = EventRecorder(client, pod_info.DEFAULT_SCHEDULER, combine=False)
        self.reporter = Reporter(client, self.events)
        self.binder = ClaimBinder(client, self.cache.claims, binding_timeout)
        self._rules = informer.taint_rules(features)
        self._groups = informer.pod_groups(features)
        core = (PODS, CLAIMS, CLASSES, NODES, SLICES, NAMESPACES)
        followed = (*core, *filter(None, (self._rules, self._groups)))
        self.informers = Informers(client, dict.fromkeys(followed, ""))
        self._memory = AllocationMemory()
        self._pods: dict[str, PodInfo] = {}  # pods without a node, by UID
        self._new_nodes = NewNodes()
        self._binding: dict[str, asyncio.Task[None]] = {}
        self._search: NodeAllocator | None = (
            None  # the search that runs in a thread, for the pod with the UID _searched
        )
        self._searched = ""
        self._abandoned: set[str] = set()  # UIDs of pods that were deleted during their binding
        self.informers.on(NODES, self._node)
        self.informers.on(PODS, self._pod)
        self.informers.on(CLAIMS, self._claim)
        self.informers.on(CLASSES, lambda c: self._move(self.cache.class_changed(c.object, gone=c.gone)))
        self.informers.on(SLICES, lambda c: self._slice(c.object, gone=c.gone))
        if self._rules:
            self.informers.on(self._rules, lambda _: self._rules_changed())
        if self._groups:
            self.informers.on(self._groups, self._group)
        self.informers.on(NAMESPACES, lambda c: self._move(self.cache.namespace_changed(c.object, gone=c.gone)))

    async def run(self) -> None:
        """Schedules pods. Never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.events.run(), name="scheduler's events")
            await self.informers.run(tasks)
            await self.wait_ready()
            while True:
                entry = await self.queue.pop()
                try:
                    await self._schedule(entry, tasks)
                except Exception as e:  # for example a malformed pod; the error must not affect other pods
                    log.exception("scheduler: unexpected exception for a pod", extra={"pod": entry.info.key})
                    await self._failed(entry, SchedulerError(f"{type(e).__name__}: {e}"))

    async def wait_ready(self) -> None:
        """Waits until the informers have listed all objects and watch them."""
        await self.informers.wait_synced()
        await self.informers.wait_watching()

    # --- changes --------------------------------------------------------------------------------

    def _move(self, found: list[ClusterChange]) -> None:
        for change in found:
            self.queue.move(change)

    def _node(self, change: informer.ObjectChange) -> None:
        if change.gone:
            self.cache.node_gone(change.object["metadata"]["name"])
        else:
            self._move(self.cache.node_changed(change.object))
        self._new_nodes.observe(change.object, new=change.before is None, gone=change.gone)

    def _slice(self, obj: JSON, *, gone: bool = False) -> None:
        rules = self.informers.all(self._rules) if self._rules and not gone else ()
        self._move(self.cache.slice_changed(dict(device_taint_rules.tainted(obj, rules)) if rules else obj, gone=gone))

    def _rules_changed(self) -> None:
        for obj in self.informers.all(SLICES):
            self._slice(obj)

    def _group(self, change: informer.ObjectChange) -> None:
        if change.before is None:
            self.queue.move(ClusterChange(ChangeKind.POD_GROUP))

    def _claim(self, change: informer.ObjectChange) -> None:
        if change.gone:
            self.cache.claims.forget(change.object)
        else:
            self.cache.claims.observe(change.object)
            self.queue.move(ClusterChange(ChangeKind.CLAIM, change.before, change.object))
        self.binder.claim_changed()

    def _pod(self, change: informer.ObjectChange) -> None:
        uid = str(change.object["metadata"]["uid"])
        if change.gone or is_finished(change.object):
            self._pod_gone(uid)
            return
        try:
            info = pod_info.read(change.object)
        except (TypeError, KeyError, ValueError, AttributeError) as e:
            text = f"the scheduler cannot read the pod: {type(e).__name__}: {e}"
            self.events.event(change.object, "Pod", "Warning", "FailedScheduling", text)
            return
        if info.node:
            self._pods.pop(uid, None)
            if uid not in self._binding:
                self.queue.remove(uid)
            self.cache.place(info, info.node)
            before = pod_info.read(change.before) if change.before else None
            self._move(queueing_hints.of_placed_pod(before, info))
            return
        if (info.spec.get("schedulerName") or pod_info.DEFAULT_SCHEDULER) != pod_info.DEFAULT_SCHEDULER:
            return
        known = self._pods.get(uid)
        self._pods[uid] = info
        if not self.cache.is_placed(uid):
            self.cache.nominate(info, info.nominated)
        if known is None:
            self.queue.add(info)
        else:
            self.queue.update(info, queueing_hints.of_waiting_pod(known, info))

    def _pod_gone(self, uid: str) -> None:
        known = self._pods.pop(uid, None)
        self.queue.remove(uid)
        if known:
            self.cache.nominate(known, "")
        if self._searched == uid and self._search is not None:
            self._search.cancel()  # the result is not needed any more
        if task := self._binding.get(uid):
            self._abandoned.add(uid)
            task.cancel()
        if self.cache.displace(uid):
            self.queue.move(ClusterChange(ChangeKind.POD_GONE, pod=uid))

    # --- callbacks of the queue -----------------------------------------------------------------

    def _gate(self, pod: PodInfo) -> Plugin | None:
        """PreEnqueue: returns the plugin that keeps the pod out of the active queue, or None."""
        if pod.spec.get("schedulingGates"):
            return Plugin.GATES
        try:
            devices.claims_of(pod, self.cache.claims)
        except devices.MissingClaim:
            return Plugin.DEVICES
        return None

    def _uses(self, pod: PodInfo, claim: str) -> bool:
        try:
            return any(c["metadata"]["uid"] == claim for c in devices.claims_of(pod, self.cache.claims))
        except devices.MissingClaim:
            return False

    # --- one pod --------------------------------------------------------------------------------

    async def _schedule(self, entry: QueuedPod, tasks: asyncio.TaskGroup) -> None:
        if not entry.failures:
            await self._new_nodes.wait()
        pod = entry.info
        if pod.terminating or self.cache.is_placed(pod.uid) or pod.uid not in self._pods:
            self.queue.done(pod.uid)
            return
        snapshot = self.cache.snapshot()
        if not snapshot.nodes:
            await self._unschedulable(entry, NodeDiagnosis(0), _NO_NODES)
            return
        claims = self._prefilter(pod)
        if isinstance(claims, Rejection):
            diagnosis = NodeDiagnosis(len(snapshot.nodes), of_all=claims)
            diagnosis.after = f"{await self.binder.free_claims(pod, None)}, {not_helpful(len(snapshot.nodes))}"
            await self._unschedulable(entry, diagnosis)
            return
        fractions = self.features.has("DRAFractionalCapacityRange")
        self._memory.keep_only(snapshot.nodes)
        allocations = NodeAllocator(
            self._memory,
            self.cache.devices(),
            len(snapshot.nodes),
            slow_after=_SLOW_AFTER,
            fractions=fractions,
            behavior=self.features.allocator,
        )
        cycle = Cycle(pod, snapshot, claims, allocations)
        try:
            feasible = await self._feasible(cycle)
        except SchedulerError as e:
            await self._failed(entry, e)
            return
        if pod.uid not in self._pods:
            self.queue.done(pod.uid)
            return
        if not feasible:
            await self._no_node(entry, cycle)
            return
        node = scoring.best(
            pod, feasible, snapshot.nodes, snapshot.namespaces, claims.score, has_alternatives=claims.has_alternatives
        )
        self._assume(entry, node, claims, tasks)

    async def _feasible(self, cycle: Cycle) -> list[NodeInfo]:
        """Returns the nodes that fit the pod. A long search is repeated in a thread.

        Raises:
            SchedulerError: the allocation failed.
        """
        try:
            return cycle.feasible()
        except AllocationSlow:
            cycle.allocations.remove_slow_limit()
        self._searched, self._search = cycle.pod.uid, cycle.allocations
        try:
            return await _search_in_thread(cycle, Cycle.feasible)
        finally:
            self._search = None

    def _prefilter(self, pod: PodInfo) -> PodClaims | Rejection:
        group = self.informers.find(self._groups, pod.group, pod.namespace) if self._groups and pod.group else None
        if self._groups and pod.group and group is None:
            return Rejection.of(Plugin.POD_GROUP, f'podgroup.scheduling.k8s.io "{pod.group}" not found')
        if reasons := unsupported.reasons(pod, group):
            return Rejection(Plugin.UNSUPPORTED, tuple(reasons))
        cache = self.cache
        explicit = cache.extended if self.features.has("DRAExtendedResource") else None
        shared = group if self.features.has("DRAWorkloadResourceClaims") else None
        return devices.read(pod, cache.claims, cache.classes, explicit, self.binding_timeout, shared)

    async def _no_node(self, entry: QueuedPod, cycle: Cycle) -> None:
        """PostFilter: tries to free claims or to preempt other pods."""
        diagnosis = NodeDiagnosis(len(cycle.snapshot.nodes), dict(cycle.rejected))
        freed = await self.binder.free_claims(cycle.pod, cycle.claims)
        cycle.allocations.remove_slow_limit()
        outcome = await _search_in_thread(cycle, preempt)
        nominated = None
        if isinstance(outcome, Victims):
            nominated = outcome.node
            await self.reporter.evict(cycle.pod, outcome)
        else:
            diagnosis.after = f"{freed}, {outcome}"
        await self._unschedulable(entry, diagnosis, nominated=nominated)

    async def _unschedulable(
        self,
        entry: QueuedPod,
        diagnosis: NodeDiagnosis,
        plugins: frozenset[Plugin] | None = None,
        nominated: str | None = None,
    ) -> None:
        self.queue.failed(entry, plugins or diagnosis.plugins)
        if nominated:
            self.cache.nominate(entry.info, nominated)
        if entry.info.uid in self._pods:
            await self.reporter.failed(self._pods[entry.info.uid], "Unschedulable", str(diagnosis), nominated)

    async def _failed(self, entry: QueuedPod, error: SchedulerError) -> None:
        self.queue.failed(entry, frozenset())
        if entry.info.uid in self._pods:
            await self.reporter.failed(self._pods[entry.info.uid], "SchedulerError", str(error), None)

    # --- binding --------------------------------------------------------------------------------

    def _assume(self, entry: QueuedPod, node: NodeInfo, claims: PodClaims, tasks: asyncio.TaskGroup) -> None:
        pod = entry.info
        offer = claims.offers.get(node.name)
        binding = self.binder.reserve(claims, offer)
        self.cache.place(pod.with_claims(offer.node_resources) if offer else pod, node.name)
        task = tasks.create_task(self._bind(entry, node.name, binding), name=f"binding {pod.key}")
        self._binding[pod.uid] = task

    async def _bind(self, entry: QueuedPod, node: str, binding: PodBinding) -> None:
        """Binds a pod and handles all errors. Raises ``CancelledError`` if the scheduler stops, but not if the pod was deleted."""
        pod = entry.info
        try:
            await binding.write(pod)
            if binding.waits:
                await self._wait(pod, node, binding)
            await self._place(pod, node)
        except SchedulerError as e:
            await self._undo_binding(entry, binding, e)
        except asyncio.CancelledError:
            if pod.uid not in self._abandoned:
                raise
            binding.forget()  # the claim controller removes the deleted pod's reservations
        except Exception as e:
            log.exception("scheduler: unexpected exception while a pod is bound", extra={"pod": pod.key})
            await self._undo_binding(entry, binding, SchedulerError(f"{type(e).__name__}: {e}"))
        else:
            self.queue.done(pod.uid)
            self.events.event(pod.pod, "Pod", "Normal", "Scheduled", f"Successfully assigned {pod.key} to {node}")
        finally:
            self._binding.pop(pod.uid, None)
            self._abandoned.discard(pod.uid)

    async def _wait(self, pod: PodInfo, node: str, binding: PodBinding) -> None:
        """Writes the nominated node into the pod's status, and waits until the binding conditions are true (KEP-5007)."""
        await self.reporter.nominate(pod, node)
        text = f"waiting for binding conditions for device on node {node}"
        self.events.event(pod.pod, "Pod", "Normal", "BindingConditionsPending", text)
        await binding.wait_ready()

    async def _place(self, pod: PodInfo, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        meta = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        try:
            await self.client.call("POST", PODS.path(pod.namespace, pod.name, "binding"), body)
        except ApiError as e:
            raise SchedulerError(
                f'binding rejected: running Bind plugin "DefaultBinder": {server_message(e)}'
            ) from None

    async def _undo_binding(self, entry: QueuedPod, binding: PodBinding, error: SchedulerError) -> None:
        pod = entry.info
        if self.cache.displace(pod.uid):
            self.queue.move(ClusterChange(ChangeKind.POD_GONE, pod=pod.uid))
        await binding.undo(group=not self.cache.has_another_of(pod))
        await self._failed(entry, error)


async def _search_in_thread(cycle: Cycle, search: Callable[[Cycle], T]) -> T:
    """Calls ``search``. If the pod has claims, calls it in a thread, because a search for devices may last until its time limit.

    If the waiting task is cancelled, the search is cancelled too.
    """
    if not cycle.claims.claims:
        return search(cycle)
    try:
        return await asyncio.to_thread(search, cycle)
    except asyncio.CancelledError:
        cycle.allocations.cancel()
        raise
