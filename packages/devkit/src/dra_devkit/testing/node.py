"""Runs a driver on a node of a local cluster, with the steps of a test: run pods, restart, upgrade, reboot, plug, inject faults."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.driver import Driver, Health, check, make
from dra_kubeletplugin.driver.attachment import reports_health
from dra_kubeletplugin.host import Host
from dra_kubeletplugin.host.described_host import is_described
from dra_kubeletplugin.plugin.node import Plugin
from dra_kubeletplugin.resourceapi.allocation import results_of

from ..hosts import described, kernel, schema
from ..kubernetes_releases import Features
from ..localcluster.cluster import LocalCluster
from ..localcluster.kubelet import LocalKubelet, Timers
from ..localcluster.node_reboot import kill_processes
from . import pods
from .api import PROGRESS_TIMEOUT, TIMEOUT, AsyncApi, FaultError
from .claims import CLASS, ClaimSpec, OpaqueConfig, Request
from .driver_process import InProcessDriver, Leftovers, RunningDriver, SubprocessDriver
from .events import PodError
from .health_override import with_health_overrides
from .oci import env_of, oci_of
from .published import Published, PublishedError, Wanted

D = TypeVar("D", bound=Driver)


@runtime_checkable
class _EndableRuntime(Protocol):
    """A container runtime without real containers: a container ends only when a test calls ``end``."""

    def end(self, pod_uid: str, name: str, exit_code: int = 0) -> None: ...


class DriverNode(Generic[D]):
    """One node with the driver on it. The plugin can be stopped and started again while the cluster keeps running.

    Methods that start or change the driver raise :class:`NotReadyError` with the reason if the driver does not become ready.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        driver: type[D],
        settings: Settings,
        *,
        process: bool = False,
        options: object = None,
    ) -> None:
        self.cluster = cluster
        self.api = AsyncApi(cluster)
        self.driver_class = driver
        self.settings = settings
        self.options = options
        self._process = process
        self._running: RunningDriver | None = None
        self._health_overrides: dict[str, Health] = {}

    @property
    def kubelet(self) -> LocalKubelet:
        return self.cluster.node.kubelet

    @property
    def plugin(self) -> Plugin:
        """The plugin object. Raises :class:`FaultError` if the driver was not started, or runs in a separate process."""
        if isinstance(self._running, InProcessDriver):
            return self._running.plugin
        raise FaultError(
            "this process has no driver object: the driver was not started, or runs with process=True; use node.host to read the host"
        )

    @property
    def driver(self) -> D:
        """The driver object. Raises as :attr:`plugin`."""
        return cast(D, self.plugin.driver)

    @property
    def host(self) -> Host:
        """The host of the driver, also while the driver runs in a separate process or does not run."""
        return Host(self.settings.sysfs_root, self.settings.dev_root, lists=self.settings.list_attributes)

    # --- the driver -------------------------------------------------------------------------------

    async def start(self, /, *, options: object = None, **settings: Any) -> None:
        """Starts an instance, and waits until it is registered and has published.

        Args:
            options: replaces the options of the previous instance; as for :func:`node_with`.
            settings: fields of :class:`Settings` that differ from the previous instance's settings.
        """
        self.settings = dataclasses.replace(self.settings, **settings)
        self.options = self.options if options is None else options
        if self._process:
            self._running = process_driver = SubprocessDriver(
                self.driver_class, self.settings, self.cluster, self.options
            )
            await process_driver.start()
        else:
            driver = with_health_overrides(self.driver_class, lambda _: self._health_overrides)
            await self.start_plugin(Plugin(make(driver, options=self.options), self.settings, self.cluster.config))

    async def start_plugin(self, plugin: Plugin) -> None:
        """Starts a plugin that the caller created, and waits as :meth:`start`."""
        self._running = InProcessDriver(plugin)  # set before the start, because its notes explain a failed start
        await self._running.start()

    async def stop(self) -> None:
        """Stops the plugin gracefully, as SIGTERM does."""
        if self._running:
            await self._running.stop()

    async def restart(self, /, **settings: Any) -> None:
        await self.stop()
        await self.start(**settings)

    async def kill(self) -> None:
        """Kills the plugin's process as SIGKILL does.

        Raises :class:`FaultError` unless the plugin runs in a separate process (``process=True``).
        """
        if self._running:
            await self._running.kill()

    async def upgrade(self, driver: type[D] | None = None, /, **settings: Any) -> None:
        """Does a rolling update: the new instance starts before the old instance stops.

        The new instance may have a different driver class and different settings.
        """
        old, before = self._running, (self.driver_class, self.settings, self.options)
        self.driver_class = driver or self.driver_class
        try:
            await self.start(**{"pod_uid": str(uuid.uuid4())} | settings)
        except BaseException:  # the old instance keeps running, as in a DaemonSet
            if self._running is not old:  # equal if the new instance was never created
                await self.stop()
            self._running, (self.driver_class, self.settings, self.options) = old, before
            raise
        if old:
            await old.stop()

    async def reboot(self) -> None:
        """Simulates a reboot of the node: every process ends, CDI files are deleted, and the boot id changes.

        Sysfs, ``/dev`` and ``/proc`` of a described host get the described content again, except for plugged and unplugged functions. With
        ``process=True`` the plugin and the processes that it started are killed; otherwise the plugin stops gracefully.
        """
        if self._process:
            await self.kill()
            kill_processes({"KUBELET_ROOT": str(self.settings.kubelet_root)})
        else:
            await self.stop()
        sysfs = self.settings.sysfs_root
        await self.cluster.reboot(sysfs=sysfs if is_described(sysfs) else None)
        await self.start()

    async def rescan(self) -> None:
        """Makes the plugin call the driver's discovery again, and waits until the result is published."""
        if self._running:
            await self._running.rescan()

    # --- published devices ------------------------------------------------------------------------

    async def published(self, pool: str = "") -> Published:
        """Returns the pools that the driver's plugin and controller publish, as :meth:`AsyncApi.published`."""
        __tracebackhide__ = True
        return await self.wait_published(lambda _: True, pool)

    async def wait_published(self, wanted: Wanted, pool: str = "", *, timeout: float = TIMEOUT) -> Published:
        """Waits until the driver publishes devices that match ``wanted``, as :meth:`AsyncApi.wait_published`.

        Raises :class:`PublishedError` with the devices that are published instead, and with the plugin's notes about devices
        that it cannot publish.
        """
        __tracebackhide__ = True
        try:
            return await self.api.wait_published(self.settings.driver_name, wanted, pool, timeout=timeout)
        except PublishedError as e:
            if notes := await self._notes():
                raise PublishedError("; ".join([e.why, *notes]), e.published) from None
            raise

    async def _notes(self) -> list[str]:
        return await self._running.notes() if self._running else []

    # --- hardware ---------------------------------------------------------------------------------

    async def plug(self, function: Mapping[str, Any]) -> None:
        """Adds a PCI function, written as in the host description, to the described host. Waits until the driver has published.

        For a driver in a separate process, it does not wait: the driver rescans every 0.2 s, so call :meth:`wait_published` next.
        """
        described.add_function(self._described_sysfs("plug"), function)
        await self._rescan_in_process()

    async def unplug(self, address: str) -> None:
        """Removes the PCI function at ``address`` and waits as :meth:`plug`. Raises :class:`FaultError` if it does not exist."""
        sysfs = self._described_sysfs("unplug")
        present = sorted(f.name for f in (sysfs / "bus/pci/devices").iterdir())
        if address not in present:
            raise FaultError(f"no PCI function {address!r} on this host, only {', '.join(present) or 'none'}")
        described.remove_function(sysfs, address)
        await self._rescan_in_process()

    def write_sysfs(self, path: str, text: str) -> None:
        """Writes to the described host's sysfs, as hardware or an operator changes it. Works for every driver.

        Raises ``OSError`` as the kernel does.
        """
        kernel.write(self._described_sysfs("write_sysfs"), path, text)

    async def health(self, device: str, *, healthy: bool = False, message: str = "injected fault") -> None:
        """Replaces the report about ``device`` in each result of the driver's ``health()``. Returns when the report is published.

        Raises :class:`FaultError` for a driver without ``health()``, and for a driver in a separate process.
        """
        if self._process:
            raise FaultError(
                "health() replaces reports of a driver in this process only: run the test without process=True"
            )
        if not reports_health(self.plugin.driver):
            raise FaultError(
                f"{self.driver_class.__name__} has no health() method, so it cannot report a broken device"
            )
        if self.plugin.inventory.get(device) is None:
            raise FaultError(f"{device} is not a device of {self.settings.driver_name}")
        self._health_overrides[device] = Health(healthy=healthy, message=message)

        async def seen() -> bool:
            return self.plugin.inventory.healthy(device) is healthy

        await self.api.wait(f"the report that {device} is {'healthy' if healthy else 'unhealthy'}", seen)
        await self.plugin.published(TIMEOUT)

    def _described_sysfs(self, verb: str) -> Path:
        if not is_described(self.settings.sysfs_root):
            raise FaultError(
                f"{verb} needs a described host: pass one with host=, because a test never changes this machine's hardware"
            )
        return self.settings.sysfs_root

    async def _rescan_in_process(self) -> None:
        if isinstance(self._running, InProcessDriver):
            await self.rescan()

    # --- pods and claims --------------------------------------------------------------------------

    async def run_pod(
        self,
        name: str = "pod",
        claim: ClaimSpec | None = None,
        *,
        count: int = 1,
        selector: str = "",
        parameters: Mapping[str, Any] | None = None,
        admin_access: bool = False,
        restart_policy: pods.RestartPolicy = "Never",
        timeout: float = TIMEOUT,
        progress_timeout: float = PROGRESS_TIMEOUT,
    ) -> JSON:
        """Creates a pod with one claim, and returns the pod when it runs.

        Args:
            claim: the claim's spec. The default is ``count`` devices of the driver that match ``selector``, with
                ``parameters``.
            timeout: see :meth:`AsyncApi.wait_running`.
            progress_timeout: see :meth:`AsyncApi.wait_running`.
            restart_policy: whether the pod runs again after :meth:`reboot`. With ``Never``, a reboot makes the pod fail, as on
                Kubernetes.

        Raises :class:`PodError`, as :meth:`AsyncApi.wait_running`, and :class:`FaultError` if there is a pod with this name.
        """
        __tracebackhide__ = True
        await self.apply_pod(
            name,
            claim,
            count=count,
            selector=selector,
            parameters=parameters,
            admin_access=admin_access,
            restart_policy=restart_policy,
        )
        try:
            return await self.api.wait_running(name, timeout=timeout, progress_timeout=progress_timeout)
        except PodError as e:
            if notes := await self._notes():  # a device that was not published may be the reason
                raise PodError("; ".join([e.why, *notes]), e.events) from None
            raise

    async def apply_pod(
        self,
        name: str = "pod",
        claim: ClaimSpec | None = None,
        *,
        count: int = 1,
        selector: str = "",
        parameters: Mapping[str, Any] | None = None,
        admin_access: bool = False,
        restart_policy: pods.RestartPolicy = "Never",
    ) -> None:
        """Creates the pod of :meth:`run_pod` without waiting for it. Raises :class:`FaultError` if there is a pod with this name."""
        if self._running:
            self._running.check()
        if await self.api.get("Pod", name) is not None:
            raise FaultError(f"there is a pod {name} already: choose another name, or delete that pod first")
        # The template of an earlier pod with this name may have another spec, and the spec of a template is immutable.
        await self.api.remove("ResourceClaimTemplate", f"{name}-template")
        request = Request(count=count, selectors=[selector] if selector else (), admin_access=admin_access)
        config = [OpaqueConfig(self.settings.driver_name, parameters)] if parameters is not None else []
        spec = claim or ClaimSpec(request, config=config)
        await self.api.apply(
            pods.template(f"{name}-template", spec),
            pods.pod(name, templates=[f"{name}-template"], restart_policy=restart_policy),
        )

    async def end(self, pod_name: str = "pod", container: str = "", *, exit_code: int = 0) -> None:
        """Ends a container, by default the first one of the pod.

        Raises :class:`FaultError` if the container does not run or is a real container.
        """
        pod = await self.api.get("Pod", pod_name)
        if pod is None:
            raise FaultError(f"there is no pod {pod_name}")
        oci_of(self.cluster, pod, container)
        runtime = self.cluster.nodes[pod["spec"]["nodeName"]].runtime
        if not isinstance(runtime, _EndableRuntime):
            raise FaultError("this cluster runs real containers: to end the container, run a command in it")
        runtime.end(pod["metadata"]["uid"], container or pod["spec"]["containers"][0]["name"], exit_code)

    async def claim_of(self, pod_name: str) -> JSON:
        """Returns the claim that was created for a pod. Raises :class:`PodError` if the pod does not exist."""

        async def find() -> JSON | None:
            pod = await self.api.get("Pod", pod_name)
            if pod is None:
                raise PodError(f"there is no pod {pod_name}", ())
            # Compared by UID: the claim of a deleted pod with this name may still exist.
            uid = pod["metadata"]["uid"]
            for claim in await self.api.get_all("ResourceClaim"):
                if any(o["uid"] == uid for o in claim["metadata"].get("ownerReferences") or []):
                    return claim
            return None

        return await self.api.wait(f"the claim of pod {pod_name}", find)

    async def allocated(self, pod_name: str) -> list[str]:
        """Waits until a pod's own claim is allocated, and returns the names of its devices in the order of its requests."""

        async def results() -> list[JSON] | None:
            return results_of(await self.claim_of(pod_name)) or None

        return [r["device"] for r in await self.api.wait(f"the allocation of pod {pod_name}", results)]

    async def delete_pod(self, name: str = "pod") -> None:
        """Deletes a pod and waits until it is gone."""
        await self.api.delete_pod(name)

    def oci(self, pod: Mapping[str, Any] | str, container: str = "") -> JSON:
        """Returns the OCI spec of a pod's container; arguments and errors as for :func:`oci_of`."""
        return oci_of(self.cluster, pod, container)

    def env(self, pod: Mapping[str, Any] | str, container: str = "") -> dict[str, str]:
        """Returns the environment variables of a container; arguments and errors as for :func:`oci_of`."""
        return env_of(self.cluster, pod, container)

    async def leftovers(self) -> Leftovers:
        """Returns the CDI files, records and held devices on the node.

        All three are empty before the first start, and after all pods are deleted if nothing leaks.
        """
        return await self._running.leftovers() if self._running else {"files": [], "records": [], "held": []}


