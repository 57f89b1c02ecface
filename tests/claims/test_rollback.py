"""A rollback succeeds whatever made the prepare fail; one that cannot is retried with growing pauses and says why."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import Claim, PreparedClaim
from dra_kubeletplugin.analysis.doctor.records import look
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims import ClaimIdentity, State, reconcile, rollback_retries
from dra_kubeletplugin.claims.record import Record
from dra_kubeletplugin.claims.rollback_retries import RollbackRetries, retry_note
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.errors import DeviceHeldError, DraError, RecordsError, RetryableError, UndoFailedError
from dra_kubeletplugin.kube.event_recorder import Subject
from tests.claims.test_claims_names_and_paths import (
    LONGEST_LABEL,
    LONGEST_NAME,
    POD_CLAIM,
    UID,
    WithMetadata,
    allocate,
    files_of,
)
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.file_faults import FileFaults
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.waiting import wait_until

ERRORS = [
    errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOSPC, errno.EDQUOT,
    errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EBUSY,
    errno.EINTR, errno.ENOTEMPTY, errno.ENODEV, errno.ETXTBSY, errno.EFBIG,
]  # fmt: skip
PREPARING = {"open", "write", "fchmod", "close", "rename"}
UNPREPARING = {"unlink"}
OTHER = "0b6a0c1e-0000-4000-8000-000000000002"


class Counting(WithMetadata):
    """Notes who has device d-0. The unprepare raises ``broken``, where that is set."""

    def __init__(self) -> None:
        self.holders: set[str] = set()
        self.broken: Exception | None = None
        self.tries = 0

    async def prepare(self, claim: Claim) -> Any:
        assert not self.holders - {claim.uid}, "a second holder"
        self.holders.add(claim.uid)
        return await super().prepare(claim)

    async def unprepare(self, claim: PreparedClaim) -> None:
        self.tries += 1
        if self.broken:
            raise self.broken
        self.holders.discard(claim.uid)


class SayingEvents:
    """Stands for the recorder of Events."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []

    def warn_claim(self, claim: Subject, reason: str, message: str) -> None:
        self.told.append((claim.uid, reason, message))


def faults_of(one: RunningManager) -> FileFaults:
    return FileFaults(one.settings.cdi_root, one.settings.plugin_dir / "dra-device-metadata")


# --- whatever fails -----------------------------------------------------------------------------------


async def check_whole(one: RunningManager, driver: Counting, ref: ClaimIdentity, other: ClaimIdentity) -> None:
    """After the faults the claim can be prepared or it is gone, the other claim can have the device, and nothing is left."""
    if not isinstance(await one.prepare(ref), DraError):
        assert isinstance(await one.prepare(other), DeviceHeldError)
        assert driver.holders == {ref.uid}
    assert await one.unprepare(ref) == ()
    assert not isinstance(await one.prepare(other), DraError)
    assert await one.unprepare(other) == ()
    await one.claims.reconciler.once()
    assert await one.records() == {}
    assert driver.holders == set()
    assert [p for p in files_of(one) if p.is_dir() or not p.name.startswith(".")] == []
    assert [p for p in files_of(one) if p.name.endswith(".record")] == []


