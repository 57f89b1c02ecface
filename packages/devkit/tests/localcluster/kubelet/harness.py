"""A cluster with one node and fast timers, and the steps of the kubelet's tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import LocalKubelet, Timers
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube.errors import ConflictError
from dra_kubeletplugin.kube.resource import CLAIMS, PODS
from dra_kubeletplugin.resourceapi.defaulting import now
from tests.helpers.fake_plugin import FakePlugin
from tests.helpers.objects import DRIVER, claim, pod

TIMERS = Timers(plugin_poll_interval=0.02, slice_wipe_delay=0.4, pod_sync_backoff=0.05, health_retry_delay=0.05)


class KubeletHarness:
    """A cluster with one node, and the steps of the tests."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    @property
    def kubelet(self) -> LocalKubelet:
        return self.cluster.node.kubelet

    def plugin(self, driver: str = DRIVER, **options: Any) -> FakePlugin:
        return FakePlugin(self.cluster.node.kubelet_root, driver, **options)

    async def wait_until(self, description: str, check: Callable[[], Any]) -> Any:
        async def evaluate() -> Any:
            result = check()
            return await result if isinstance(result, Awaitable) else result

        try:
            return await self.cluster.wait(description, evaluate)
        except TimeoutError as e:
            raise AssertionError(f"{e}; {self.cluster.events()[-12:]}") from None

    async def run(self, name: str = "p", *drivers: str, shared: str = "", **spec: Any) -> JSON:
        """Creates a pod bound to the node, with a claim that is already allocated: one device of each driver."""
        claim_name = shared or f"{name}-c"
        created = await self.cluster.apply(pod(name, claims=[claim_name], nodeName="node-1", **spec))
        applied_claim = await self.cluster.apply(claim(claim_name))
        results = [{"request": "device", "driver": d, "pool": "node-1", "device": "d0"} for d in drivers or (DRIVER,)]
        consumer = {"resource": "pods", "name": name, "uid": created[0]["metadata"]["uid"]}
        allocated = {"allocation": {"devices": {"results": results}, "allocationTimestamp": now()}}

        async def reserve() -> bool:
            """Reserves the claim for the pod. The claim controller may reserve it first."""
            current = await self.cluster.client.get(CLAIMS, claim_name, "default")
            status = allocated | (current["status"] or {})
            consumers = status.get("reservedFor") or []
            if consumer in consumers:
                return True
            status["reservedFor"] = [*consumers, consumer]
            try:
                await self.cluster.client.update(CLAIMS, {**current, "status": status}, "status")
            except ConflictError:
                return False
            return True

        await self.cluster.wait(f"{claim_name} to be reserved for {name}", reserve)
        assert applied_claim
        return created[0]

    async def wait_until_running(self, name: str = "p") -> JSON:
        running: JSON = await self.wait_until(f"{name} to run", lambda: self.phase(name, "Running"))
        return running

    async def phase(self, name: str, phase: str) -> JSON | None:
        current = await self.cluster.pod(name)
        return current if current and current["status"].get("phase") == phase else None

    async def delete(self, name: str = "p", grace: int | None = None) -> None:
        await self.cluster.client.delete(PODS, name, "default", grace=grace)

    async def wait_until_deleted(self, name: str = "p") -> None:
        async def check() -> bool:
            return await self.cluster.pod(name) is None

        await self.wait_until(f"{name} to be deleted", check)

    async def wait_for_event(self, name: str, text: str) -> None:
        await self.wait_until(
            f"{text!r} in an event of {name}", lambda: any(text in e for e in self.cluster.events(name))
        )

    async def assert_pending(self, name: str = "p") -> None:
        current = await self.cluster.pod(name)
        assert current is not None
        assert current["status"]["phase"] == "Pending"

    async def hold_next_retry(self, plugin: FakePlugin, method: str) -> int:
        """Waits for a failed call and then for the next call, which the plugin holds until its gate is set.

        Returns how many calls the plugin has received. It receives no further call while it holds this one.
        """
        await self.wait_until("a first call", lambda: plugin.count(method))
        plugin.gate.clear()
        failed_calls = plugin.count(method)
        await self.wait_until("the next call", lambda: plugin.count(method) > failed_calls)
        return plugin.count(method)

    async def wait_until_registered(self, driver: str = DRIVER) -> None:
        await self.wait_until(f"{driver} to be registered", lambda: self.kubelet.plugins.is_connected(driver))

    async def slices(self) -> list[str]:
        return sorted(s["metadata"]["name"] for s in self.cluster.slices())

    async def health(self, name: str = "p") -> list[Any]:
        current = await self.cluster.pod(name)
        assert current is not None
        [status] = current["status"].get("containerStatuses") or [{}]
        entries = status.get("allocatedResourcesStatus") or []
        return [(e["name"], r["resourceID"], r["health"]) for e in entries for r in e["resources"]]

    async def wait_for_health(self, health: str, name: str = "p") -> None:
        async def check() -> bool:
            return {h for _, _, h in await self.health(name)} == {health}

        await self.wait_until(f"{name} to be {health}", check)
