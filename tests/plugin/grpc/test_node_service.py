"""Every claim of the kubelet's call gets a response, whatever happens in the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from dra_kubeletplugin._proto import dra_v1_pb2 as v1
from dra_kubeletplugin._proto import dra_v1beta1_pb2 as v1beta1
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims import ClaimIdentity, ClaimOutcome
from dra_kubeletplugin.claims.prepared_devices import PreparedResult
from dra_kubeletplugin.plugin.grpc.node_service import NodeService

VERSIONS = pytest.mark.parametrize("pb", [v1, v1beta1])


class FakeEngine:
    """Raises ``outcome``, or returns it."""

    def __init__(self, outcome: BaseException | Mapping[str, ClaimOutcome]) -> None:
        self.outcome = outcome

    async def prepare(self, refs: Sequence[ClaimIdentity]) -> Mapping[str, ClaimOutcome]:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    unprepare = prepare


def service(outcome: BaseException | Mapping[str, ClaimOutcome]) -> NodeService:
    return NodeService(cast(Any, FakeEngine(outcome)), Metrics())


def request(pb: Any, *uids: str) -> Any:
    return pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace="n", name=f"c-{u}", uid=u) for u in uids])


def device(**fields: Any) -> PreparedResult:
    values: dict[str, Any] = {"requests": ["r"], "pool": "p", "device": "d", "cdi_ids": ["v/c=d"], "share_id": None}
    return PreparedResult(**{**values, **fields})


FAULTS = [
    RuntimeError("broken"),
    SystemExit(0),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    StopAsyncIteration(),
    RuntimeError("\ud800 cannot be printed"),
    BaseExceptionGroup("many", [SystemExit(1), ValueError("x")]),
]


@VERSIONS
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: type(f).__name__)
async def test_after_an_exception_of_the_engine_every_claim_has_a_response(pb: Any, fault: BaseException) -> None:
    response = await service(fault).prepare(request(pb, "u1", "u2"), pb.NodePrepareResourcesResponse)
    assert {u: bool(c.error) for u, c in response.claims.items()} == {"u1": True, "u2": True}
    assert type(fault).__name__ in response.claims["u1"].error
    response = await service(fault).unprepare(request(pb, "u1"), pb.NodeUnprepareResourcesResponse)
    assert response.claims["u1"].error
    assert response.SerializeToString()


@VERSIONS
async def test_a_claim_that_a_call_names_twice_gets_its_devices_once(pb: Any) -> None:
    s = service({"u1": [device()]})
    response = await s.prepare(request(pb, "u1", "u1"), pb.NodePrepareResourcesResponse)
    assert [d.device_name for d in response.claims["u1"].devices] == ["d"]


@VERSIONS
async def test_a_claim_that_the_engine_omits_has_an_error(pb: Any) -> None:
    response = await service({"u1": [], "other": []}).prepare(request(pb, "u1", "u2"), pb.NodePrepareResourcesResponse)
    assert {u: bool(c.error) for u, c in response.claims.items()} == {"u1": False, "u2": True}


@VERSIONS
async def test_a_result_that_cannot_be_sent_fails_only_its_own_claim(pb: Any) -> None:
    results = {"u1": [device(), device(cdi_ids=["\ud800"])], "u2": [device()]}
    node = service(results)
    response = await node.prepare(request(pb, "u1", "u2"), pb.NodePrepareResourcesResponse)
    assert "cannot be sent" in response.claims["u1"].error
    assert not response.claims["u1"].devices
    assert [d.device_name for d in response.claims["u2"].devices] == ["d"]
    assert response.SerializeToString()
    assert [(call.claims, call.failed) for call in node.calls] == [(2, 1)], "the status page counts it as failed"


async def test_the_share_of_a_device_is_sent_if_the_version_has_the_field() -> None:
    results = {"u": [device(share_id="s")]}
    v1_response = await service(results).prepare(request(v1, "u"), v1.NodePrepareResourcesResponse)
    v1beta1_response = await service(results).prepare(request(v1beta1, "u"), v1beta1.NodePrepareResourcesResponse)
    assert isinstance(v1_response, v1.NodePrepareResourcesResponse)
    assert v1_response.claims["u"].devices[0].share_id == "s"
    assert v1beta1_response.claims["u"].devices[0].device_name == "d"


async def test_a_call_that_the_kubelet_cancelled_ends() -> None:
    class HangingEngine(FakeEngine):
        async def prepare(self, refs: Sequence[ClaimIdentity]) -> Mapping[str, ClaimOutcome]:
            await asyncio.Event().wait()
            raise AssertionError

    node = NodeService(cast(Any, HangingEngine({})), Metrics())
    call = asyncio.ensure_future(node.prepare(request(v1, "u"), v1.NodePrepareResourcesResponse))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [(done.claims, done.failed) for done in node.calls] == [(1, 1)]
