"""A driver of a fabric in memory, its controller, a claim with its pod, and waits for their states."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin import BoundClaim, Claim, Config, Device, DeviceStatus, Driver, Nodes, Pool, PreparedDevice
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import ControllerSettings
from dra_kubeletplugin.kube.resource import CONFIG_MAPS
from dra_kubeletplugin.plugin.controller.controller import Controller

NAME = "fabric.example.com"
ATTACHED, FAILED = f"{NAME}/attached", f"{NAME}/failed"
SHORT_RETRIES = 0.02, 0.1


class Options(Config):
    lanes: int = 4


class FabricDriver(Driver):
    """A driver of a fabric in memory. The fabric outlives the driver's process."""

    name = NAME
    config = Options

    def __init__(self, ports: dict[str, str] | None = None) -> None:
        self.ports = ports if ports is not None else {}  # the UID of the claim to which each device is attached
        self.calls_made: list[tuple[str, str]] = []
        self.running_calls = 0
        self.max_running_calls = 0
        self.faults: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.lanes = 0

    async def pools(self) -> list[Pool]:
        devices = [
            Device(
                f"d{i}",
                binds_to_node=True,
                binding_conditions=[ATTACHED],
                binding_failure_conditions=[FAILED],
            )
            for i in range(2)
        ]
        return [Pool("fabric", devices, nodes=Nodes.all()), Pool("node-1", [Device("local")])]

    async def bind(self, claim: Claim) -> None:
        self.calls_made.append(("bind", claim.uid))
        self.running_calls += 1
        self.max_running_calls = max(self.max_running_calls, self.running_calls)
        try:
            await self.gate.wait()
            if self.faults:
                raise self.faults.pop(0)
            for device in claim.devices:
                attached_uid = self.ports.setdefault(device.name, claim.uid)
                assert attached_uid == claim.uid, f"{device.name} is still attached for {attached_uid}"
                assert isinstance(device.config, Options)
                self.lanes = device.config.lanes
                await claim.report(device, DeviceStatus(data={"port": claim.node}))
        finally:
            self.running_calls -= 1

    async def unbind(self, claim: BoundClaim) -> None:
        self.calls_made.append(("unbind", claim.uid))
        if self.faults:
            raise self.faults.pop(0)
        for device in claim.devices:
            if self.ports.get(device.name) == claim.uid:
                del self.ports[device.name]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]


def settings(**changed: Any) -> ControllerSettings:
    # The lease is as long as in production, so that a slow machine does not lose the lead. A stop releases it, so no
    # test waits for its end.
    options = {"retry_period": 0.1, "shutdown_grace_period": 2.0} | changed
    return ControllerSettings(driver_name=NAME, namespace="default", sysfs_root=Path("/nonexistent"), **options)


@contextlib.asynccontextmanager
async def running_controller(cluster: LocalCluster, driver: Driver, **changed: Any) -> AsyncIterator[Controller]:
    async with Controller(driver, settings(**changed), cluster.config, SHORT_RETRIES).running() as controller:
        yield controller


def claim_and_pod(name: str = "c", **exactly: Any) -> list[JSON]:
    api = {"apiVersion": "resource.k8s.io/v1"}
    request = {"name": "r", "exactly": {"deviceClassName": "fabric", **exactly}}
    container = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": "c"}]}}
    pod = {"containers": [container], "resourceClaims": [{"name": "c", "resourceClaimName": name}]}
    expression = f'device.driver == "{NAME}"'
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return [
        {**api, "kind": "DeviceClass", "metadata": {"name": "fabric"}, "spec": spec},
        {**api, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{name}"}, "spec": pod},
    ]


async def wait_scheduled(cluster: LocalCluster, pod: str) -> None:
    async def check() -> bool:
        pod_object = await cluster.pod(pod)
        return bool((pod_object or {}).get("spec", {}).get("nodeName"))

    await cluster.wait(f"{pod} to be bound", check)


async def wait_for(cluster: LocalCluster, name: str, check: Callable[[], object]) -> None:
    async def call_check() -> object:
        return check()

    await cluster.wait(name, call_check)


async def records(cluster: LocalCluster) -> list[JSON]:
    return (await cluster.client.list(CONFIG_MAPS, "default"))["items"]


async def wait_unrecorded(cluster: LocalCluster) -> None:
    async def check() -> bool:
        return not await records(cluster)

    await cluster.wait("the records to be deleted", check)
