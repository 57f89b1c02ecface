"""Reports of device status while another write is in progress."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import DeviceStatus
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims.device_status import ClaimIdentity, DeviceStatusReporter
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.errors import InvalidError
from dra_kubeletplugin.kube.http1 import HttpResponse


async def test_a_report_during_the_refusal_of_an_earlier_report_is_written() -> None:
    reports = DeviceStatusReporter(None, "d", "m", Metrics())  # type: ignore[arg-type]
    refused, sent = asyncio.Event(), []

    async def write(_: ClaimIdentity, statuses: dict[Any, DeviceStatus], *__: Any) -> bool:
        sent.append(dict(statuses))
        if len(sent) == 1:
            await refused.wait()
            raise InvalidError("no such thing")
        return True

    reports.write = write  # type: ignore[method-assign, assignment]
    running = asyncio.create_task(reports.run())
    try:
        async with asyncio.timeout(30):
            claim, device = ClaimIdentity("ns", "c", "u"), ("p", "d", "")
            refused_status, accepted_status = DeviceStatus(data={"x": 1}), DeviceStatus(data={"x": 2})
            await asyncio.sleep(0)  # the task starts
            first = reports.queue(claim, {device: refused_status})
            while not sent:
                await asyncio.sleep(0.01)
            second = reports.queue(claim, {device: accepted_status})
            await asyncio.sleep(0)
            refused.set()
            assert not await first
            assert await second
        assert sent == [{device: refused_status}, {device: accepted_status}]
    finally:
        running.cancel()


ENTRY = {"driver": "d", "pool": "p", "device": "a"}
OWNED = {'k:{"device":"a","driver":"d","pool":"p"}': {".": {}, "f:data": {}, "f:conditions": {'k:{"type":"A"}': {}}}}
CLAIM: dict[str, Any] = {
    "metadata": {
        "name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "1",
        "managedFields": [{
            "manager": "m", "operation": "Apply", "subresource": "status", "fieldsV1": {"f:status": {"f:devices": OWNED}},
        }],
    },
    "status": {
        "allocation": {"devices": {"results": [{"request": "r", **ENTRY}]}},
        "devices": [{**ENTRY, "data": {"x": 1}, "conditions": [{"type": "A", "status": "True"}]}],
    },
}  # fmt: skip


def positions(container: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every container with each of its keys."""
    for key in (
        container if isinstance(container, dict) else range(len(container)) if isinstance(container, list) else ()
    ):
        yield container, key
        yield from positions(container[key])


@given(st.data())
def test_a_malformed_claim_from_the_server_is_an_api_error_and_no_exception(data: st.DataObject) -> None:
    claim = copy.deepcopy(CLAIM)
    for _ in range(data.draw(st.integers(1, 2))):
        if all_positions := list(positions(claim)):
            container, key = data.draw(st.sampled_from(all_positions))
            value = data.draw(
                st.sampled_from((None, 5, "", "k:{", [], {}, [None], {"k:{": {}}, {'k:{"type":[]}': 5}, ...))
            )
            if value is not ...:
                container[key] = copy.deepcopy(value)
            else:
                del container[key]

    class Client:
        async def dra(self, plural: str) -> Resource:
            return Resource("resource.k8s.io", "v1", plural, True)

        async def raw(self, path: str, query: Any = None, *, body: Any = None, **options: Any) -> HttpResponse:
            obj = {"metadata": {"uid": "u"}, "status": body["status"]} if body else claim
            return HttpResponse(200, {}, json.dumps(obj).encode())

    async def report() -> None:
        reports = DeviceStatusReporter(Client(), "d", "m", Metrics())  # type: ignore[arg-type]
        with contextlib.suppress(ApiError):
            await reports.write(ClaimIdentity("ns", "c", "u"), {("p", "a", ""): DeviceStatus(data={"x": 2})})

    asyncio.run(report())
