"""Reconcile passes: what a pass changes, which claims it unprepares and when, and how one claim's fault affects the others."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import PreparedClaim
from dra_kubeletplugin.claims import ClaimIdentity, Record, State
from dra_kubeletplugin.claims.inflight import Work
from dra_kubeletplugin.claims.reconcile import ReconcileReport
from dra_kubeletplugin.errors import DraError, DriverError, RecordsError
from dra_kubeletplugin.kube.errors import NotFoundError, api_error
from dra_kubeletplugin.kube.resource import CLAIMS
from tests.helpers.crash.claim_drivers import RecordingDriver
from tests.helpers.crash.claim_manager import Clock, FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.file_faults import failing_calls
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.drivers import make_toy_class
from tests.helpers.node_steps import allocate, prepare_call, ref
from tests.helpers.waiting import wait_until

GRACE = 100.0


async def prepare(manager: RunningManager, api: FakeApiServer, names: str = "a") -> None:
    for i, name in enumerate(names):
        response = await manager.prepare(api.allocate(name, name, f"d-{i}", DRIVER))
        assert not isinstance(response, DraError), response


def deallocate(api: FakeApiServer, name: str) -> None:
    api.claims[name] = {**api.claims[name], "status": {}}


async def once(manager: RunningManager) -> ReconcileReport:
    return await manager.claims.reconciler.once()


# --- files, and the report ------------------------------------------------------------------------------


async def test_a_pass_restores_files_and_counts_its_actions(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, RecordingDriver(), api) as manager:
        await prepare(manager, api, "ab")
        assert str(await once(manager)) == "nothing to do"
        manager.claims.files.specs.remove("a")
        deallocate(api, "b")
        report = await once(manager)
        assert (report.files_restored, report.unprepared) == (["a"], ["b"])
        assert str(report) == "files restored: 1, unprepared: 1"
        counts = dict(t.split() for t in manager.metrics.text().decode().splitlines() if "reconcile_actions" in t[:24])
        assert counts['dra_reconcile_actions_total{action="files_restored"}'] == "1.0"
        assert counts['dra_reconcile_actions_total{action="failed"}'] == "0.0"


async def test_a_file_without_a_record_is_removed_only_while_no_recovery_is_due(tmp_path: Path) -> None:
    async with running_manager(tmp_path, RecordingDriver()) as manager:
        specs = manager.claims.files.specs
        uid = "3f2c9a52-6f55-4a35-9d0e-1c5d3c9fbe01"
        specs.write(uid, {"kind": "k"})
        await manager.claims.store.do(lambda records: records.set_meta("recover", "pending"))
        assert await once(manager) == ReconcileReport()
        await manager.claims.store.do(lambda records: records.clear_meta("recover"))
        (specs.path(uid).parent / f".{specs.path(uid).name}.tmp-1-00000000").touch()  # of a dead writer
        assert (await once(manager)).files_removed == [uid]
        assert [p for p in manager.settings.cdi_root.iterdir() if ".tmp-" in p.name] == []


async def test_the_loop_logs_a_failed_pass_with_the_folder_that_cannot_be_read_and_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_manager(tmp_path, RecordingDriver(), reconcile_interval=0.001) as manager:
        cdi = manager.settings.cdi_root
        cdi.mkdir()
        with failing_calls(errno.EIO, "listdir", "scandir", text=f"'{cdi}'", when=lambda number: number == 1) as calls:
            async with manager.background("reconciler"):
                await wait_until(lambda: len(calls) > 2)
        lines = [r.getMessage() for r in caplog.records if "reconcile failed" in r.msg]
        error = RecordsError(f"{cdi} cannot be read (Input/output error): see its mount")
        assert lines == [f"reconcile failed; the next pass is in 0.001 s: {error}"]


async def test_each_claim_of_a_pass_is_listed_under_its_result_and_a_claim_in_work_under_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class SlowDriver(RecordingDriver):
        async def unprepare(self, claim: PreparedClaim) -> None:
            await super().unprepare(claim)
            if claim.uid == "b" and self.unprepared.count("b") == 2:
                await asyncio.Event().wait()
            raise DriverError("the card does not answer")

    api = FakeApiServer()
    async with running_manager(tmp_path, SlowDriver(), api, call_timeout=1) as manager:
        await prepare(manager, api, "abcde")
        for uid in "bd":
            await manager.unprepare(ClaimIdentity("ns", uid, uid))
        for uid in "ace":
            manager.claims.files.specs.remove(uid)
        work = asyncio.Event()
        manager.claims.tasks.start("e", Work.TIDY, work.wait)
        caplog.clear()
        with failing_calls(errno.ENOSPC, "open", text="claim_a.json"):
            report = await manager.claims.reconciler.once(ask_server=False)
        work.set()
        assert (report.failed, report.still_working, report.files_restored) == (["d", "a"], ["b"], ["c"])
        (line,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert line.startswith("cannot reconcile claim: ") and "claim_a.json cannot be written" in line


async def test_a_restart_of_the_kubelet_restarts_the_grace_period() -> None:
    async with node_with(make_toy_class(), reconcile_grace_period=0.01) as node:
        claims = node.plugin.claims
        claim = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        await prepare_call(node, ref(claim))
        await node.cluster.client.delete(CLAIMS, "c", "default")
        assert (await claims.reconciler.once()).waiting == [claim["metadata"]["uid"]]
        record = await claims.store.get(claim["metadata"]["uid"])
        assert isinstance(record, Record)
        assert claims.pods.is_unused(record)
        await node.kubelet.restart()
        await wait_until(lambda: not claims.pods.is_unused(record))


# --- claims that may have ended --------------------------------------------------------------------------


async def prepare_again(manager: RunningManager, api: FakeApiServer) -> None:
    await manager.unprepare(api.allocate("a", "a", "d-0", DRIVER))
    await prepare(manager, api)
    deallocate(api, "a")


async def register_kubelet(manager: RunningManager, api: FakeApiServer) -> None:
    manager.claims.kubelet_registered()


async def lose_kubelet(manager: RunningManager, api: FakeApiServer) -> None:
    api.ready = "Unknown"


@pytest.mark.parametrize("interruption", [prepare_again, register_kubelet, lose_kubelet])
async def test_the_grace_period_begins_again_after_a_prepare_or_while_the_kubelet_was_away(
    tmp_path: Path, interruption: Callable[[RunningManager, FakeApiServer], Awaitable[None]]
) -> None:
    """A claim may be prepared again between two passes. A kubelet that starts first ends the containers that it missed."""
    api, driver, clock = FakeApiServer(), RecordingDriver(), Clock()
    async with running_manager(tmp_path, driver, api, reconcile_grace_period=GRACE, clock=clock) as manager:
        await prepare(manager, api)
        deallocate(api, "a")
        assert (await once(manager)).waiting == ["a"]
        await interruption(manager, api)
        driver.unprepared.clear()
        clock.now += GRACE + 1
        assert (await once(manager)).waiting == ["a"]
        api.ready = "True"
        if interruption is lose_kubelet:
            assert (await once(manager)).waiting == ["a"]
        clock.now += GRACE - 1
        assert (await once(manager)).waiting == ["a"]
        assert driver.unprepared == []
        clock.now += 1
        assert (await once(manager)).unprepared == ["a"]
        assert driver.unprepared == ["a"]


async def allocate_again(manager: RunningManager, api: FakeApiServer) -> None:
    await prepare(manager, api)


async def lose_server(manager: RunningManager, api: FakeApiServer) -> None:
    api.claims["a"] = {"metadata": "of another kind"}


class InterruptedApiServer(FakeApiServer):
    """Calls ``before`` when the node is read."""

    before: Callable[[], Awaitable[object]] | None = None

    async def get(self, resource: Any, *args: Any, **options: Any) -> Any:
        if self.before and resource.plural == "nodes":
            await self.before()
        return await super().get(resource, *args, **options)


@pytest.mark.parametrize("change", [allocate_again, lose_server, register_kubelet])
async def test_a_change_during_a_pass_keeps_the_devices(
    tmp_path: Path, change: Callable[[RunningManager, FakeApiServer], Awaitable[None]]
) -> None:
    """A pass reads all other claims and the node between the read of this claim and its unprepare."""
    api, driver = InterruptedApiServer(), RecordingDriver()
    async with running_manager(tmp_path, driver, api) as manager:
        await prepare(manager, api)
        deallocate(api, "a")
        api.before = lambda: change(manager, api)
        assert (await once(manager)).unprepared == driver.unprepared == []
        assert await manager.records() == {"a": "Prepared"}
        assert manager.claims.files.specs.path("a").exists()


async def test_a_claim_that_another_instance_prepares_after_the_last_read_keeps_its_devices(tmp_path: Path) -> None:
    class LateApiServer(FakeApiServer):
        reads: list[Any] | None = None

        async def raw(self, *args: Any, **options: Any) -> Any:
            found = await super().raw(*args, **options)
            if self.reads is not None:
                self.reads.append(found)
                if len(self.reads) == 2:  # the last read, in which the claim has no devices yet
                    await prepare(new_manager, self)
            return found

    api, driver = LateApiServer(), RecordingDriver()
    async with (
        running_manager(tmp_path, driver, api) as old_manager,
        running_manager(tmp_path, RecordingDriver(), api) as new_manager,
    ):
        await prepare(old_manager, api)
        deallocate(api, "a")
        api.reads = []
        assert (await once(old_manager)).unprepared == driver.unprepared == []
        assert await old_manager.records() == {"a": "Prepared"}
        assert old_manager.claims.files.specs.path("a").exists()


@pytest.mark.parametrize("fault", [NotFoundError("no such node"), api_error("no", 500), TimeoutError()])
async def test_a_kubelet_whose_node_cannot_be_read_is_not_ready(tmp_path: Path, fault: Exception) -> None:
    async def fail() -> None:
        raise fault

    api = InterruptedApiServer()
    async with running_manager(tmp_path, RecordingDriver(), api) as manager:
        await prepare(manager, api)
        api.claims.clear()
        api.before = fail
        report = await once(manager)
        assert (report.unprepared, report.waiting) == ([], ["a"])


async def test_claims_that_cannot_be_read_do_not_hide_other_claims(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api, driver = FakeApiServer(), RecordingDriver()
    async with running_manager(tmp_path, driver, api) as manager:
        await prepare(manager, api, "abcdefgh")
        for name in "abcdef":
            api.claims[name] = {"metadata": "of another kind"}
        del api.claims["h"]
        await once(manager)
        assert driver.unprepared == ["h"]
        (line,) = [r.getMessage() for r in caplog.records if "cannot read claims" in r.msg]
        assert line.startswith("cannot read claims from the API server: 6, for example: claim ns/a cannot be read now")
        for name in "abcdef":
            del api.claims[name]
        await once(manager)
        assert sorted(driver.unprepared) == list("abcdefh")


async def test_the_reads_of_a_pass_end_when_the_api_server_does_not_respond_for_the_time_of_a_call(
    tmp_path: Path,
) -> None:
    class SilentApiServer(FakeApiServer):
        async def raw(self, method: str, path: str, **options: Any) -> Any:
            if self.is_unreachable:
                reads.append(path.rpartition("/")[2])
                clock.now += 15.0
            return await super().raw(method, path, **options)

    api, clock, reads = SilentApiServer(), Clock(), list[str]()
    async with running_manager(tmp_path, RecordingDriver(), api, call_timeout=40, clock=clock) as manager:
        await prepare(manager, api, "abcdef")
        api.is_unreachable = True
        await once(manager)
        assert reads == ["a", "b", "c"]


async def test_a_claim_that_only_the_kubelet_may_unprepare_is_reported_and_logged_with_its_devices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, RecordingDriver(), api) as manager:
        await prepare(manager, api)
        api.allocate("a", "a", "d-1", DRIVER)
        api.claims["a"]["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "p"}]
        assert (await once(manager)).waiting == ["a"]
        (line,) = [vars(r) for r in caplog.records if "its pod may still use them" in r.getMessage()]
        assert (line["claim"], line["devices"]) == ("ns/a", ["d-0"])
        api.allocate("a", "a", "d-0", DRIVER)
        assert (await once(manager)).waiting == []


async def test_a_claim_without_a_name_and_a_claim_that_another_instance_prepares_are_unchanged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The name is not known if the driver reported the claim after a loss of the records."""
    async with (
        running_manager(tmp_path, RecordingDriver()) as manager,
        running_manager(tmp_path, RecordingDriver()) as other_manager,
    ):
        for record in (
            Record("n", "ns", "", State.PREPARED, "boot", recovered=True),
            Record("p", "ns", "p", State.PREPARING, "boot", other_manager.process.id),
        ):
            await manager.claims.store.do(lambda records, record=record: records.insert(record))  # type: ignore[misc]
        assert await once(manager) == ReconcileReport()
        assert await manager.records() == {"n": "Prepared", "p": "Preparing"}
        assert "cannot read" not in caplog.text
