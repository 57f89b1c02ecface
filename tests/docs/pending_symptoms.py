"""Causes the symptoms of docs/troubleshooting.md that keep a pod Pending."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import DriverNode, node_with
from dra_kubeletplugin import (
    CounterSet,
    Device,
    Driver,
    Health,
    Nodes,
    PermanentError,
    Pool,
    RetryableError,
)
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import ControllerSettings
from dra_kubeletplugin.driver import Role
from dra_kubeletplugin.driver.class_validation import make
from dra_kubeletplugin.errors import DraError
from dra_kubeletplugin.kube import ApiConfig
from dra_kubeletplugin.plugin.controller.controller import Controller
from tests.docs.symptoms import (
    event_message,
    explanation,
    produces,
)
from tests.helpers import objects
from tests.helpers.drivers import HealthReportingDriver, make_toy_class


async def wait_until(node: DriverNode[Any], what: str, check: Callable[[], object]) -> None:
    async def matching() -> object:
        return check()

    await node.cluster.wait(what, matching)


async def apply_objects(cluster: LocalCluster, *more: JSON) -> None:
    """Applies ``more``, a template and a pod."""
    await cluster.apply(*more, objects.template(), objects.pod("pod", templates=["t"]))


async def pending(cluster: LocalCluster) -> list[str]:
    return [*await event_message(cluster, "pod", "FailedScheduling"), await explanation(cluster)]


@produces("No device is published for the node")
async def no_devices_published() -> list[str]:
    async with LocalCluster() as cluster:
        await apply_objects(cluster, objects.device_class())
        return await pending(cluster)


@produces("No device matches the selector")
async def selector() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.apply_pod(selector='device.attributes["toy.example.com"].index > 7')
        return await pending(node.cluster)


@produces("A selector names an attribute that a device lacks")
async def missing_attribute() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.apply_pod(selector='device.attributes["toy.example.com"].profile == "2g"')
        return await pending(node.cluster)


@produces("Other claims hold the devices")
async def devices_held() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.run_pod("first", count=4)
        await node.apply_pod()
        return await pending(node.cluster)


@produces("Its devices are tainted")
async def tainted() -> list[str]:
    class Unhealthy(HealthReportingDriver):
        report: ClassVar[dict[str, Health]] = {f"toy-{i}": Health(False, "hot") for i in range(4)}

    async with node_with(Unhealthy) as node:
        await wait_until(
            node, "taints", lambda: all(d.get("taints") for s in node.cluster.slices() for d in s["spec"]["devices"])
        )
        await node.apply_pod()
        return await pending(node.cluster)


class Parts(Driver):
    """Publishes a card with two counters, and a whole device that consumes both."""

    name = "parts.example.com"

    async def pools(self) -> list[Pool]:
        parts = [
            Device(n, consumes_counters={"card": {"slices": c}})
            for n, c in (("whole", 2), ("half-0", 1), ("half-1", 1))
        ]
        return [Pool(self.settings.node_name, parts, [CounterSet("card", {"slices": 2})])]

    async def prepare(self, claim: Any) -> Any:
        return [d.prepared() for d in claim.devices]


@produces("The counters are exhausted")
async def counters() -> list[str]:
    async with node_with(Parts) as node:
        await node.run_pod("first")
        await node.apply_pod()
        return await pending(node.cluster)


@produces("A claim's devices are on another node")
async def devices_on_another_node() -> list[str]:
    async with LocalCluster(nodes=["node-1", "node-2"]) as cluster:
        await cluster.apply(
            objects.device_class(),
            objects.slice_of("node-1", ["d0"]),
            objects.claim("shared"),
            objects.pod("first", claims=["shared"]),
        )
        await event_message(cluster, "first", "Scheduled")
        await cluster.apply(objects.pod("pod", claims=["shared"], nodeSelector={"kubernetes.io/hostname": "node-2"}))
        return await pending(cluster)


@produces("A pool is incomplete")
async def incomplete_pool() -> list[str]:
    async with LocalCluster() as cluster:
        first_slice = objects.slice_of("node-1", ["d0"])
        first_slice["spec"]["pool"]["resourceSliceCount"] = 2
        await apply_objects(cluster, objects.device_class(), first_slice)
        return await pending(cluster)


@produces("There is no such DeviceClass")
async def no_class() -> list[str]:
    async with LocalCluster() as cluster:
        await apply_objects(cluster)
        return await pending(cluster)


@produces("There is no such claim or template")
async def no_template() -> list[str]:
    async with LocalCluster() as cluster:
        await cluster.apply(objects.pod("pod", templates=["t"]))
        return [*await event_message(cluster, "pod", "FailedResourceClaimCreation"), await explanation(cluster)]


@produces("Admin access is not allowed here")
async def admin_access() -> list[str]:
    if not shutil.which("kubectl"):
        pytest.skip("needs kubectl on the PATH")
    async with LocalCluster() as cluster:
        # The cache in the home folder may belong to another cluster with this port.
        cache = str(cluster.state / "kubectl")
        await cluster.apply(objects.device_class())
        manifest = json.dumps(objects.template(spec=objects.claim_spec(admin=True))).encode()
        command = ("kubectl", "--kubeconfig", str(cluster.kubeconfig), "--cache-dir", cache, "create", "-f", "-")
        kubectl = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        _, error = await kubectl.communicate(manifest)
        return [error.decode()]


class Remote(Driver):
    """Publishes a device that must be attached first."""

    name = "remote.example.com"
    bind_error: DraError = RetryableError("the switch does not respond")

    async def pools(self) -> list[Pool]:
        device = Device("r0", binding_conditions=["attached"], binding_failure_conditions=["failed"])
        return [Pool("fabric", [device], nodes=Nodes.all())] if self.role.value == "controller" else []

    async def bind(self, claim: Any) -> None:
        raise self.bind_error

    async def prepare(self, claim: Any) -> Any:
        return []


class PermanentlyFailing(Remote):
    """Publishes a device that can never be attached."""

    bind_error = PermanentError("the switch was removed")


@contextlib.asynccontextmanager
async def remote_controller(
    cluster: LocalCluster, config: ApiConfig | None = None, driver: type[Driver] = Remote
) -> AsyncIterator[Controller]:
    settings = ControllerSettings(
        driver_name=Remote.name, namespace="default", shutdown_grace_period=1.0, retry_period=0.1
    )
    async with Controller(make(driver, Role.CONTROLLER), settings, config or cluster.config).running() as running:
        yield running


@produces("Binding conditions stay false")
async def not_bound() -> list[str]:
    async with LocalCluster() as cluster, remote_controller(cluster) as controller:
        await controller.ready(60)
        await apply_objects(cluster, objects.device_class(driver=Remote.name))

        async def bind_notes() -> list[str]:
            return [f"note: {n}" for n in await controller.notes() if "switch" in n]

        notes: list[str] = await cluster.wait("a failing bind", bind_notes)
        return [*notes, await explanation(cluster), *await event_message(cluster, "pod", "BindingConditionsPending")]


@produces("Binding failed")
async def binding_failed() -> list[str]:
    async with LocalCluster() as cluster, remote_controller(cluster, driver=PermanentlyFailing) as controller:
        await controller.ready(20)
        await apply_objects(cluster, objects.device_class(driver=Remote.name))

        async def failed_explanation() -> str:
            text = await explanation(cluster)  # Between two attempts, the claim is not allocated.
            return text if "BindingFailed" in text.partition("Kubernetes says")[0] else ""

        text: str = await cluster.wait("a claim whose binding failed", failed_explanation)
        return [text, *await event_message(cluster, "pod", "FailedScheduling")]