@contextlib.asynccontextmanager
async def on_node(
    cluster: LocalCluster,
    driver: type[D],
    *,
    host: Path | str | Mapping[str, Any] | None = None,
    process: bool = False,
    options: object = None,
    **settings: Any,
) -> AsyncIterator[DriverNode[D]]:
    """Runs the driver on the first node of a running cluster; arguments as for :func:`node_with`."""
    check(driver)
    sysfs = Path("/sys")
    if host is not None:
        description = host if isinstance(host, Mapping) else schema.load(described.find(str(host), "host"))
        sysfs = described.build(cluster.state / "host", description)
    base = Settings(
        driver_name=driver.name,
        node_name=cluster.node.name,
        kubelet_root=cluster.node.kubelet_root,
        cdi_root=cluster.node.cdi_root,
        sysfs_root=sysfs,
        health_interval=0.1,
        rescan_interval=0.2 if process else Settings.rescan_interval,  # a test cannot request a rescan of a process
        local_cluster=True,
    )
    cluster.node.runtime.dev = Host(sysfs).dev
    node = DriverNode(cluster, driver, dataclasses.replace(base, **settings), process=process, options=options)
    await node.api.apply(pods.device_class(CLASS, node.settings.driver_name))
    try:
        await node.start()
        yield node
    finally:
        await node.stop()


@contextlib.asynccontextmanager
async def node_with(
    driver: type[D],
    *,
    host: Path | str | Mapping[str, Any] | None = None,
    timers: Timers | None = None,
    process: bool = False,
    kubernetes: str = "",
    feature_gates: Mapping[str, bool] | None = None,
    options: object = None,
    **settings: Any,
) -> AsyncIterator[DriverNode[D]]:
    """Runs a cluster with one node and the driver on it.

    Args:
        driver: the class to test.
        host: a described host: a YAML file, the name of a description in the package (``virtual-machine``), or an object. None
            means this machine's hardware.
        timers: intervals of the kubelet.
        process: whether the driver runs in a separate process, which can be killed.
        kubernetes: the Kubernetes release that the cluster behaves as.
        feature_gates: gates that differ from that release's defaults.
        options: the options that the driver defines: an object of its options class, or values by name. Missing values come from
            the environment.
        settings: fields of :class:`Settings`.
    """
    async with (
        LocalCluster(timers=timers, features=Features.of(kubernetes, feature_gates)) as cluster,
        on_node(cluster, driver, host=host, process=process, options=options, **settings) as node,
    ):
        yield node
