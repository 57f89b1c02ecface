"""A driver on a node of a local cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from ..base.settings import Settings
from ..driver import Driver, Health, check, make
from ..host import Host
from ..host.fake import sysfs as described
from ..localcluster.cluster import LocalCluster, resource_of
from ..localcluster.kubelet import Kubelet, Timers
from ..plugin.node import Plugin
from . import pods
from .api import PATIENCE, TIMEOUT, AsyncApi, FaultError
from .claims import CLASS, ClaimSpec, OpaqueConfig, Request
from .driver_process import InProcessDriver, Leftovers, RunningDriver, SubprocessDriver
from .events import PodError
from .health_override import told_besides
from .published import Published, PublishedError, Wanted

JSON = dict[str, Any]
D = TypeVar("D", bound=Driver)
_PODS = resource_of({"apiVersion": "v1", "kind": "Pod"})


@runtime_checkable
class _Ends(Protocol):
    """A runtime whose containers only end when they are told to."""

    def end(self, pod_uid: str, name: str, exit_code: int = 0) -> None: ...


class DriverNode(Generic[D]):
    """One node with the driver on it. The plugin may be stopped and started again; the cluster stays.

    Methods that start or change the driver raise :class:`NotReadyError` with the reason where it does not get ready.
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
        self._told: dict[str, Health] = {}

    @property
    def kubelet(self) -> Kubelet:
        return self.cluster.node.kubelet

    @property
    def plugin(self) -> Plugin:
        """The plugin object, while the driver runs in this process.

        Raises :class:`FaultError` where it has a process of its own, or was never started.
        """
        if isinstance(self._running, InProcessDriver):
            return self._running.plugin
        raise FaultError("there is no plugin object: the driver runs in a process of its own, or not at all")

    @property
    def driver(self) -> D:
        """The driver object. Raises as :attr:`plugin`."""
        return cast(D, self.plugin.driver)

    # --- the driver -------------------------------------------------------------------------------

    async def start(self, /, *, options: object = None, **settings: Any) -> None:
        """Starts an instance, and waits until it is registered and has published. ``settings`` change those of before, and
        ``options``, as of :func:`node_with`, take the place of those."""
        self.settings = dataclasses.replace(self.settings, **settings)
        self.options = self.options if options is None else options
        if self._process:
            self._running = own = SubprocessDriver(self.driver_class, self.settings, self.cluster, self.options)
            await own.start()
        else:
            driver = told_besides(self.driver_class, lambda _: self._told)
            await self.start_plugin(Plugin(make(driver, options=self.options), self.settings, self.cluster.config))

    async def start_plugin(self, plugin: Plugin) -> None:
        """Starts a plugin of the caller's making, and waits as :meth:`start`."""
        self._running = InProcessDriver(plugin)  # what it says is of interest also where it does not get ready
        await self._running.start()

    async def stop(self) -> None:
        """Ends it in order, as at SIGTERM."""
        if self._running:
            await self._running.stop()

    async def restart(self, /, **settings: Any) -> None:
        await self.stop()
        await self.start(**settings)

    async def kill(self) -> None:
        """Ends its process as SIGKILL does; ``process=True`` gives it one. Raises :class:`FaultError` without."""
        if self._running:
            await self._running.kill()

    async def upgrade(self, driver: type[D] | None = None, /, **settings: Any) -> None:
        """A rolling update: the next instance, of another class or with other settings, starts before the old one stops."""
        old, before = self._running, (self.driver_class, self.settings, self.options)
        self.driver_class = driver or self.driver_class
        try:
            await self.start(**{"pod_uid": str(uuid.uuid4())} | settings)
        except BaseException:  # the old one stays, as a DaemonSet's does
            if self._running is not old:  # else there was no next one yet
                await self.stop()
            self._running, (self.driver_class, self.settings, self.options) = old, before
            raise
        if old:
            await old.stop()

    async def reboot(self) -> None:
        """The machine goes down and comes up: nothing runs any more, CDI files are gone, the boot id is another."""
        await self.stop()
        sysfs = self.settings.sysfs_root
        await self.cluster.reboot(sysfs=sysfs if described.is_described(sysfs) else None)
        await self.start()

    async def rescan(self) -> None:
        """Has the driver asked for its devices again, and waits until the answer is published."""
        if self._running:
            await self._running.rescan()

    # --- what is published ------------------------------------------------------------------------

    async def published(self, pool: str = "") -> Published:
        """What the driver publishes: devices by name, and pools; its controller's too. As :meth:`AsyncApi.published`."""
        __tracebackhide__ = True
        return await self.wait_published(lambda _: True, pool)

    async def wait_published(self, wanted: Wanted, pool: str = "", *, timeout: float = TIMEOUT) -> Published:
        """What the driver publishes, once it is as ``wanted``; as :meth:`AsyncApi.wait_published`.

        Raises :class:`PublishedError` with what is published instead, and with what the plugin says of devices that it left out.
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
        """Plugs a PCI function into the described host, written as in its description, and waits until that is published.

        A driver in a process of its own looks by itself, after 0.2 s: :meth:`wait_published` then.
        """
        described.add_function(self._described("plug"), function)
        await self._looked()

    async def unplug(self, address: str) -> None:
        """Takes the PCI function at ``address`` out of the described host, and waits as :meth:`plug`.

        Raises :class:`FaultError` where there is none.
        """
        sysfs = self._described("unplug")
        present = sorted(f.name for f in (sysfs / "bus/pci/devices").iterdir())
        if address not in present:
            raise FaultError(f"no PCI function {address!r} on this host, only {', '.join(present) or 'none'}")
        described.remove_function(sysfs, address)
        await self._looked()

    async def health(self, device: str, *, healthy: bool = False, message: str = "a fault made on purpose") -> None:
        """From now on ``health()`` of the driver also says this about a device; returns when the slices say it.

        Raises :class:`FaultError` for a driver without ``health()``, and for one in a process of its own.
        """
        if not self.plugin.driver.reports_health:
            raise FaultError(
                f"{self.driver_class.__name__} has no health(): there is nothing to say that a device is broken"
            )
        if self.plugin.inventory.get(device) is None:
            raise FaultError(f"{device} is no device of {self.settings.driver_name}")
        self._told[device] = Health(healthy=healthy, message=message)

        async def seen() -> bool:
            return self.plugin.inventory.healthy(device) is healthy

        await self.api.wait(f"the report that {device} is {'well' if healthy else 'broken'}", seen)
        await self.plugin.published(TIMEOUT)

    def _described(self, verb: str) -> Path:
        if not described.is_described(self.settings.sysfs_root):
            raise FaultError(
                f"{verb} needs a described host: give one with host=, for this machine's hardware is left alone"
            )
        return self.settings.sysfs_root

    async def _looked(self) -> None:
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
        patience: float = PATIENCE,
    ) -> JSON:
        """A pod with one claim of its own; answers the pod once it runs.

        Args:
            claim: what it asks for; without, ``count`` devices of the driver that match ``selector``, with ``parameters``.
            restart_policy: whether it runs again after :meth:`reboot`; ``Never`` fails then, as on Kubernetes.

        Raises :class:`PodError`, as :meth:`AsyncApi.wait_running`.
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
            return await self.api.wait_running(name, timeout=timeout, patience=patience)
        except PodError as e:
            if notes := await self._notes():  # devices that are not there may be the reason
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
        """As :meth:`run_pod`, without waiting for it."""
        if self._running:
            self._running.check()
        request = Request(count=count, selectors=[selector] if selector else (), admin_access=admin_access)
        config = [OpaqueConfig(self.settings.driver_name, parameters)] if parameters is not None else []
        spec = claim or ClaimSpec(request, config=config)
        await self.api.apply(
            pods.template(f"{name}-template", spec),
            pods.pod(name, templates=[f"{name}-template"], restart_policy=restart_policy),
        )

    async def end(self, pod_name: str = "pod", container: str = "", *, exit_code: int = 0) -> None:
        """The process of a container, of the first one where none is named, ends by itself.

        Raises :class:`FaultError` where the container does not run, or really runs: then a command ends it.
        """
        pod = await self.api.get("Pod", pod_name)
        if pod is None:
            raise FaultError(f"there is no pod {pod_name}")
        oci_of(self.cluster, pod, container)
        runtime = self.cluster.nodes[pod["spec"]["nodeName"]].runtime
        if not isinstance(runtime, _Ends):
            raise FaultError("containers really run here: end one with a command in it")
        runtime.end(pod["metadata"]["uid"], container or pod["spec"]["containers"][0]["name"], exit_code)

    async def claim_of(self, pod_name: str) -> JSON:
        """The claim that was made for a pod. Raises :class:`PodError` where there is no such pod."""

        async def find() -> JSON | None:
            for claim in await self.api.get_all("ResourceClaim"):
                if any(o["name"] == pod_name for o in claim["metadata"].get("ownerReferences") or []):
                    return claim
            if await self.api.get("Pod", pod_name) is None:
                raise PodError(f"there is no pod {pod_name}", ())
            return None

        return await self.api.wait(f"the claim of pod {pod_name}", find)

    async def allocated(self, pod_name: str) -> list[str]:
        """The names of the devices of a pod's own claim, in the order of its requests, once it is allocated."""

        async def results() -> list[JSON] | None:
            status = (await self.claim_of(pod_name)).get("status") or {}
            return ((status.get("allocation") or {}).get("devices") or {}).get("results")

        return [r["device"] for r in await self.api.wait(f"the allocation of pod {pod_name}", results)]

    async def delete_pod(self, name: str = "pod") -> None:
        """Deletes a pod and waits until it has gone."""
        await self.api.delete_pod(name)

    def oci(self, pod: Mapping[str, Any] | str, container: str = "") -> JSON:
        """The OCI spec of a pod's container, the first one where none is named, as its runtime got it.

        ``pod`` is one in namespace ``default`` where it is a name.
        Raises :class:`FaultError` where it was not started on this cluster's nodes.
        """
        return oci_of(self.cluster, pod, container)

    def env(self, pod: Mapping[str, Any] | str, container: str = "") -> dict[str, str]:
        """What a container sees in its environment; as :meth:`oci`."""
        return env_of(self.cluster, pod, container)

    async def leftovers(self) -> Leftovers:
        """What is left on the node: CDI files, records, held devices. All empty when nothing leaks, and before the first start."""
        return await self._running.leftovers() if self._running else {"files": [], "records": [], "held": []}


