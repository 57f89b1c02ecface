"""A driver on a node of a local cluster, in this process."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from ..driver import Driver, check, make
from ..host import Host, described
from ..local.cluster import LocalCluster
from ..local.kubelet import Timers
from ..plugin import Plugin
from ..settings import Settings
from . import pods

JSON = dict[str, Any]
CLASS = "devices"
_READY = 20.0  # seconds


class DriverNode:
    """One node with the driver on it. The plugin may be stopped and started again; the cluster stays."""

    def __init__(self, cluster: LocalCluster, driver: type[Driver], settings: Settings) -> None:
        self.cluster = cluster
        self.driver_class = driver
        self.settings = settings
        self.plugin: Plugin
        self._running: contextlib.AsyncExitStack | None = None

    @property
    def kubelet(self) -> Any:
        return self.cluster.node.kubelet

    @property
    def driver(self) -> Any:
        return self.plugin.driver

    async def start(self, **settings: Any) -> None:
        """Starts a new plugin object, and waits until it is registered and has published.

        Raises :class:`NotReadyError` with the reason where it does not get there.
        """
        self.settings = dataclasses.replace(self.settings, **settings)
        self.plugin = Plugin(make(self.driver_class), self.settings, self.cluster.config)
        self._running = contextlib.AsyncExitStack()
        await self._running.enter_async_context(self.plugin.running())
        await self.plugin.ready(_READY)

    async def stop(self) -> None:
        if self._running:
            await self._running.aclose()
            self._running = None

    async def restart(self, **settings: Any) -> None:
        await self.stop()
        await self.start(**settings)

    async def rescan(self) -> None:
        """Has the driver asked for its devices again, and waits for that."""
        await self.plugin.scan.look()

    # --- pods and claims ------------------------------------------------------------------------

    async def run_pod(self, name: str = "pod", *, timeout: float = 20, **spec: Any) -> JSON:
        """A pod with one claim of its own; answers the pod once it runs. ``spec`` as in :func:`pods.claim_spec`."""
        await self.apply_pod(name, **spec)
        return await self.cluster.wait_running(name, timeout=timeout)

    async def apply_pod(self, name: str = "pod", **spec: Any) -> None:
        spec.setdefault("driver", self.settings.driver_name)
        template = pods.template(f"{name}-template", pods.claim_spec(CLASS, **spec))
        await self.cluster.apply(template, pods.pod(name, templates=[f"{name}-template"]))

    async def claim_of(self, pod_name: str) -> JSON:
        """The claim that was made for a pod."""

        async def find() -> JSON | None:
            for claim in self.cluster.claims():
                if any(o["name"] == pod_name for o in claim["metadata"].get("ownerReferences") or []):
                    return claim
            return None

        found: JSON = await self.cluster.wait(f"the claim of pod {pod_name}", find)
        return found

    def oci(self, pod: Mapping[str, Any]) -> JSON:
        """The OCI spec of a pod's container."""
        spec: JSON = self.kubelet.runtime.started[pod["metadata"]["uid"], "main"].spec
        return spec

    def env(self, pod: Mapping[str, Any]) -> dict[str, str]:
        """What the container sees in its environment."""
        return dict(e.split("=", 1) for e in self.oci(pod)["process"]["env"])

    async def leftovers(self) -> JSON:
        """What is left on the node: CDI files, records, held devices. All empty when nothing leaks."""
        return {
            "files": self.plugin.claims.files.specs.uids(),
            "records": [r.uid for r in await self.plugin.claims.store.all()],
            "held": sorted(device for _, device in await self.plugin.claims.store.held()),
        }

    async def delete_pod(self, name: str = "pod") -> None:
        await self.cluster.delete_pod(name)


@contextlib.asynccontextmanager
async def node_with(
    driver: type[Driver],
    *,
    host: Path | str | Mapping[str, Any] | None = None,
    timers: Timers | None = None,
    **settings: Any,
) -> AsyncIterator[DriverNode]:
    """A running node.

    Args:
        driver: the class to test.
        host: a described host, as a YAML file, as the name of one that comes with the package (``virtual-machine``), or as an
            object; this machine when left out.
        timers: of the kubelet.
        settings: fields of :class:`Settings`.
    """
    check(driver)
    async with LocalCluster(timers=timers) as cluster:
        sysfs = Path("/sys")
        if host is not None:
            description = host if isinstance(host, Mapping) else described.load(described.find(str(host)))
            sysfs = described.build(cluster.state / "host", description)
        base = Settings(
            driver_name=driver.name,
            node_name=cluster.node.name,
            kubelet_root=cluster.node.kubelet_root,
            cdi_root=cluster.node.cdi_root,
            sysfs_root=sysfs,
            local_cluster=True,
        )
        cluster.node.kubelet.runtime.dev = Host(sysfs).dev
        node = DriverNode(cluster, driver, dataclasses.replace(base, **settings))
        await cluster.apply(pods.device_class(CLASS, node.settings.driver_name))
        try:
            await node.start()
            yield node
        finally:
            await node.stop()
