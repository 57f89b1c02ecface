"""The API server hangs, returns malformed claims or fails, an undo hangs, or a disk is full: each claim gets a correct
response in bounded time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import PreparedClaim
from dra_kubeletplugin.claims import ClaimIdentity
from dra_kubeletplugin.errors import DraError
from dra_kubeletplugin.kube import ApiConfig, KubeClient
from tests.helpers.crash.claim_drivers import RecordingDriver
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.raw_server import RawServer, http_response
from tests.helpers.waiting import wait_until


class FaultyDriver(RecordingDriver):
    """``stuck`` contains the UIDs whose unprepare waits until ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck: set[str] = set()
        self.unprepare_hangs = asyncio.Event()  # the unprepare of a stuck claim has begun
        self.go = asyncio.Event()

    async def unprepare(self, claim: PreparedClaim) -> None:
        if claim.uid in self.stuck:
            self.unprepare_hangs.set()
            await self.go.wait()
        await super().unprepare(claim)


# --- an API server without responses ----------------------------------------------------------------


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Accepts connections, reads, and never responds."""

    async def read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(65536):
                pass
        writer.close()

    server = await asyncio.start_server(read_all, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize("calls", [1, 32])
async def test_prepared_claims_get_a_response_within_the_call_timeout_while_the_api_server_hangs(
    tmp_path: Path, calls: int
) -> None:
    api = FakeApiServer()
    refs = [api.allocate(f"c{i}", f"c{i}", f"d-{i}", DRIVER) for i in range(32)]
    async with running_manager(tmp_path, FaultyDriver(), api) as first_manager:
        expected = await first_manager.claims.prepare(refs)
    async with silent_server() as url:
        client = KubeClient(ApiConfig(url), 600)  # longer than the test timeout
        async with running_manager(tmp_path, FaultyDriver(), client, call_timeout=600) as manager:  # type: ignore[arg-type]
            groups = [refs] if calls == 1 else [[r] for r in refs]
            for _ in range(2):
                responses = await asyncio.gather(*(manager.claims.prepare(g) for g in groups))
                assert {uid: a for responses_of_call in responses for uid, a in responses_of_call.items()} == expected
            assert set((await manager.claims.unprepare(refs[:4])).values()) == {()}
        await client.close()


MALFORMED_RESPONSES: dict[str, Any] = {
    "an empty object": {},
    "a list": [],
    "a text": "claim",
    "no UID": {"metadata": {"name": "c"}},
    "metadata that is a number": {"metadata": 5},
    "a status that is a text": {"metadata": {"uid": "u"}, "status": "x"},
    "results of numbers": {"metadata": {"uid": "u"}, "status": {"allocation": {"devices": {"results": [1]}}}},
    "a result without a pool": {
        "metadata": {"uid": "u"},
        "status": {"allocation": {"devices": {"results": [{"driver": DRIVER, "device": "d-0", "request": "r"}]}}},
    },
    "not JSON": b"<html>502</html>",
}


@pytest.mark.parametrize("body", MALFORMED_RESPONSES.values(), ids=MALFORMED_RESPONSES)
async def test_a_malformed_claim_fails_new_claims_and_changes_no_prepared_claim(tmp_path: Path, body: Any) -> None:
    api = FakeApiServer()
    prepared_ref = api.allocate("c", "u", "d-0", DRIVER)
    async with running_manager(tmp_path, FaultyDriver(), api) as first_manager:
        expected = await first_manager.prepare(prepared_ref)
    versions = {"groups": [{"name": "resource.k8s.io", "versions": [{"groupVersion": "resource.k8s.io/v1"}]}]}
    resources = {
        "resources": [{"name": "resourceclaims", "kind": "ResourceClaim", "namespaced": True, "verbs": ["get"]}]
    }

    async def reply(server: RawServer, request: bytes) -> bytes:
        path = request.split(b" ")[1]
        if b"/resourceclaims/" in path:
            return http_response(body)
        if path.rstrip(b"/").endswith(b"/v1"):
            return http_response(resources)
        return http_response({**versions, "versions": [{"groupVersion": "resource.k8s.io/v1", "version": "v1"}]})

    async with RawServer(reply) as server:
        client = KubeClient(ApiConfig(server.url), 5)
        async with running_manager(tmp_path, FaultyDriver(), client) as manager:  # type: ignore[arg-type]
            await manager.claims.reconciler.once()
            await manager.claims.reconciler.once()
            assert manager.driver.unprepared == []  # type: ignore[attr-defined]
            assert await manager.prepare(prepared_ref) == expected
            assert isinstance(await manager.prepare(ClaimIdentity("ns", "new", "new")), DraError)
            assert await manager.records() == {"u": "Prepared"}
        await client.close()


# --- an undo that hangs -----------------------------------------------------------------------------


async def test_one_hanging_undo_does_not_stop_reconciling_and_its_file_is_not_written_again(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), FaultyDriver()
    refs = {n: api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate(("stuck", "other", "third"))}
    async with running_manager(tmp_path, driver, api, call_timeout=0.2) as manager:
        for ref in refs.values():
            await wait_until(lambda ref=ref: is_prepared(manager, ref))  # type: ignore[misc]
        driver.stuck.add("stuck")
        for name in ("stuck", "other"):
            del api.claims[name]
        await wait_until(lambda: is_unprepared(manager, "other"))
        await driver.unprepare_hangs.wait()
        last = await manager.claims.reconciler.once()
        assert "other" in driver.unprepared
        assert await manager.records() == {"stuck": "Unpreparing", "third": "Prepared"}
        files = manager.claims.files.specs
        assert not files.path("stuck").exists()
        files.remove("third")
        await wait_until(lambda: is_restored(manager, "third"))
        assert not files.path("stuck").exists()
        del api.claims["third"]
        await wait_until(lambda: is_unprepared(manager, "third"))
        assert last.unprepared == []
        driver.go.set()
        await wait_until(lambda: is_unprepared(manager, "stuck"))
        assert files.uids() == []


async def is_prepared(manager: Any, ref: ClaimIdentity) -> bool:
    return not isinstance(await manager.prepare(ref), DraError)


async def is_unprepared(manager: Any, uid: str) -> bool:
    await manager.claims.reconciler.once()
    return uid not in await manager.records()


async def is_restored(manager: Any, uid: str) -> bool:
    await manager.claims.reconciler.once()
    return bool(manager.claims.files.specs.path(uid).exists())