@pytest.fixture
def without_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without a record is an orphan at once."""
    monkeypatch.setattr(reconcile, "_ORPHAN_AGE", -1.0)


@pytest.mark.cases(12)
@pytest.mark.parametrize("work", ["prepare", "unprepare"])
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("error", ERRORS, ids=[errno.errorcode[e] for e in ERRORS])
@pytest.mark.usefixtures("without_age")
async def test_every_error_at_every_file_operation_leaves_nothing(
    tmp_path: Path, error: int, lasts: bool, work: str
) -> None:
    api, driver = FakeApiServer(), Counting()
    ref = allocate(api, LONGEST_NAME, request=f"{'r' * 63}/{'s' * 63}")
    other = allocate(api, "other", OTHER)
    async with running_manager(tmp_path, driver, api) as one:
        faults, failed = faults_of(one), set()
        for number in range(200):
            if work == "unprepare":
                assert not isinstance(await one.prepare(ref), DraError)
            with faults.failing(error, lambda n, at=number: n >= at if lasts else n == at):  # type: ignore[misc]
                await (one.prepare(ref) if work == "prepare" else one.unprepare(ref))
            failed |= set(faults.failed)
            await check_whole(one, driver, ref, other)
            if faults.count <= number:
                assert failed >= (PREPARING if work == "prepare" else UNPREPARING)
                return
    raise AssertionError("more file operations than expected")


LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
LONG_LABELS = LABELS | st.sampled_from(["x" * 63, "0" * 63, "0", "a-" * 31 + "a", "metadata", "xn--a"])
NAMES = st.lists(LONG_LABELS, min_size=1, max_size=4).map(".".join).filter(lambda n: len(n) <= 253) | st.just(
    LONGEST_NAME
)
REQUESTS = LONG_LABELS | st.tuples(LONG_LABELS, LONG_LABELS).map("/".join)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300) | st.sampled_from(
    ["../../etc", "..", "/", "a/b", "\0", "\n", "x" * (256 << 10), "ü" * 1000, "%s{}", "\u202e", "a" * 63]
)


@pytest.mark.cases(1)
@pytest.mark.parametrize("run", range(4))  # Hypothesis finds other examples in each
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    namespace=LONG_LABELS | st.just(LONGEST_LABEL),
    name=NAMES,
    request_name=REQUESTS,
    pod_claim=st.none() | LONG_LABELS | TEXTS,
    text=TEXTS,
    configured=st.sampled_from(["another.example.com", DRIVER]),
    parameters=st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | TEXTS, st.lists, max_leaves=5),
    faults_at=st.dictionaries(st.integers(0, 60), st.sampled_from(ERRORS), max_size=3),
)
@pytest.mark.usefixtures("without_age")
def test_any_claim_that_an_api_server_accepts_is_prepared_and_unprepared_whatever_fails_meanwhile(
    tmp_path_factory: pytest.TempPathFactory,
    run: int,
    namespace: str,
    name: str,
    request_name: str,
    pod_claim: str | None,
    text: str,
    configured: str,
    parameters: Any,
    faults_at: dict[int, int],
) -> None:
    annotations = {"example.com/text": text} | ({POD_CLAIM: pod_claim} if pod_claim is not None else {})

    async def check() -> None:
        api, driver = FakeApiServer(), Counting()
        other = allocate(api, "other.claim", OTHER)
        api.allocate(name, UID, "d-0", DRIVER, request=request_name)
        api.claims[name]["metadata"] |= {"namespace": namespace, "annotations": annotations, "labels": {"a": "x" * 63}}
        opaque = {"driver": configured, "parameters": {"a": parameters}}
        config = [{"source": "FromClaim", "requests": [], "opaque": opaque}]
        api.claims[name]["status"]["allocation"]["devices"]["config"] = config
        ref = ClaimIdentity(namespace, name, UID)
        async with running_manager(tmp_path_factory.mktemp("room"), driver, api) as one:
            faults = faults_of(one)
            for number, error in faults_at.items():
                with faults.failing(error, lambda n, at=number: n == at):  # type: ignore[misc]
                    await one.prepare(ref)
                    await one.unprepare(ref)
                await check_whole(one, driver, ref, other)
            answer = await one.prepare(ref)
            assert isinstance(answer, DraError) == (configured == DRIVER)  # it takes no parameters
            assert name in request_name or not [p for p in files_of(one) if len(name) > 8 and name in str(p)]
            await check_whole(one, driver, ref, other)

    asyncio.run(check())


@pytest.fixture
def own_mount(tmp_path: Path) -> Iterator[Path]:
    """A file system for CDI files."""
    folder = tmp_path / "cdi"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.mounts
async def test_a_prepare_that_fails_on_a_read_only_folder_is_rolled_back_while_it_is_read_only(
    tmp_path: Path, own_mount: Path
) -> None:
    """Linux refuses to remove also a file that is not there."""
    api, driver = FakeApiServer(), Counting()
    ref = allocate(api)
    async with running_manager(tmp_path, driver, api) as one:
        subprocess.run(["mount", "-o", "remount,ro", str(own_mount)], check=True)
        answer = await one.prepare(ref)
        assert isinstance(answer, RecordsError)
        assert "Read-only file system" in str(answer)
        assert await one.records() == {}
        assert driver.holders == set()
        subprocess.run(["mount", "-o", "remount,rw", str(own_mount)], check=True)
        assert not isinstance(await one.prepare(ref), DraError)
        assert await one.unprepare(ref) == ()
        assert files_of(one) == []


# --- what cannot be rolled back ------------------------------------------------------------------------


@contextlib.contextmanager
def read_only(one: RunningManager) -> Iterator[None]:
    """As where the file system of the metadata files was mounted read-only after an error of its disk."""
    faults = FileFaults(one.settings.plugin_dir / "dra-device-metadata")
    with faults.failing(errno.EROFS, lambda number: True):
        yield


async def stuck(one: RunningManager, ref: ClaimIdentity) -> None:
    """Makes a claim whose rollback has failed once."""
    await one.prepare(ref)
    with read_only(one):
        answer = await one.unprepare(ref)
    assert isinstance(answer, UndoFailedError)


async def test_the_message_names_the_path_and_the_reason_and_no_other_folder(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), Counting()
    ref = allocate(api)
    async with running_manager(tmp_path, driver, api) as one:
        await stuck(one, ref)
        (record,) = await one.claims.store.all()
        path = one.settings.plugin_dir / f"dra-device-metadata/{UID}_r.json"
        assert record.error == (
            f"{path} cannot be removed (Read-only file system): its file system is read-only; see the kernel's log, and mount "
            "it writable"
        )
        with faults_of(one).failing(errno.EIO, lambda number: True):
            await one.unprepare(ref)
        (record,) = await one.claims.store.all()
        assert "Input/output error" in record.error
        assert "space" not in record.error
        assert await one.unprepare(ref) == ()


async def test_a_full_disk_is_the_only_reason_to_advise_more_space(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = allocate(api)
    async with running_manager(tmp_path, WithMetadata(), api) as one:
        for error in ERRORS:
            with FileFaults(one.settings.cdi_root).failing(error, lambda number: True):
                answer = await one.prepare(ref)
            assert isinstance(answer, DraError)
            assert ("space" in str(answer)) == (error == errno.ENOSPC)
            assert str(one.settings.cdi_root) in str(answer)
            assert one.process.id not in str(answer)  # the text is the same in each process


async def test_however_often_it_is_tried_each_text_is_logged_once_and_the_event_is_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api, driver = FakeApiServer(), Counting()
    ref, other = allocate(api), allocate(api, "other", OTHER)
    events = SayingEvents()
    async with running_manager(tmp_path, driver, api) as one:
        one.claims.engine.rollback.events = events  # type: ignore[assignment]
        await one.prepare(ref)
        driver.broken = OSError("the card does not answer")
        caplog.set_level(logging.INFO)
        for _ in range(20):
            assert isinstance(await one.unprepare(ref), UndoFailedError)
            answer = await one.prepare(other)
            assert isinstance(answer, DeviceHeldError)
            assert "the card does not answer" in str(answer)
            await one.claims.reconciler.once()
        assert driver.tries == 60
        lines = [r.getMessage() for r in caplog.records]
        # A driver's method that fails again and again is logged at the 1st, 2nd, 4th, 8th failure, and so on.
        lines = [line for line in lines if "reconciled: " not in line and " times: " not in line]
        assert len(lines) == len(set(lines)) < 8, lines
        assert len(set(events.told)) == 1
        ((uid, reason, text), *_) = events.told
        assert (uid, reason) == (UID, "UnprepareFailed")
        assert "the card does not answer" in text
        driver.broken = None
        assert not isinstance(await one.prepare(other), DraError)
        assert await one.unprepare(ref) == ()


async def test_an_unprepare_whose_rollback_fails_is_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api, driver = FakeApiServer(), Counting()
    ref = allocate(api)
    async with running_manager(tmp_path, driver, api) as one:
        await one.prepare(ref)
        driver.broken = RetryableError("the card does not answer")
        caplog.set_level(logging.INFO)
        assert isinstance(await one.unprepare(ref), UndoFailedError)
        (line,) = (r.getMessage() for r in caplog.records if "the card does not answer" in r.getMessage())
        assert line.startswith("cannot roll back claim; its devices stay held: ")
        driver.broken = None
        assert await one.unprepare(ref) == ()


async def test_the_plugin_tries_again_by_itself_with_pauses_that_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_retries, "_FIRST", 0.01)
    api, driver = FakeApiServer(), Counting()
    ref = allocate(api)
    async with running_manager(tmp_path, driver, api) as one:
        await one.prepare(ref)
        driver.broken = OSError("the card does not answer")
        await one.unprepare(ref)
        retrying = asyncio.create_task(one.claims.background()["rollbacks"]())
        await wait_until(lambda: driver.tries > 4)
        driver.broken = None
        await wait_until(lambda: _records_are(one, {}))
        retrying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await retrying
        assert files_of(one) == []


async def _records_are(one: RunningManager, expected: dict[str, str]) -> bool:
    return await one.records() == expected


async def test_a_rollback_that_fails_before_it_begins_is_tried_again_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_retries, "_FIRST", 0.01)
    retries, tries = RollbackRetries(Metrics()), 0

    async def roll_back(uid: str) -> bool:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise RecordsError("the records cannot be written")
        return True

    retries.failed("u")
    task = asyncio.create_task(retries.run(roll_back))
    await wait_until(lambda: tries == 4)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_the_pause_doubles_from_two_seconds_to_five_minutes() -> None:
    retries = RollbackRetries(Metrics())
    assert [retries.failed("u") for _ in range(10)] == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert retries.failed("v", 1_000_000) == 300  # by the record, after a restart
    retries.done("u")
    assert retries.failed("u") == 2


def test_texts_that_never_end_take_bounded_memory(caplog: pytest.LogCaptureFixture) -> None:
    retries = RollbackRetries(Metrics())
    for i in range(3_000):
        retries.log(f"u{i}", "text")
        retries.log("u", f"text {i}")
    assert len(retries._logged) <= 1_000
    assert max(map(len, retries._logged.values())) <= 50


async def test_readiness_and_the_claims_command_state_which_claim_why_how_often_and_when(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api, driver = FakeApiServer(), Counting()
    ref = allocate(api)
    async with running_manager(tmp_path, driver, api) as one:
        await stuck(one, ref)
        assert await one.claims.faults() == []  # the node serves all other claims
        (note,) = await one.claims.notes()
        assert re.fullmatch(
            rf"claim {LONGEST_LABEL}/c \(UID {UID}\) cannot be rolled back and keeps its devices \(tried 1 time, next in [0-2] s\): "
            r".*Read-only file system.*",
            note,
        )
        options = ["--kubelet-root", str(tmp_path), "--cdi-root", str(tmp_path / "cdi"), "--driver-name", DRIVER]
        assert main(["claims", *options]) == 0
        shown = capsys.readouterr().out
        assert "Read-only file system" in shown
        assert "tried 1 time, next in " in shown
        assert main(["claims", *options, "-o", "json"]) == 0
        assert '"nextAttempt": "20' in capsys.readouterr().out
        (finding,) = [finding async for finding in look(tmp_path, tmp_path / "cdi", None)]
        assert "cannot be rolled back and keeps its devices (tried 1 time, next in " in finding.text


async def test_a_forgotten_claim_leaves_no_files_of_metadata(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApiServer()
    ref = allocate(api)
    async with running_manager(tmp_path, WithMetadata(), api) as one:
        await one.prepare(ref)
    options = ["--kubelet-root", str(tmp_path), "--cdi-root", str(tmp_path / "cdi"), "--driver-name", DRIVER]
    assert main(["claims", "forget", UID, "--yes", *options]) == 0
    assert files_of(one) == []


@pytest.mark.parametrize("odd", ["soon", None, float("nan"), 1e300, [1]])
def test_a_malformed_time_on_record_is_no_time(odd: object) -> None:
    record = Record("u", "ns", "c", State.UNPREPARING, "boot", doc={"retryAt": odd}, error="broken", attempts=3)
    assert retry_note(record) == "tried 3 times"
