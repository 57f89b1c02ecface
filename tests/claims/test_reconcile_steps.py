"""One reconcile pass step by step: its report, its log lines and metrics, and the claims that it does not change."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.inflight import Work
from dra_kubeletplugin.claims.reconcile import ReconcileReport
from dra_kubeletplugin.errors import DraError, DriverError, RecordsError, StoppingError
from dra_kubeletplugin.kube.errors import NotFoundError, api_error
from tests.claims.test_engine_steps import BlockingDriver, PlainDriver
from tests.claims.test_reconcile import clock, deallocate
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.waiting import wait_until

assert clock  # a fixture


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (ReconcileReport(), "nothing to do"),
        (ReconcileReport(rolled_back=["a"]), "rolled back: 1"),
        (ReconcileReport(waiting=["a", "b"], failed=["c"]), "failed: 1, waiting: 2"),
    ],
)
def test_a_report_contains_each_action_and_its_count(report: ReconcileReport, text: str) -> None:
    assert str(report) == text
    assert bool(report) is (text != "nothing to do")


class CountingServer(FakeApiServer):
    """Counts the reads of claims. ``failing`` contains names of claims whose read fails."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.failing: set[str] = set()

    async def get(self, resource: Any, name: str, namespace: str = "", *, timeout: float | None = None) -> Any:
        if resource.plural == "resourceclaims":
            self.reads.append(name)
            if name in self.failing:
                raise api_error("away", 503)
        return await super().get(resource, name, namespace, timeout=timeout)


async def prepared(manager: RunningManager, api: FakeApiServer, names: str = "a") -> None:
    for i, name in enumerate(names):
        response = await manager.prepare(api.allocate(name, name, f"d-{i}", DRIVER))
        assert not isinstance(response, DraError), response


def metric(manager: RunningManager, action: str) -> float:
    (line,) = [
        t for t in manager.metrics.text().decode().splitlines() if f'reconcile_actions_total{{action="{action}"}}' in t
    ]
    return float(line.rpartition(" ")[2])


