"""One node: its object, its pods, and what a restart or a reboot does to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ApiError
from ...kube import KubeClient
from ...resources.defaults import now
from ..informer import CLAIMS, NODES, PODS, SLICES, Informers, is_finished, pod_claim_names, record_event
from ..runtime.oci import InjectError, Runtime
from ..supervision import Supervisor
from .claims import ClaimManager, PrepareError
from .plugins import PluginWatcher

log = logging.getLogger(__name__)
VERSION = "v1.36.2+dra-local"
JSON = dict[str, Any]


@dataclass(frozen=True)
class Timers:
    """Seconds. The defaults make tests quick; a real kubelet has 0.5, 45, 30 and 60 for the last."""

    look: float = 0.05  # between looks at plugins_registry
    call: float = 45.0  # for one call of a plugin
    wipe: float = 30.0  # from the last instance's disconnect to the wiping of its slices
    retry: float = 0.5  # between tries for one pod


class Kubelet:
    """The kubelet of node ``name`` with its root folder ``root``."""

    def __init__(
        self,
        client: KubeClient,
        name: str,
        root: Path,
        runtime: Runtime,
        supervisor: Supervisor,
        timers: Timers | None = None,
    ) -> None:
        self.client = client
        self.name = name
        self.root = root
        self.runtime = runtime
        self.supervisor = supervisor
        self.timers = timers or Timers()
        self.supported: tuple[str, ...] = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
        for folder in ("plugins_registry", "plugins", "pods"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        self._task: asyncio.Task[None] | None = None
        self._workers: dict[str, asyncio.Task[Any]] = {}
        self._wipes: dict[str, asyncio.Task[None]] = {}
        self._told: dict[tuple[str, str], str] = {}
        self._make()

    def _make(self) -> None:
        self.plugins = PluginWatcher(
            self.root / "plugins_registry", self.timers.look, self.supported, self._plugin_gone
        )
        self.manager = ClaimManager(self.plugins, self.root / "dra_manager_state", self.timers.call)
        self.informers = Informers(self.client, {PODS: f"spec.nodeName={self.name}", CLAIMS: ""})

    # --- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._publish_node()
        await self._wipe("")
        self._task = self.supervisor.start(f"kubelet {self.name}", self._run)

    async def stop(self) -> None:
        for task in [self._task, *self._workers.values(), *self._wipes.values()]:
            if task:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._workers.clear()
        self._wipes.clear()
        self._task = None
        await self.plugins.close()

    async def restart(self) -> None:
        """Forgets what it has in memory, wipes the node's slices, finds plugins and pods again."""
        await self.stop()
        self._make()
        await self.start()

    async def rebooted(self) -> None:
        """Starts after a reboot: nothing runs, every claim is to be prepared again."""
        for uid, _ in list(self.runtime.started):
            await self.runtime.stop(uid)
        self._make()
        self.manager.forget_prepared()
        await self.start()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.plugins.run())
            await self.informers.run(tasks)
            await self.informers.loop(self._reconcile, resync=1.0)

    async def _publish_node(self) -> None:
        labels = {"kubernetes.io/hostname": self.name}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": labels}, "spec": {}}
        try:
            await self.client.create(NODES, body)
        except ApiError as e:
            if e.status != 409:
                raise
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}
        info = dict.fromkeys(
            ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"), "local"
        )
        info |= {"kubeletVersion": VERSION, "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64"}
        status = {"conditions": [ready], "nodeInfo": info}
        await self.client.patch(NODES, self.name, {"status": status}, sub="status")

    # --- slices ---------------------------------------------------------------------------------

    def _plugin_gone(self, driver: str) -> None:
        async def later() -> None:
            await asyncio.sleep(self.timers.wipe)
            if not self.plugins.newest(driver):
                await self._wipe(driver)

        if (old := self._wipes.get(driver)) and not old.done():
            old.cancel()
        self._wipes[driver] = asyncio.create_task(later(), name=f"wipe {driver}")

    async def _wipe(self, driver: str) -> None:
        """Deletes the slices of a driver on this node, or of all drivers."""
        fields = f"spec.nodeName={self.name}" + (f",spec.driver={driver}" if driver else "")
        with contextlib.suppress(ApiError):
            for obj in (await self.client.list(SLICES, fields=fields))["items"]:
                with contextlib.suppress(ApiError):
                    await self.client.delete(SLICES, obj["metadata"]["name"])

    # --- pods -----------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        for uid, task in list(self._workers.items()):
            if task.done():
                del self._workers[uid]
        pods = {p["metadata"]["uid"]: p for p in self.informers.all(PODS)}
        for uid, pod in pods.items():
            if uid not in self._workers and self._needs_work(pod):
                self._workers[uid] = asyncio.create_task(self._work(pod), name=f"pod {pod['metadata']['name']}")
        for info in list(self.manager.claims.values()):
            for uid in info.pods:
                if uid not in pods and uid not in self._workers:  # force-deleted, or gone while we were away
                    self._workers[uid] = asyncio.create_task(self._clean(uid), name=f"orphaned pod {uid}")

    def _needs_work(self, pod: JSON) -> bool:
        if pod["metadata"].get("deletionTimestamp"):
            return True
        return not is_finished(pod) and not self._runs(pod)

    def _runs(self, pod: JSON) -> bool:
        return all((pod["metadata"]["uid"], c["name"]) in self.runtime.started for c in pod["spec"]["containers"])

    async def _work(self, pod: JSON) -> None:
        try:
            if pod["metadata"].get("deletionTimestamp"):
                await self._terminate(pod)
            else:
                await self._start(pod)
        except ApiError as e:
            log.debug("kubelet: pod %s: %s", pod["metadata"]["name"], e)
            await asyncio.sleep(self.timers.retry)
        finally:
            self.informers.changed.set()

    async def _start(self, pod: JSON) -> None:
        names = {k: v or "" for k, v in pod_claim_names(pod).items()}
        claims = [await self.client.get(CLAIMS, n, pod["metadata"]["namespace"]) for n in names.values() if n]
        uid = pod["metadata"]["uid"]
        for claim in claims:
            reserved = (claim.get("status") or {}).get("reservedFor") or []
            if not any(r["uid"] == uid for r in reserved):
                text = f"pod {pod['metadata']['name']} not allowed to use resource claim {claim['metadata']['name']}"
                await self._fail(pod, "FailedPrepareDynamicResources", text)
                return
        try:
            await self.manager.prepare(uid, claims)
        except PrepareError as e:
            text = f"Failed to prepare dynamic resources: prepare dynamic resources: {e}"
            await self._fail(pod, "FailedPrepareDynamicResources", text)
            return
        for container in pod["spec"]["containers"]:
            wanted = (container.get("resources") or {}).get("claims") or []
            ids = self.manager.cdi_ids(names, wanted, pod["metadata"]["namespace"])
            try:
                await self.runtime.start(pod, container, ids)
            except InjectError as e:
                await self._fail(
                    pod, "Failed", f"Error: failed to create containerd container: CDI device injection failed: {e}"
                )
                return
            await record_event(
                self.client, pod, "Pod", "Normal", "Started", f"Started container {container['name']}", "kubelet"
            )
        await self._set_running(pod)

    async def _fail(self, pod: JSON, reason: str, text: str) -> None:
        """An event, once for the same text, then a pause before the next try."""
        key = (pod["metadata"]["uid"], reason)
        if self._told.get(key) != text:
            self._told[key] = text
            await record_event(self.client, pod, "Pod", "Warning", reason, text, "kubelet")
        waiting = {"state": {"waiting": {"reason": "ContainerCreating"}}, "ready": False}
        statuses = [{"name": c["name"], **waiting} for c in pod["spec"]["containers"]]
        with contextlib.suppress(ApiError):
            await self._patch_status(pod, {"phase": "Pending", "containerStatuses": statuses})
        await asyncio.sleep(self.timers.retry)

    async def _set_running(self, pod: JSON) -> None:
        statuses = [
            {"name": c["name"], "ready": True, "started": True, "restartCount": 0, "image": c.get("image", ""),
             "imageID": "", "state": {"running": {"startedAt": now()}}}
            for c in pod["spec"]["containers"]
        ]  # fmt: skip
        conditions = [{"type": t, "status": "True", "lastTransitionTime": now()} for t in ("PodScheduled", "Ready")]
        status = {"phase": "Running", "containerStatuses": statuses, "conditions": conditions, "startTime": now()}
        await self._patch_status(pod, status)

    async def _patch_status(self, pod: JSON, status: Mapping[str, Any]) -> None:
        meta = pod["metadata"]
        await self.client.patch(PODS, meta["name"], {"status": status}, meta["namespace"], "status")

    async def _terminate(self, pod: JSON) -> None:
        meta = pod["metadata"]
        await self.runtime.stop(meta["uid"])
        if not await self._clean(meta["uid"]):
            return
        with contextlib.suppress(ApiError):
            await self.client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"], grace=0)

    async def _clean(self, uid: str) -> bool:
        """Unprepares for a pod that has stopped; False where that has to be tried again. There is no event for it."""
        await self.runtime.stop(uid)
        try:
            await self.manager.unprepare(uid)
        except PrepareError as e:
            log.warning("kubelet: pod %s: %s", uid, e)
            await asyncio.sleep(self.timers.retry)
            return False
        return True
