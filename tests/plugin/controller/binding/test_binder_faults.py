"""Faults between any two calls of binding and unbinding: a request that never leaves, or one whose answer is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

import pytest

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import PODS
from dra_kubeletplugin.localcluster.apiserver import ApiServer
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.plugin.controller.binding.claims import AllocatedClaim
from dra_kubeletplugin.plugin.controller.binding.records import BindingRecord
from dra_kubeletplugin.plugin.controller.controller import Controller
from dra_kubeletplugin.resourceapi.defaulting import now
from tests.plugin.controller.test_controller import (
    ATTACHED,
    FAILED,
    NAME,
    QUICK,
    Fabric,
    claim_and_pod,
    controlled,
    records,
    scheduled,
    settings,
    until,
)

pytestmark = pytest.mark.gates("DRADeviceBindingConditions")

JSON = dict[str, Any]
_STEPS = 40  # more requests than one claim takes


class Lost(Enum):
    REQUEST = "the request"
    ANSWER = "the answer"


class Wire:
    """Breaks the n-th request about claims and records, once it is told to."""

    def __init__(self, controller: Controller, lost: Lost) -> None:
        self._lost = lost
        self._at = 0
        self._request: Callable[..., Awaitable[Any]] = controller.client.transport.request
        controller.client.transport.request = self.request  # type: ignore[method-assign]

    @property
    def broke(self) -> bool:
        return self._at <= 0

    def arm(self, at: int) -> None:
        self._at = at

    async def request(self, method: str, target: str, *args: Any) -> Any:
        if "/leases" in target or "/resourceslices" in target or self.broke:
            return await self._request(method, target, *args)
        self._at -= 1
        if self._at == 0 and self._lost is Lost.REQUEST:
            raise ConnectionResetError("cut on purpose")
        answer = await self._request(method, target, *args)
        if self._at == 0:
            raise ConnectionResetError("cut on purpose, after the server had answered")
        return answer


@pytest.mark.parametrize("lost", Lost)
async def test_a_fault_at_any_request_leaves_nothing_undone_and_nothing_done_twice_at_once(lost: Lost) -> None:
    async with LocalCluster() as cluster:
        driver = Fabric()
        async with controlled(cluster, driver) as controller:
            await controller.ready(60)
            wire = Wire(controller, lost)
            device_class = claim_and_pod()[0]
            await cluster.apply(device_class)
            for step in itertools.count(1):
                assert step < _STEPS, "a claim takes more requests than this test breaks"
                wire.arm(step)
                name = f"c{step}"
                await cluster.apply(*claim_and_pod(name)[1:])
                await scheduled(cluster, f"pod-{name}")
                assert len(driver.ports) == 1
                await cluster.client.delete(PODS, f"pod-{name}", "default", grace=0)
                await until(cluster, "unbind", lambda: not driver.ports)

                async def nothing_left() -> bool:
                    return not await records(cluster)

                await cluster.wait(f"the record to go, with {lost.value} {step} lost", nothing_left)
                if not wire.broke:
                    break
            assert driver.most_under_way == 1
            assert not any(e.startswith("FailedScheduling: device") for e in cluster.events())
            assert step > 6, "create, read, report, read, conditions, delete at the least"


async def test_a_record_whose_answer_was_lost_is_read_again_and_those_made_meanwhile_stay_known() -> None:
    async with LocalCluster() as cluster:
        driver = Fabric()
        async with controlled(cluster, driver) as controller:
            await controller.ready(60)
            create, load = controller.records.create, controller.records.load
            listed, go_on = asyncio.Event(), asyncio.Event()

            async def unheard(of: AllocatedClaim) -> BindingRecord:
                made = await create(of)
                if of.claim.name == "first" and not listed.is_set():
                    raise ApiError("the answer was lost")
                return made

            async def slow() -> list[BindingRecord]:
                out = await load()
                listed.set()
                await go_on.wait()
                return out

            controller.records.create = unheard  # type: ignore[method-assign]
            controller.records.load = slow  # type: ignore[method-assign]
            await cluster.apply(*claim_and_pod("first"))
            await asyncio.wait_for(listed.wait(), 60)
            await cluster.apply(*claim_and_pod("second")[1:])
            await scheduled(cluster, "pod-second")
            go_on.set()
            await scheduled(cluster, "pod-first")
            assert len(driver.ports) == 2
            await cluster.client.delete(PODS, "pod-second", "default", grace=0)
            await until(cluster, "unbind", lambda: len(driver.ports) == 1)
            await cluster.client.delete(PODS, "pod-first", "default", grace=0)
            await until(cluster, "unbind", lambda: not driver.ports)

            async def forgotten() -> bool:
                return not await records(cluster)

            await cluster.wait("the records to go", forgotten)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_a_server_with_one_version_of_the_api_will_do(version: str) -> None:
    server = ApiServer()
    server.injected_faults.served = {version}
    await server.start()
    config = server.config
    driver = Fabric()
    try:
        async with KubeClient(config) as client, Controller(driver, settings(), config, QUICK).running() as controller:
            await controller.ready(60)
            claims = await client.dra("resourceclaims")
            assert claims.version == version
            exactly = {"deviceClassName": "fabric"}
            request = {"name": "r", **exactly} if version == "v1beta1" else {"name": "r", "exactly": exactly}
            made = {"metadata": {"name": "c", "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}
            await client.create(claims, made)
            result = {"request": "r", "driver": NAME, "pool": "fabric", "device": "d0"}
            result |= {"bindingConditions": [ATTACHED], "bindingFailureConditions": [FAILED]}
            node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
            allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [node]}}
            allocation["allocationTimestamp"] = now()
            await client.patch(claims, "c", {"status": {"allocation": allocation}}, "default", "status")
            async with asyncio.timeout(60):
                while not (device := (await client.get(claims, "c", "default"))["status"].get("devices")):
                    await asyncio.sleep(0.02)
            assert device[0]["device"] == "d0"
            async with asyncio.timeout(60):
                while not driver.ports:
                    await asyncio.sleep(0.02)
    finally:
        await server.close()
