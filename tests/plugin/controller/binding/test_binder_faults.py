"""Faults between any two calls of binding and unbinding: a request that is not sent, or a request whose response is
lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

import pytest

from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import PODS
from dra_kubeletplugin.plugin.controller.binding.claims import AllocatedClaim
from dra_kubeletplugin.plugin.controller.binding.records import BindingRecord
from dra_kubeletplugin.plugin.controller.controller import Controller
from dra_kubeletplugin.resourceapi.defaulting import now
from tests.plugin.controller.fabric import (
    ATTACHED,
    FAILED,
    NAME,
    SHORT_RETRIES,
    FabricDriver,
    claim_and_pod,
    running_controller,
    settings,
    wait_for,
    wait_scheduled,
    wait_unrecorded,
)

pytestmark = pytest.mark.gates("DRADeviceBindingConditions")

_STEPS = 40  # more than the number of requests for one claim


class LostMessage(Enum):
    REQUEST = "the request"
    RESPONSE = "the answer"


class FaultyTransport:
    """Breaks the n-th request for claims and records, after ``arm(n)``."""

    def __init__(self, controller: Controller, lost_message: LostMessage) -> None:
        self._lost = lost_message
        self._requests_left = 0
        self._request: Callable[..., Awaitable[Any]] = controller.client.transport.request
        controller.client.transport.request = self.request  # type: ignore[method-assign]

    @property
    def has_broken(self) -> bool:
        return self._requests_left <= 0

    def arm(self, request_number: int) -> None:
        self._requests_left = request_number

    async def request(self, method: str, target: str, *args: Any) -> Any:
        if "/leases" in target or "/resourceslices" in target or self.has_broken:
            return await self._request(method, target, *args)
        self._requests_left -= 1
        if self._requests_left == 0 and self._lost is LostMessage.REQUEST:
            raise ConnectionResetError("cut on purpose")
        response = await self._request(method, target, *args)
        if self._requests_left == 0:
            raise ConnectionResetError("cut on purpose, after the server had answered")
        return response


@pytest.mark.parametrize("lost_message", LostMessage)
async def test_a_fault_at_any_request_leaves_no_record_and_causes_no_concurrent_calls(
    lost_message: LostMessage,
) -> None:
    async with LocalCluster() as cluster:
        driver = FabricDriver()
        async with running_controller(cluster, driver) as controller:
            await controller.ready(60)
            wire = FaultyTransport(controller, lost_message)
            device_class = claim_and_pod()[0]
            await cluster.apply(device_class)
            for step in itertools.count(1):
                assert step < _STEPS, "a claim takes more requests than this test breaks"
                wire.arm(step)
                name = f"c{step}"
                await cluster.apply(*claim_and_pod(name)[1:])
                await wait_scheduled(cluster, f"pod-{name}")
                assert len(driver.ports) == 1
                await cluster.client.delete(PODS, f"pod-{name}", "default", grace=0)
                await wait_for(cluster, "unbind", lambda: not driver.ports)

                await wait_unrecorded(cluster)
                if not wire.has_broken:
                    break
            assert driver.max_running_calls == 1
            assert not any("device binding" in e for e in cluster.events())
            assert step > 6, "create, read, report, read, conditions, delete at the least"


async def test_a_record_whose_create_response_was_lost_is_read_again_and_newer_records_stay_known() -> None:
    async with LocalCluster() as cluster:
        driver = FabricDriver()
        async with running_controller(cluster, driver) as controller:
            await controller.ready(60)
            create, load = controller.records.create, controller.records.load
            is_loaded, resume = asyncio.Event(), asyncio.Event()

            async def create_and_lose_response(allocated: AllocatedClaim) -> BindingRecord:
                record = await create(allocated)
                if allocated.claim.name == "first" and not is_loaded.is_set():
                    raise ApiError("the answer was lost")
                return record

            async def slow_load() -> list[BindingRecord]:
                binding_records = await load()
                is_loaded.set()
                await resume.wait()
                return binding_records

            controller.records.create = create_and_lose_response  # type: ignore[method-assign]
            controller.records.load = slow_load  # type: ignore[method-assign]
            await cluster.apply(*claim_and_pod("first"))
            await asyncio.wait_for(is_loaded.wait(), 60)
            await cluster.apply(*claim_and_pod("second")[1:])
            await wait_scheduled(cluster, "pod-second")
            resume.set()
            await wait_scheduled(cluster, "pod-first")
            assert len(driver.ports) == 2
            await cluster.client.delete(PODS, "pod-second", "default", grace=0)
            await wait_for(cluster, "unbind", lambda: len(driver.ports) == 1)
            await cluster.client.delete(PODS, "pod-first", "default", grace=0)
            await wait_for(cluster, "unbind", lambda: not driver.ports)

            await wait_unrecorded(cluster)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_the_controller_works_with_a_server_of_one_api_version(version: str) -> None:
    server = ApiServer()
    server.injected_faults.served = {version}
    await server.start()
    config = server.config
    driver = FabricDriver()
    try:
        async with (
            KubeClient(config) as client,
            Controller(driver, settings(), config, SHORT_RETRIES).running() as controller,
        ):
            await controller.ready(60)
            claims = await client.dra("resourceclaims")
            assert claims.version == version
            exactly = {"deviceClassName": "fabric"}
            request = {"name": "r", **exactly} if version == "v1beta1" else {"name": "r", "exactly": exactly}
            claim = {"metadata": {"name": "c", "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}
            await client.create(claims, claim)
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
