"""Reads and checks one claim: small and large claims, older API versions, and each fault of a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from dra_kubeletplugin import Device, Pool
from dra_kubeletplugin.claims import ClaimIdentity
from dra_kubeletplugin.claims.verification import Verifier
from dra_kubeletplugin.driver.encoded_claim import EncodedClaim
from dra_kubeletplugin.errors import ApiUnavailableError, ClaimError, DeviceGoneError, DraError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.http1 import HttpResponse
from tests.helpers.crash.claim_drivers import PlainDriver
from tests.helpers.crash.claim_manager import FakeApiServer, check_success, running_manager
from tests.helpers.crash.record_stores import DRIVER

REF = ClaimIdentity("ns", "c", "u")


class Client:
    """Returns the same bytes for each GET."""

    def __init__(self, body: bytes, error: Exception | None = None) -> None:
        self.body = body
        self.error = error

    async def dra(self, plural: str) -> Resource:
        return Resource("resource.k8s.io", "v1", plural, namespaced=True)

    async def raw(self, method: str, path: str, *, timeout: float) -> HttpResponse:
        if self.error:
            raise self.error
        return HttpResponse(200, {}, self.body)


def verifier(*args: Any) -> Verifier:
    client, unused = cast(Any, Client(*args)), cast(Any, None)
    return Verifier(client, unused, unused, unused, DRIVER)


async def test_a_claim_of_the_first_beta_is_converted_when_it_is_read() -> None:
    requests = {
        "v1beta1": {"name": "r", "deviceClassName": "k"},
        "v1": {"name": "r", "exactly": {"deviceClassName": "k"}},
    }
    for version, request in requests.items():
        body = json.dumps({"metadata": {"uid": "u"}, "spec": {"devices": {"requests": [request]}}}).encode()
        decoded = EncodedClaim(body, version).decoded()
        assert decoded["spec"]["devices"]["requests"] == [requests["v1"]]
        assert decoded["apiVersion"] == "resource.k8s.io/v1"


@pytest.mark.parametrize("body", [b"[]", b"{", b"[" * 100_000, b'{"metadata": {}}'])  # the third is decoded in a thread
async def test_a_response_that_is_no_claim_is_an_error_of_the_server(body: bytes) -> None:
    with pytest.raises(ApiUnavailableError, match="is not a ResourceClaim"):
        await verifier(body).fetch(REF)


async def test_only_a_missing_claim_is_not_found_and_not_a_missing_resource() -> None:
    for name in ("c", "other"):
        reads = verifier(b"", NotFoundError("not found", details={"details": {"name": name}}))
        if name == "c":
            assert await reads.fetch(REF) is None
        else:
            with pytest.raises(ApiUnavailableError):
                await reads.fetch(REF)


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
        response = await manager.prepare(api.allocate("b", "b", "d-99", DRIVER))
        assert isinstance(response, DeviceGoneError)
        assert "claim ns/b: device d-99 is no longer on this node" in str(response)


async def test_a_share_of_a_device_that_is_not_shareable_is_refused(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        for name in ("a", "b"):
            error = await manager.prepare(api.allocate(name, name, "d-0", DRIVER, shareID=f"share-{name}"))
            assert isinstance(error, ClaimError)
            assert f"share share-{name} of device d-0 in pool node, but the device does not allow multiple" in str(
                error
            )
        assert await manager.records() == {}
        await manager.inventory.update([Pool("node", [Device("d-0", allow_multiple_allocations=True)])])
        for name in ("a", "b"):
            await check_success(manager.prepare(api.allocate(name, name, "d-0", DRIVER, shareID=f"share-{name}")))