async def test_a_pass_counts_its_actions_and_keeps_its_report(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await prepared(manager, api, "ab")
        manager.claims.files.specs.remove("a")
        report = await manager.claims.reconciler.once()
        assert (report.files_restored, report) == (["a"], manager.claims.reconciler.last)
        assert (metric(manager, "files_restored"), metric(manager, "unprepared")) == (1.0, 0.0)


async def test_a_pass_over_prepared_claims_reads_each_once_and_starts_no_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = CountingServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await prepared(manager, api, "ab")
        rollback = manager.claims.engine.rollback
        started: list[str] = []
        for name in ("tidy", "remove_orphan"):
            monkeypatch.setattr(rollback, name, started.append)
        api.reads.clear()
        assert not await manager.claims.reconciler.once()
        assert (started, sorted(api.reads)) == ([], ["a", "b"])


async def test_a_file_without_a_record_is_removed_only_while_no_recovery_is_due(tmp_path: Path) -> None:
    async with running_manager(tmp_path, PlainDriver()) as manager:
        specs = manager.claims.files.specs
        uid = "3f2c9a52-6f55-4a35-9d0e-1c5d3c9fbe01"
        specs.write(uid, {"kind": "k"})
        await manager.claims.store.do(lambda records: records.set_meta("recover", "pending"))
        assert not await manager.claims.reconciler.once()
        await manager.claims.store.do(lambda records: records.clear_meta("recover"))
        (specs.path(uid).parent / f".{specs.path(uid).name}.tmp-1-00000000").touch()  # of a dead writer
        assert (await manager.claims.reconciler.once()).files_removed == [uid]
        assert [p for p in manager.settings.cdi_root.iterdir() if ".tmp-" in p.name] == []


@pytest.mark.parametrize("name", ["/cdi/x", None])
async def test_a_folder_that_cannot_be_read_ends_the_pass_with_its_name(
    tmp_path: Path, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_manager(tmp_path, PlainDriver()) as manager:
        specs = manager.claims.files.specs

        def fails(_: Any) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

        monkeypatch.setattr(specs, "clean", fails)
        with pytest.raises(RecordsError) as caught:
            await manager.claims.reconciler.once()
        assert str(caught.value).startswith(f"{name or specs.root} cannot be read (Input/output error): see its mount")


async def test_the_loop_logs_a_failed_pass_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_manager(tmp_path, PlainDriver()) as manager:
        passes: list[int] = []

        async def once() -> ReconcileReport:
            passes.append(1)
            if len(passes) == 1:
                raise RecordsError("the disk is full")
            return ReconcileReport()

        monkeypatch.setattr(manager.claims.reconciler, "once", once)
        task = asyncio.create_task(manager.claims.reconciler.run(0.001))
        await wait_until(lambda: len(passes) > 2)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert caplog.text.count("reconcile failed; the next pass is in 0.001 s: the disk is full") == 1


# --- claims that may have ended ----------------------------------------------------------------------------


async def test_three_failed_reads_end_the_reads_of_a_pass_and_the_next_pass_reads_other_claims_first(
    tmp_path: Path,
) -> None:
    api = CountingServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await prepared(manager, api, "abcdef")
        api.failing = {"a", "b", "c", "d"}
        passes = []
        for _ in range(3):
            api.reads.clear()
            await manager.claims.reconciler.once()
            passes.append(api.reads.copy())
        assert passes[0] == ["a", "b", "c"]
        assert passes[1][:3] == ["d", "e", "f"]
        assert passes[2][:2] == ["e", "f"]
        api.failing.clear()
        await manager.claims.reconciler.once()
        assert manager.claims.reconciler._unknown == set()
        api.failing = {"f"}
        await manager.claims.reconciler.once()
        assert manager.claims.reconciler._unknown == {"f"}
        await manager.unprepare(api.allocate("f", "f", "d-5", DRIVER))
        await manager.claims.reconciler.once()
        assert manager.claims.reconciler._unknown == set()


async def test_a_claim_that_cannot_be_read_before_its_unprepare_keeps_its_devices(tmp_path: Path) -> None:
    api = CountingServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await prepared(manager, api)
        deallocate(api, "a")

        is_away = manager.claims.reconciler.verifier.slices.kubelet_is_away

        async def fail_next_read() -> bool:
            api.failing = {"a"}
            return await is_away()

        manager.claims.reconciler.verifier.slices.kubelet_is_away = fail_next_read  # type: ignore[method-assign]
        report = await manager.claims.reconciler.once()
        assert (report.unprepared, await manager.records()) == ([], {"a": "Prepared"})


async def test_an_unready_kubelet_is_logged_once_and_restarts_the_grace_period(
    tmp_path: Path, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api, reconcile_grace_period=10.0) as manager:
        reconciler = manager.claims.reconciler
        for count in (1, 2):
            await prepared(manager, api)
            deallocate(api, "a")
            assert (await reconciler.once()).waiting == ["a"]
            api.ready = "Unknown"
            for _ in range(2):
                clock.now += 11
                assert (await reconciler.once()).waiting == ["a"]
                assert (await reconciler.once()).waiting == ["a"]  # the grace period began again
                assert caplog.text.count("the kubelet of this node does not respond") == count
            api.ready = "True"
            clock.now += 9
            assert (await reconciler.once()).waiting == ["a"]
            clock.now += 1
            assert (await reconciler.once()).unprepared == ["a"]


@pytest.mark.parametrize("fault", [NotFoundError("no such node"), api_error("no", 500), TimeoutError()])
async def test_a_kubelet_whose_node_cannot_be_read_is_not_ready(tmp_path: Path, fault: Exception) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await prepared(manager, api)
        api.claims.clear()

        get = api.get

        async def failing(resource: Any, *args: Any, **options: Any) -> Any:
            if resource.plural == "nodes":
                raise fault
            return await get(resource, *args, **options)

        api.get = failing  # type: ignore[method-assign]
        report = await manager.claims.reconciler.once()
        assert (report.unprepared, report.waiting) == ([], ["a"])


async def test_a_claim_that_only_the_kubelet_may_unprepare_is_reported_until_it_has_its_devices_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await prepared(manager, api)
        for _ in range(2):
            api.allocate("a", "a", "d-1", DRIVER)
            api.claims["a"]["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "p"}]
            assert (await manager.claims.reconciler.once()).waiting == ["a"]
            assert (await manager.claims.reconciler.once()).waiting == ["a"]
            api.allocate("a", "a", "d-0", DRIVER)
            assert (await manager.claims.reconciler.once()).waiting == []
            assert manager.claims.reconciler._left_to_kubelet == set()
        lines = [r for r in caplog.records if "its pod may still use them" in r.getMessage()]
        assert [(vars(r)["claim"], vars(r)["devices"]) for r in lines] == [("ns/a", ["d-0"])] * 2
        api.allocate("a", "a", "d-1", DRIVER)
        api.claims["a"]["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "p"}]
        await manager.claims.reconciler.once()
        await manager.unprepare(api.allocate("a", "a", "d-0", DRIVER))
        await manager.claims.reconciler.once()
        assert manager.claims.reconciler._left_to_kubelet == set()


async def test_claims_without_a_name_in_another_state_or_in_work_are_not_read(tmp_path: Path) -> None:
    api, driver = CountingServer(), BlockingDriver()
    async with running_manager(tmp_path, driver, api) as manager:
        await prepared(manager, api, "ab")
        for uid, name, state, owner in (
            ("n", "", State.PREPARED, ""),
            ("p", "p", State.PREPARING, manager.process.id),
        ):
            record = Record(uid, "ns", name, state, "boot", owner, recovered=True)
            await manager.claims.store.do(lambda records, record=record: records.insert(record))  # type: ignore[misc]
        driver.go.clear()
        driver.entered.clear()
        unpreparing = asyncio.create_task(manager.unprepare(api.allocate("b", "b", "d-1", DRIVER)))
        await driver.entered.wait()
        api.reads.clear()
        manager.claims.reconciler._leftovers = no_leftovers  # type: ignore[method-assign]
        await manager.claims.reconciler.once()
        assert api.reads == ["a"]
        driver.go.set()
        await unpreparing


async def no_leftovers(*_: Any) -> None:
    pass


# --- work on several claims --------------------------------------------------------------------------------


async def test_each_claim_of_a_pass_is_listed_under_its_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_manager(tmp_path, PlainDriver(), call_timeout=0.1) as manager:
        reconciler, report, done_uids, cancelled_uids = (
            manager.claims.reconciler,
            ReconcileReport(),
            list[str](),
            list[str](),
        )
        never = asyncio.Event()

        async def work(uid: str) -> bool:
            match uid:
                case "stopping":
                    raise StoppingError("stops")
                case "fails":
                    raise DriverError("the card does not answer")
                case "slow":
                    try:
                        await never.wait()
                    finally:
                        cancelled_uids.append(uid)
            return uid == "done"

        manager.claims.tasks.start("busy", Work.TIDY, never.wait)
        await reconciler._all(["done", "nothing", "stopping", "fails", "slow", "busy"], work, done_uids, report)
        await asyncio.sleep(0)
        assert (done_uids, cancelled_uids) == (["done"], ["slow"]), "work beyond the time limit is cancelled"
        assert sorted(report.still_working) == ["slow", "stopping"]
        assert report.failed == ["fails"]
        assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == [
            "cannot reconcile claim: the card does not answer"
        ]
        with pytest.raises(ZeroDivisionError):
            await reconciler._all(["x"], fails_unexpectedly, done_uids, report)
        never.set()


async def fails_unexpectedly(uid: str) -> bool:
    raise ZeroDivisionError


async def test_a_cancelled_pass_leaves_no_unread_exception(tmp_path: Path) -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    async with running_manager(tmp_path, PlainDriver()) as manager:
        resume = asyncio.Event()

        async def work(uid: str) -> bool:
            await resume.wait()
            raise DriverError("no")

        pass_task = asyncio.create_task(manager.claims.reconciler._all("ab", work, [], ReconcileReport()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        pass_task.cancel()
        await asyncio.wait([pass_task])
        resume.set()
        for _ in range(5):
            await asyncio.sleep(0)
        del pass_task  # its traceback refers to the tasks
    gc.collect()
    assert problems == []