def oci_of(cluster: LocalCluster, pod: Mapping[str, Any] | str, container: str = "") -> JSON:
    """As :meth:`DriverNode.oci`."""
    __tracebackhide__ = True
    if isinstance(pod, str):
        pod = _bound(cluster, pod)
    container = container or pod["spec"]["containers"][0]["name"]
    node = pod["spec"].get("nodeName", "")
    try:
        return cluster.nodes[node].runtime.spec(pod["metadata"]["uid"], container)
    except KeyError:
        where = f"on {node}" if node else "anywhere"
        raise FaultError(f"container {container} of pod {pod['metadata']['name']} was not started {where}") from None


def _bound(cluster: LocalCluster, name: str) -> JSON:
    """As its kubelet knows it."""
    __tracebackhide__ = True
    for node in cluster.nodes.values():
        if found := node.kubelet.informers.find(_PODS, name, "default"):
            return found
    raise FaultError(f"no node has a pod {name}")


def env_of(cluster: LocalCluster, pod: Mapping[str, Any] | str, container: str = "") -> dict[str, str]:
    """What a container sees in its environment; as :meth:`DriverNode.oci`."""
    return dict(e.split("=", 1) for e in oci_of(cluster, pod, container)["process"]["env"])


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
    """The driver on the first node of a cluster that runs; arguments as of :func:`node_with`."""
    check(driver)
    sysfs = Path("/sys")
    if host is not None:
        description = host if isinstance(host, Mapping) else described.load(described.find(str(host), "host"))
        sysfs = described.build(cluster.state / "host", description)
    base = Settings(
        driver_name=driver.name,
        node_name=cluster.node.name,
        kubelet_root=cluster.node.kubelet_root,
        cdi_root=cluster.node.cdi_root,
        sysfs_root=sysfs,
        health_interval=0.1,
        rescan_interval=0.2 if process else Settings.rescan_interval,  # a process cannot be asked to look
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
    """A cluster with one node and the driver on it.

    Args:
        driver: the class to test.
        host: a described host, as a YAML file, as the name of one that comes with the package (``virtual-machine``), or as an
            object; this machine when left out.
        timers: of the kubelet.
        process: whether the driver gets a process of its own, which can be killed.
        kubernetes: the release that the cluster behaves as, and ``feature_gates`` that are otherwise in it.
        options: of the driver's own: an object of its class of options, or values by name; what is left out is in the environment.
        settings: fields of :class:`Settings`.
    """
    async with (
        LocalCluster(timers=timers, kubernetes=kubernetes, feature_gates=feature_gates) as cluster,
        on_node(cluster, driver, host=host, process=process, options=options, **settings) as node,
    ):
        yield node
