"""The kubelet of one node: creates its parts, runs them, and restarts or reboots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import NODES, PODS

from ...kubernetes_releases import Features
from ...scheduling.framework.pod_info import is_finished
from ..event_recorder import EventRecorder
from ..informer import Informers, ObjectChange
from ..runtime.interface import ContainerRuntime
from ..supervision import Supervisor
from ..work_queue import WorkQueue
from .admission import AdmissionRefusal, refusal
from .claims import ClaimManager
from .containers import claim_requests
from .health import DeviceKey, HealthMonitor
from .node import publish_node, wipe_slices
from .node_lease import renew_lease
from .plugins import Connection, PluginWatcher
from .pod_resources import PodResources
from .pod_state import Later, Parts
from .pods import PodSync
from .probes import Probes
from .timers import Timers

log = logging.getLogger(__name__)
_PODS_AT_ONCE = 128  # more than a node's maximum of pods, so that a plugin call that hangs delays only its own pod
_WIPE_AGAIN = 1.0  # seconds before the first retry of a failed wipe


class LocalKubelet:
    """The kubelet of the node ``name``. Its root directory is ``root``.

    Args:
        supervisor: runs the kubelet's task.
        features: the simulated Kubernetes release with its feature gates.
    """

    def __init__(
        self,
        client: KubeClient,
        name: str,
        root: Path,
        runtime: ContainerRuntime,
        supervisor: Supervisor,
        features: Features,
        timers: Timers | None = None,
    ) -> None:
        self.client = client
        self.name = name
        self.root = root
        self.runtime = runtime
        self.supervisor = supervisor
        self.timers = timers or Timers()
        self.supported: tuple[str, ...] = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
        self.features = features
        self.behavior = features.kubelet
        for folder in ("plugins_registry", "plugins", "pods"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        self._task: asyncio.Task[None] | None = None
        self._create_parts()

    def _create_parts(self) -> None:
        self.health = HealthMonitor(self._health_changed, self.behavior, self.timers.health_retry_delay)
        self.plugins = PluginWatcher(
            self.root / "plugins_registry",
            self.timers.plugin_poll_interval,
            self.supported,
            self._plugin_gone,
            self._plugin_new,
        )
        self.manager = ClaimManager(
            self.plugins, self.root / "dra_manager_state", self.timers.call_timeout, self.behavior, self._named_claims
        )
        self.informers = Informers(
            self.client, {PODS: f"spec.nodeName={self.name}", NODES: f"metadata.name={self.name}"}
        )
        self.informers.on(PODS, self._pod_changed)
        self.pod_resources = PodResources(
            self.root / "pod-resources" / "kubelet.sock", self.manager, lambda: self.informers.all(PODS)
        )
        self.events = EventRecorder(self.client, "kubelet", self.name)
        self._queue: WorkQueue[str] = WorkQueue(self.timers.pod_sync_backoff, 8 * self.timers.pod_sync_backoff)
        # Keys are driver names. The empty key means all drivers that are not connected.
        self._wipes: WorkQueue[str] = WorkQueue(_WIPE_AGAIN, 30.0)
        self.probes = Probes(self.runtime, self.events, self._queue.add)
        parts = Parts(
            self.client, self.manager, self.runtime, self.events, self.root / "pods", self.timers, self.probes
        )
        self._pods = PodSync(parts, self._queue.add_after, self._allocated, self._check_admission)
        self._admitted: set[str] = set()  # UIDs

    # --- start and stop -------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the kubelet. Returns after the first attempt to delete the node's old slices, successful or not.

        Raises:
            ApiError: the Node object cannot be written.
        """
        await publish_node(self.client, self.name, self.runtime.version, self.features.version)
        try:
            await wipe_slices(self.client, self.name)
        except ApiError as e:
            self._log_wipe_failure("", e)
            self._wipes.retry("")
        self._task = self.supervisor.start(f"kubelet {self.name}", self._run)

    async def stop(self) -> None:
        """Stops the kubelet. Containers continue to run."""
        if self._task:
            await self.supervisor.stop(self._task)
            self._task = None

    async def restart(self) -> None:
        """Restarts the kubelet without its state in memory. It wipes the node's slices, and finds plugins and pods again."""
        await self.stop()
        self._create_parts()
        await self.start()

    async def rebooted(self) -> None:
        """Starts the kubelet after a reboot: no container runs, and every claim must be prepared again."""
        await self.runtime.reboot()
        self._create_parts()
        self.manager.forget_prepared()
        await self.start()

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.events.run())
                tasks.create_task(self._wipes.work(self._wipe, self._log_wipe_failure, 4))
                tasks.create_task(self.plugins.run())
                tasks.create_task(self.health.run())
                tasks.create_task(self.probes.run())
                tasks.create_task(renew_lease(self.client, self.name, self.timers.node_monitor_grace_period / 5))
                await self.informers.run(tasks)
                await self.informers.wait_synced()
                await self.pod_resources.start()
                tasks.create_task(self._follow_runtime())
                for uid in self.manager.pods() | self.runtime.pods():
                    self._queue.add(uid)  # also pods that were deleted while the kubelet was down
                await self._queue.work(self._sync, self._failed, _PODS_AT_ONCE)
        finally:
            await self.pod_resources.close()
            await self.health.close()
            await self.plugins.close()

    async def _follow_runtime(self) -> None:
        async for uid in self.runtime.changes():
            self._queue.add(uid)

    # --- slices ---------------------------------------------------------------------------------

    def _plugin_new(self, connection: Connection) -> None:
        self.health.follow(connection)
        self._queue.retry_now()  # pods may be waiting for this driver

    def _plugin_gone(self, driver: str) -> None:
        self.health.forget(driver)
        self._wipes.add_after(driver, self.timers.slice_wipe_delay)

    async def _wipe(self, driver: str) -> None:
        """Wipes the slices of a driver if it is not connected. An empty ``driver`` means all drivers that are not connected."""
        if not driver:
            connected = {d for d in self.plugins.registered if self.plugins.is_connected(d)}
            await wipe_slices(self.client, self.name, but=connected)
        elif not self.plugins.is_connected(driver):
            await wipe_slices(self.client, self.name, driver)

    def _log_wipe_failure(self, driver: str, error: Exception) -> None:
        log.warning("kubelet: cannot wipe slices: %s", error, extra={"node": self.name, "driver": driver})

    # --- pods -----------------------------------------------------------------------------------

    def _pod_changed(self, change: ObjectChange) -> None:
        self._pods.notice(change.object)
        self._queue.add(change.object["metadata"]["uid"])

    def _pod(self, uid: str) -> JSON | None:
        return self.informers.by_uid(PODS, uid)

    async def _sync(self, uid: str) -> None:
        pod = self._pod(uid)
        await self._pods.sync(uid, pod)
        if pod is None:
            self._admitted.discard(uid)

    async def _check_admission(self, pod: JSON) -> AdmissionRefusal | None:
        """Decides whether a pod may run on this node. Returns the reason for a refusal, or None. An admitted pod stays admitted.

        A start time in the pod's status shows that the kubelet admitted the pod before a restart.
        """
        uid = pod["metadata"]["uid"]
        if uid in self._admitted or (pod.get("status") or {}).get("startTime"):
            return None
        node = self.informers.find(NODES, self.name)
        if node is None or refusal(pod, node, self._others(uid)):
            try:
                # The scheduler may have decided with a newer version of the Node than the cached version.
                node = await self.client.get(NODES, self.name)
            except ApiError as e:
                raise Later(f"kubelet cannot get node info: {e}") from None
            if refused := refusal(pod, node, self._others(uid)):
                return refused
        self._admitted.add(uid)
        return None

    def _others(self, uid: str) -> list[JSON]:
        """Returns the other pods of this node that are admitted and not finished."""
        return [
            p
            for p in self.informers.all(PODS)
            if (other := p["metadata"]["uid"]) != uid
            and not is_finished(p)
            and (other in self._admitted or (p.get("status") or {}).get("startTime"))
        ]

    def _failed(self, uid: str, error: Exception) -> None:
        """Logs a failed sync of a pod. The work queue retries the pod."""
        if isinstance(error, Later):
            return
        if isinstance(error, ApiError):
            log.warning("kubelet: cannot sync pod: %s", error, extra={"node": self.name, "pod_uid": uid})
            return
        text = f"{type(error).__name__}: {error}"
        fields = {"node": self.name, "pod_uid": uid}
        log.error("kubelet: unexpected exception while a pod is synced: %s", text, exc_info=error, extra=fields)
        if pod := self._pod(uid):
            self.events.warn(pod, "Pod", "FailedSync", f"error syncing pod, skipping: is it well-formed? {text}")

    def metrics(self) -> str:
        """Returns the text of the kubelet's ``/metrics``."""
        name = "dra_resource_claims_in_use"
        lines = [
            f"# HELP {name} [ALPHA] The number of ResourceClaims that are currently in use on the node, by driver name "
            "(driver_name label value) and across all drivers (special value <any> for driver_name).",
            f"# TYPE {name} gauge",
        ]
        lines += [f'{name}{{driver_name="{driver}"}} {n}' for driver, n in sorted(self.manager.in_use().items())]
        return "\n".join(lines) + "\n"

    def _named_claims(self, uid: str) -> set[tuple[str, str]]:
        """Returns namespace and name of each claim of a pending pod. For other pods, returns an empty set."""
        pod = self._pod(uid) or {}
        if (pod.get("status") or {}).get("phase") != "Pending":
            return set()
        entries = (pod.get("spec") or {}).get("resourceClaims") or []
        statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or []
        return {
            (pod["metadata"]["namespace"], name) for e in [*entries, *statuses] if (name := e.get("resourceClaimName"))
        }

    # --- health ---------------------------------------------------------------------------------

    def _health_changed(self, devices: set[DeviceKey]) -> None:
        """Queues all pods that use one of the devices."""
        for info in self.manager.claims.values():
            used = {(driver, d.pool, d.device) for driver, found in info.devices.items() for d in found}
            if used & devices:
                for uid in info.pods:
                    self._queue.add(uid)

    def _allocated(self, pod: JSON, container: Mapping[str, Any], claims: Mapping[str, str]) -> list[JSON]:
        """Returns the ``allocatedResourcesStatus`` of a container (KEP-4680); empty if the feature gate is off.

        No release up to 1.37 reports devices of extended resources (kubernetes#139939, #140060).
        """
        if not self.behavior.health:
            return []
        names = {claim: name for name, claim in claims.items()}
        out: dict[str, dict[str, JSON]] = {}
        for claim, request in claim_requests(container, claims):
            name = f"claim:{names.get(claim, claim)}" + (f"/{request}" if request else "")
            resources = out.setdefault(name, {})
            for _, driver, device in self.manager.devices(pod["metadata"]["namespace"], claim, request):
                report = self.health.of((driver, device.pool, device.device))
                parts = [driver, device.pool, device.device] + ([device.share] if device.share else [])
                resource_id = device.cdi[0] if device.cdi else "/".join(parts)
                entry = {"resourceID": resource_id, "health": report.health.value}
                resources.setdefault(resource_id, entry | ({"message": report.message} if report.message else {}))
        return [{"name": name, "resources": list(resources.values())} for name, resources in out.items()]
