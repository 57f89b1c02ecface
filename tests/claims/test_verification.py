"""Reads and checks one claim: small and large claims, older API versions, and each fault of a device."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from dra_kubeletplugin import Device, Pool
from dra_kubeletplugin.claims import ClaimIdentity, verification
from dra_kubeletplugin.claims.verification import Verifier
from dra_kubeletplugin.errors import ApiUnavailableError, ClaimError, DeviceGoneError, DraError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.http1 import HttpResponse
from tests.claims.test_engine_steps import PlainDriver
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, check_success, running_manager
from tests.helpers.crash.record_stores import DRIVER

REF = ClaimIdentity("ns", "c", "u")


class Client:
    """Returns the same bytes for each GET, and records the maximum number of concurrent requests."""

    def __init__(self, body: bytes, version: str = "v1") -> None:
        self.body = body
        self.version = version
        self.timeouts: list[Any] = []

    async def dra(self, plural: str) -> Resource:
        return Resource("resource.k8s.io", self.version, plural, namespaced=True)

    async def raw(self, path: str, *, timeout: float) -> HttpResponse:
        self.timeouts.append(timeout)
        return HttpResponse(200, {}, self.body)


def verifier(client: Any) -> Verifier:
    unused = cast(Any, None)
    return Verifier(client, unused, unused, unused, DRIVER)


def body(size: int = 0) -> bytes:
    result = {"metadata": {"uid": "u", "name": "c", "annotations": {"x": ""}}}
    empty = len(json.dumps(result))
    result["metadata"]["annotations"] = {"x": "x" * max(0, size - empty)}
    return json.dumps(result).encode()


@pytest.mark.parametrize(("size", "threads"), [(0, 0), (64 * 1024, 0), (64 * 1024 + 1, 1)])
async def test_only_large_claims_are_decoded_in_a_thread(
    size: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads_used: list[int] = []
    real = verification.in_own_thread

    async def to_thread(*args: Any) -> Any:
        threads_used.append(1)
        return await real(*args)

    monkeypatch.setattr(verification, "in_own_thread", to_thread)
    client = Client(body(size))
    assert size == 0 or len(client.body) == size
    result = await verifier(client).fetch(REF)
    assert result is not None
    assert (result.fields.metadata.uid, len(threads_used), client.timeouts) == ("u", threads, [10.0])


async def test_at_most_two_large_claims_are_decoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running, max_running = 0, 0

    async def to_thread(*args: Any) -> Any:
        nonlocal running, max_running
        running += 1
        max_running = max(max_running, running)
        await asyncio.sleep(0.001)
        running -= 1
        return args[0](*args[1:])

    monkeypatch.setattr(verification, "in_own_thread", to_thread)
    reads = verifier(Client(body(70_000)))
    await asyncio.gather(*(reads.fetch(REF) for _ in range(6)))
    assert max_running == 2


async def test_a_claim_of_the_first_beta_is_converted_and_other_claims_are_unchanged() -> None:
    request = {"name": "r", "deviceClassName": "k"}
    old_claim = {"metadata": {"uid": "u"}, "spec": {"devices": {"requests": [request]}}}
    new_claim = {
        "metadata": {"uid": "u"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "k"}}]}},
    }
    result = await verifier(Client(json.dumps(old_claim).encode(), "v1beta1")).fetch(REF)
    assert result is not None
    converted = cast(dict[str, Any], result.object)
    assert converted["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "k"
    assert converted["apiVersion"] == "resource.k8s.io/v1"
    for version in ("v1beta2", "v1"):
        result = await verifier(Client(json.dumps(new_claim).encode(), version)).fetch(REF)
        assert result is not None
        assert not isinstance(result.object, dict)


@pytest.mark.parametrize("body", [b"[]", b"{", b"[" * 100_000, b'{"metadata": {}}'])
async def test_a_response_that_is_no_claim_is_an_error_of_the_server(body: bytes) -> None:
    with pytest.raises(ApiUnavailableError, match="is not a ResourceClaim"):
        await verifier(Client(body)).fetch(REF)


@pytest.mark.parametrize(("missing_name", "is_claim_missing"), [("c", True), ("other", False)])
async def test_only_a_missing_claim_is_not_found_and_not_a_missing_resource(
    missing_name: str, is_claim_missing: bool
) -> None:
    class NotFoundClient(Client):
        async def raw(self, path: str, *, timeout: float) -> HttpResponse:
            raise NotFoundError("not found", details={"details": {"name": missing_name}})

    reads = verifier(NotFoundClient(b""))
    if is_claim_missing:
        assert await reads.fetch(REF) is None
    else:
        with pytest.raises(ApiUnavailableError):
            await reads.fetch(REF)


def test_claims_with_large_parameters_that_hang_are_named() -> None:
    reads = verifier(Client(b""))
    assert reads.stuck() == ""
    reads._resolver.stuck = lambda: "the validation of Config hangs"  # type: ignore[method-assign]
    assert reads.stuck() == (
        "claims with large parameters cannot be prepared: the validation of Config hangs: restart the plugin's pod"
    )


async def test_a_fault_of_a_device_fails_a_new_claim_but_no_prepared_one(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        ref = api.allocate("a", "a", "d-0", DRIVER)
        first = await manager.prepare(ref)
        assert not isinstance(first, DraError)
        await manager.inventory.update([])
        assert await manager.prepare(ref) == first
        new = await manager.prepare(api.allocate("b", "b", "d-1", DRIVER))
        assert isinstance(new, DraError)


async def test_a_consumed_capacity_that_is_no_quantity_is_an_error_of_the_claim(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        ref = api.allocate("a", "a", "d-0", DRIVER, shareID="s", consumedCapacity={"m": "lots"})
        response = await manager.prepare(ref)
        assert isinstance(response, ClaimError)
        assert "claim ns/a, device d-0: consumed capacity: " in str(response)
        is_claim_missing = await manager.prepare(api.allocate("b", "b", "d-99", DRIVER))
        assert isinstance(is_claim_missing, DeviceGoneError)
        assert "claim ns/b: device d-99 is no longer on this node" in str(is_claim_missing)


# --- allocations that no scheduler makes ------------------------------------------------------------------


async def refusal(manager: RunningManager, ref: ClaimIdentity) -> DraError:
    response = await manager.prepare(ref)
    assert isinstance(response, DraError), response
    return response


async def test_a_share_of_a_device_that_is_not_shareable_is_refused(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        for name in ("a", "b"):
            error = await refusal(manager, api.allocate(name, name, "d-0", DRIVER, shareID=f"share-{name}"))
            assert error.reason == "CLAIM"
            assert f"share share-{name} of device d-0 in pool node, but the device does not allow multiple" in str(
                error
            )
        assert await manager.records() == {}
        await manager.inventory.update([Pool("node", [Device("d-0", allow_multiple_allocations=True)])])
        for name in ("a", "b"):
            await check_success(manager.prepare(api.allocate(name, name, "d-0", DRIVER, shareID=f"share-{name}")))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({}, {"request": "s"}),
        ({"shareID": "x"}, {"shareID": "x", "request": "s"}),
        ({"adminAccess": True}, {"adminAccess": True}),
    ],
)
async def test_a_device_twice_in_an_allocation_is_a_fault_of_the_allocation(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await manager.inventory.update([Pool("node", [Device("d-0", allow_multiple_allocations=True)])])
        ref = api.allocate("a", "a", "d-0", DRIVER, **first)
        results = api.claims["a"]["status"]["allocation"]["devices"]["results"]
        results.append({**results[0], **second})
        error = await refusal(manager, ref)
        assert error.reason == "CLAIM"
        requests = "r and s" if "request" in second else "r"
        assert f"allocation has device d-0 of pool node twice, for request {requests}: the scheduler" in str(error)
        assert await manager.records() == {}


async def test_admin_access_to_a_device_of_the_same_claim_is_allowed(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        ref = api.allocate("a", "a", "d-0", DRIVER)
        results = api.claims["a"]["status"]["allocation"]["devices"]["results"]
        results.append({**results[0], "request": "admin", "adminAccess": True})
        await check_success(manager.prepare(ref))
