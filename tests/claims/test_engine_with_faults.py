"""Around the claims things hang, lie or fill up: each claim is answered in bounded time, and nobody is told what is not so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import ClaimIdentity
from dra_kubeletplugin.claims.transitions import RollBack
from dra_kubeletplugin.errors import DraError
from dra_kubeletplugin.kube import ApiConfig, KubeClient
from dra_kubeletplugin.testing import node_with
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.harness import DRIVER as CRASH
from tests.helpers.crash.harness import node_harness
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.drivers import make_toy_class
from tests.helpers.raw_server import RawServer, http_response
from tests.helpers.waiting import wait_until
from tests.plugin.test_node import allocate, prepare_call, ref


class Plain(Driver):
    """``stuck`` holds the UIDs whose unprepare waits until ``go``."""

    name = DRIVER

    def __init__(self) -> None:
        self.stuck: set[str] = set()
        self.hangs = asyncio.Event()  # the unprepare of one of them has begun
        self.go = asyncio.Event()
        self.unprepared: list[str] = []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        if claim.uid in self.stuck:
            self.hangs.set()
            await self.go.wait()
        self.unprepared.append(claim.uid)


# --- an API server that says nothing ----------------------------------------------------------------


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Accepts, reads, and never answers."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(65536):
                pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize("calls", [1, 32])
async def test_prepared_claims_are_answered_long_before_a_call_is_over_while_the_api_server_swallows_everything(
    tmp_path: Path, calls: int
) -> None:
    api = FakeApiServer()
    refs = [api.allocate(f"c{i}", f"c{i}", f"d-{i}", DRIVER) for i in range(32)]
    async with running_manager(tmp_path, Plain(), api) as before:
        right = await before.claims.prepare(refs)
    async with silent_server() as url:
        client = KubeClient(ApiConfig(url), 600)  # longer than the whole test may take
        async with running_manager(tmp_path, Plain(), client, call_timeout=600) as one:  # type: ignore[arg-type]
            groups = [refs] if calls == 1 else [[r] for r in refs]
            for _ in range(2):
                answers = await asyncio.gather(*(one.claims.prepare(g) for g in groups))
                assert {uid: a for found in answers for uid, a in found.items()} == right
            assert set((await one.claims.unprepare(refs[:4])).values()) == {()}
        await client.close()


ODD_ANSWERS: dict[str, Any] = {
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


@pytest.mark.parametrize("odd", ODD_ANSWERS.values(), ids=ODD_ANSWERS)
async def test_an_answer_that_is_no_claim_fails_new_claims_repeats_from_the_record_and_unprepares_nothing(
    tmp_path: Path, odd: Any
) -> None:
    api = FakeApiServer()
    known = api.allocate("c", "u", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as before:
        right = await before.prepare(known)
    versions = {"groups": [{"name": "resource.k8s.io", "versions": [{"groupVersion": "resource.k8s.io/v1"}]}]}
    resources = {
        "resources": [{"name": "resourceclaims", "kind": "ResourceClaim", "namespaced": True, "verbs": ["get"]}]
    }

    async def reply(peer: RawServer, request: bytes) -> bytes:
        path = request.split(b" ")[1]
        if b"/resourceclaims/" in path:
            return http_response(odd)
        if path.rstrip(b"/").endswith(b"/v1"):
            return http_response(resources)
        return http_response({**versions, "versions": [{"groupVersion": "resource.k8s.io/v1", "version": "v1"}]})

    async with RawServer(reply) as peer:
        client = KubeClient(ApiConfig(peer.url), 5)
        async with running_manager(tmp_path, Plain(), client) as one:  # type: ignore[arg-type]
            await one.claims.reconciler.once()
            await one.claims.reconciler.once()
            assert one.driver.unprepared == []  # type: ignore[attr-defined]
            assert await one.prepare(known) == right
            assert isinstance(await one.prepare(ClaimIdentity("ns", "new", "new")), DraError)
            assert await one.records() == {"u": "Prepared"}
        await client.close()


# --- undo that hangs --------------------------------------------------------------------------------


async def test_one_hanging_undo_does_not_stop_reconciling_and_its_file_is_not_written_again(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), Plain()
    refs = {n: api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate(("stuck", "other", "third"))}
    async with running_manager(tmp_path, driver, api, call_timeout=0.2) as one:
        for ref in refs.values():
            await wait_until(lambda ref=ref: _prepared(one, ref))  # type: ignore[misc]
        driver.stuck.add("stuck")
        for name in ("stuck", "other"):
            del api.claims[name]
        await wait_until(lambda: _gone(one, "other"))
        await driver.hangs.wait()
        last = await one.claims.reconciler.once()
        assert "other" in driver.unprepared
        assert await one.records() == {"stuck": "Unpreparing", "third": "Prepared"}
        files = one.claims.files.specs
        assert not files.exists("stuck")
        files.remove("third")
        await wait_until(lambda: _restored(one, "third"))
        assert not files.exists("stuck")
        del api.claims["third"]
        await wait_until(lambda: _gone(one, "third"))
        assert last.unprepared == []
        driver.go.set()
        await wait_until(lambda: _gone(one, "stuck"))
        assert files.uids() == []


async def _prepared(one: Any, ref: ClaimIdentity) -> bool:
    return not isinstance(await one.prepare(ref), DraError)


async def _gone(one: Any, uid: str) -> bool:
    await one.claims.reconciler.once()
    return uid not in await one.records()


async def _restored(one: Any, uid: str) -> bool:
    await one.claims.reconciler.once()
    return bool(one.claims.files.specs.exists(uid))


async def test_the_kubelet_s_unprepare_never_joins_what_reconciling_found_not_to_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, driver = FakeApiServer(), Plain()
    known = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as one:
        await one.prepare(known)
        entered, go = asyncio.Event(), asyncio.Event()
        ask = one.claims.store.do

        async def slow(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.undo()
            entered.set()
            await go.wait()
            return await ask(*args, **kwargs)

        monkeypatch.setattr(one.claims.store, "do", slow)
        nothing = asyncio.create_task(one.claims.engine.rollback.tidy("a"))  # a prepared claim: it has nothing to do
        await entered.wait()
        call = asyncio.create_task(one.unprepare(known))
        await asyncio.sleep(0)
        go.set()
        assert await nothing is False
        assert await call == ()
        assert driver.unprepared == ["a"]
        assert await one.records() == {}


@pytest.mark.parametrize("status", [{}, {"allocation": None}, "another device"])
async def test_a_claim_that_lost_its_allocation_and_was_not_deleted_is_reclaimed_after_the_grace(
    tmp_path: Path, status: Any
) -> None:
    api, driver = FakeApiServer(), Plain()
    known = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api, reconcile_grace_period=0.3) as one:
        await one.prepare(known)
        if status == "another device":
            api.allocate("a", "a", "d-1", DRIVER)
        else:
            api.claims["a"]["status"] = status
        assert (await one.claims.reconciler.once()).waiting == ["a"]
        assert await one.records() == {"a": "Prepared"}
        await wait_until(lambda: _gone(one, "a"))
        assert driver.unprepared == ["a"]
        assert one.claims.files.specs.uids() == []


async def test_a_claim_with_another_device_of_this_node_that_a_pod_has_is_left_to_the_kubelet(tmp_path: Path) -> None:
    """A kubelet that knows the claim as prepared has started that pod with the first device."""
    api, driver = FakeApiServer(), Plain()
    known = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as one:
        await one.prepare(known)
        api.allocate("a", "a", "d-1", DRIVER)
        api.claims["a"]["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "p"}]
        for _ in range(3):
            assert (await one.claims.reconciler.once()).waiting == ["a"]
        assert driver.unprepared == []
        elsewhere = api.claims["a"]["status"]["allocation"]["devices"]["results"][0]
        elsewhere["pool"] = "another node"
        for _ in range(2):
            await one.claims.reconciler.once()
        assert driver.unprepared == ["a"]


@pytest.mark.parametrize("status", ["Unknown", "False", 7, None])
async def test_while_the_kubelet_is_away_nothing_is_taken_from_what_it_started(tmp_path: Path, status: Any) -> None:
    """Its containers run on, and it unprepares them when it is back: only if it does not, reconciling does."""
    api, driver = FakeApiServer(), Plain()
    async with running_manager(tmp_path, driver, api, reconcile_grace_period=0.2) as one:
        await one.prepare(api.allocate("a", "a", "d-0", DRIVER))
        api.claims.clear()
        api.ready = status

        async def asked_twice() -> bool:
            await one.claims.reconciler.once()
            return api.nodes_read == 2

        await wait_until(asked_twice)
        assert await one.records() == {"a": "Prepared"}
        api.ready = "True"
        assert (await one.claims.reconciler.once()).waiting == ["a"]  # its grace begins anew
        await wait_until(lambda: _gone(one, "a"))
        assert driver.unprepared == ["a"]


async def test_a_fault_of_ours_with_one_claim_does_not_stop_reconciling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, driver = FakeApiServer(), Plain()
    refs = [api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate(("bad", "good"))]
    async with running_manager(tmp_path, driver, api) as one:
        await one.claims.prepare(refs)
        api.claims.clear()
        undo = one.claims.engine.rollback.undo

        async def fails(marked: RollBack) -> None:
            if marked.record.uid == "bad":
                raise AttributeError("a fault of ours")
            await undo(marked)

        monkeypatch.setattr(one.claims.engine.rollback, "undo", fails)
        await one.claims.reconciler.once()
        report = await one.claims.reconciler.once()
        assert "good" in driver.unprepared
        assert report.failed == ["bad"]


# --- what is reported was measured ------------------------------------------------------------------


async def test_prepared_claims_are_counted_when_they_are_requested() -> None:
    async with node_with(make_toy_class(), http_address="127.0.0.1:0") as node:

        async def counted() -> str:
            return (await asyncio.to_thread(_get, node.plugin.http_url + "/metrics")).partition(
                "\ndra_prepared_claims "
            )[2]

        assert (await counted()).startswith("0.0")
        found = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        await prepare_call(node, ref(found))
        assert (await counted()).startswith("1.0")


def _get(url: str) -> str:
    import urllib.request

    with urllib.request.urlopen(url, timeout=30) as response:
        return str(response.read().decode())


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "plugins"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.mounts
async def test_readiness_after_a_full_disk_heals_by_itself_without_a_claim(tmp_path: Path, small: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Plain(), api) as one:
        filler = small / "filler"
        with filler.open("wb", buffering=0) as f, contextlib.suppress(OSError):
            while True:
                f.write(b"x" * 4096)
        faults: list[str] = []
        for i in range(40):
            await one.prepare(api.allocate(f"c{i}", f"c{i}", f"d-{i}", DRIVER))
            if faults := await one.claims.faults():
                break
        assert "the disk is full" in faults[0]
        assert "the disk is full" in (await one.claims.faults())[0]
        filler.unlink()
        assert await one.claims.faults() == []


# --- two instances ----------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.crash
async def test_while_one_of_two_instances_is_stopped_the_other_serves_everything_that_is_not_in_its_hands(
    tmp_path: Path,
) -> None:
    old, new = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
    async with node_harness(tmp_path) as b:
        first = await b.start("old", POD_UID=old)
        await b.apply_pod("before")
        await b.cluster.wait_running("before")
        await b.start("new", POD_UID=new)
        first.send_signal(signal.SIGSTOP)
        await b.apply_pod("during")
        await b.cluster.wait_running("during")
        await b.cluster.delete_pod("before")  # which the stopped one has prepared
        folder = b.node.kubelet_root / "plugins" / CRASH / "processes"
        assert len(list(folder.iterdir())) == 2  # a stopped process lives
        first.send_signal(signal.SIGCONT)
        await b.cluster.delete_pod("during")
        await b.until("everything to be free", b.is_empty)
        b.check_quiet()
        assert await b.kill("old", signal.SIGTERM) == 0
        await b.apply_pod("after")
        await b.cluster.wait_running("after")
        b.check_quiet()
