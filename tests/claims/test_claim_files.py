"""CDI files are complete or absent, and are compared by content. Malformed files in the folder stop nothing and lead to
no wrong record.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import zlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import State
from dra_kubeletplugin.claims.claim_files import ClaimFiles, read_note
from dra_kubeletplugin.claims.metadata_files import MetadataFiles
from dra_kubeletplugin.claims.record import checked_line
from dra_kubeletplugin.errors import DraError, RecordsError
from tests.helpers.crash.claim_drivers import PlainDriver, RecordingDriver
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.file_faults import failing_calls
from tests.helpers.crash.record_stores import DRIVER, make_record_with_file, remove_records
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")


def path_of(folder: Path, uid: str) -> Path:
    return ClaimSpecs(folder / "cdi", DRIVER).path(uid)


def note_of(folder: Path, uid: str) -> Path:
    return ClaimSpecs(folder / "cdi", DRIVER).note_path(uid)


PathOf = Callable[[Path, str], Path]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def change_variable(path: Path) -> None:
    path.write_text(path.read_text().replace("X=d-0", "X=d-9"))


def append_text(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def make_huge(path: Path) -> None:
    os.truncate(path, 1 << 40)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_to_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/x")


CHANGES = [cut, make_empty, change_variable, append_text, make_huge, make_fifo, link_to_zeros, link_to_nothing]


@pytest.mark.parametrize("path_function", [path_of, note_of])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_repetition_writes_the_file_again_if_its_content_differs(
    tmp_path: Path, path_function: PathOf, change: Callable[[Path], None]
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, RecordingDriver(), api) as manager:
        first = await manager.prepare(ref)
        path = path_function(tmp_path, "a")
        content = path.read_bytes()
        for call in (lambda: manager.prepare(ref), manager.claims.reconciler.once):
            change(path)
            await call()
            assert path.read_bytes() == content
            assert path.is_file()
            assert not path.is_symlink()
        inode = path.stat().st_ino
        assert await manager.prepare(ref) == first
        assert path.stat().st_ino == inode


# --- records from files -----------------------------------------------------------------------------


async def test_a_copy_of_another_claim_s_file_is_removed_and_does_not_touch_that_claim(tmp_path: Path) -> None:
    api, driver = FakeApiServer(), RecordingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, RecordingDriver(), api) as manager:
        await manager.prepare(ref)
        for path_function in (path_of, note_of):
            path_function(tmp_path, "copy").write_bytes(path_function(tmp_path, "a").read_bytes())
            os.utime(path_function(tmp_path, "copy"), (1, 1))
    remove_records(manager.settings.records_path)
    async with running_manager(tmp_path, driver, api) as restarted:
        assert await restarted.records() == {"a": "Prepared"}
        await restarted.claims.reconciler.once()
        for path_function in (path_of, note_of):
            assert not path_function(tmp_path, "copy").exists()
            assert path_function(tmp_path, "a").exists()
        assert driver.unprepared == []


async def test_an_unprepare_that_cannot_read_a_note_rolls_nothing_back_and_reports_an_error(tmp_path: Path) -> None:
    """Only the note contains the undo steps, and the process cannot open another file."""
    api, driver = FakeApiServer(), RecordingDriver()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, driver, api) as manager:
        await manager.prepare(ref)
        await manager.claims.store.do(lambda records: records.forget("a"))
        with failing_calls(errno.EMFILE, "open", text=".record'"):
            assert isinstance(await manager.unprepare(ref), RecordsError)
        assert await manager.unprepare(ref) == ()
        assert driver.unprepared == ["a"]


def set_in_file(change: dict[str, Any]) -> Callable[[Path], None]:
    """Returns a function that sets fields of a CDI file, or of the line of a note that has them, with a right checksum."""

    def write(path: Path) -> None:
        head, _, body = path.read_text().partition("\n")
        if not body:
            path.write_text(json.dumps(json.loads(head) | change))
            return
        fields = [json.loads(head), json.loads(body)]
        changed = fields[0] if change.keys() <= fields[0].keys() - {"devices"} else fields[1]
        changed.update(change)
        path.write_bytes(b"".join(checked_line({k: v for k, v in line.items() if k != "crc"}) for line in fields))

    return write


def nest_deeply(path: Path) -> None:
    path.write_text("[" * 100_000)


def nest_deeply_with_checksum(path: Path) -> None:
    text = b'{"uid":' + b"[" * 100_000
    path.write_bytes(b'%s,"crc":"%08x"}\n' % (text, zlib.crc32(text)))


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


MALFORMATIONS: list[Callable[[Path], None]] = [
    *CHANGES[:2], *CHANGES[4:], nest_deeply, nest_deeply_with_checksum, make_directory, set_in_file({"devices": 5}), set_in_file({"devices": [1]}),
    set_in_file({"namespace": 5}), set_in_file({"created": "x"}), set_in_file({"uid": "b"}), set_in_file({"undo": [{"step": 1}]}),
    set_in_file({"bootID": []}), set_in_file({"cdi": {"devices": [None]}}), set_in_file({"version": 2}),
]  # fmt: skip


@pytest.mark.cases(24)
@pytest.mark.parametrize("change", MALFORMATIONS)
@pytest.mark.parametrize("path_function", [path_of, note_of])
@pytest.mark.parametrize("repair", [True, False])
async def test_a_malformed_file_affects_no_other_claim(
    tmp_path: Path, change: Callable[[Path], None], path_function: PathOf, repair: bool
) -> None:
    api = FakeApiServer()
    refs = [api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate(("a", "b"))]
    async with running_manager(tmp_path, RecordingDriver(), api) as manager:
        for ref in refs:
            await manager.prepare(ref)
    change(path_function(tmp_path, "a"))
    if repair:
        remove_records(manager.settings.records_path)
    async with running_manager(tmp_path, RecordingDriver(), api) as restarted:
        assert (await restarted.records())["b"] == "Prepared"
        await restarted.claims.reconciler.once()
        assert not isinstance(await restarted.prepare(refs[1]), DraError)
        assert await restarted.claims.faults() == []
        assert await restarted.unprepare(refs[1]) == ()


async def test_malformed_file_names_in_the_folder_stop_nothing(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, RecordingDriver(), api) as manager:
        await manager.prepare(ref)
        prefix = path_of(tmp_path, "").name.removesuffix(".json")
        head, _, body = note_of(tmp_path, "a").read_bytes().partition(b"\n")
        head = head.rpartition(b',"crc"')[0]
        for name in (b"\xff\xfe", b"", b"a\nb", b"\xed\xa0\x80", b"x" * 150):
            for path_function in (path_of, note_of):
                prefix_bytes, suffix_bytes = os.fsencode(path_function(tmp_path, "UID")).split(b"UID")
                path = prefix_bytes + name + suffix_bytes
                with open(path, "wb") as f:  # noqa: ASYNC230, PTH123  (a name that is no text)
                    text = head.replace(b'"uid":"a"', b'"uid":"' + name + b'"')
                    f.write(b'%s,"crc":"%08x"}\n' % (text, zlib.crc32(text)) + body)
                os.utime(path, (1, 1))
        (tmp_path / "cdi" / f".{prefix}z.tmp-9-00000000").mkdir()
        await manager.claims.reconciler.once()
    remove_records(manager.settings.records_path)
    async with running_manager(tmp_path, RecordingDriver(), api) as restarted:
        assert (await restarted.records())["a"] == "Prepared"
        assert await restarted.claims.faults() == []
        report = await restarted.claims.reconciler.once()
        assert "a" not in report.files_removed
        assert await restarted.unprepare(ref) == ()


# --- a single file -----------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> ClaimFiles:
    specs = ClaimSpecs(tmp_path / "cdi", DRIVER)
    return ClaimFiles(specs, MetadataFiles(tmp_path / "plugin", specs.driver))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errno.ENOSPC, "{path} cannot be written (No space left on device): free space on its file system"),
        (errno.EPERM, "{path} cannot be written (Operation not permitted): see the permissions and"),
        (errno.EIO, "{path} cannot be written (Input/output error): see the disk and the mount"),
    ],
)
def test_each_file_error_has_its_advice_and_is_a_fault_until_a_probe_and_a_note_is_written_later(
    tmp_path: Path, files: ClaimFiles, error: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    record = make_record_with_file(tmp_path, "u", "d-0")
    files.specs.remove_note("u")
    with failing_calls(error, "open", text=f"{tmp_path}/cdi"):
        with pytest.raises(RecordsError) as caught:
            files.put(record)
        assert message.format(path=files.specs.path("u")) in str(caught.value)
        assert files.fault == str(caught.value)
        files.probe()
        assert "cannot be written" in files.fault
        files.note(record)
        assert "cannot write the claim's note" in caplog.text
    files.probe()
    assert files.fault == ""
    files.put(record)


def test_a_note_has_the_whole_record_and_a_note_of_another_claim_is_ignored(
    tmp_path: Path, files: ClaimFiles, caplog: pytest.LogCaptureFixture
) -> None:
    record = make_record_with_file(tmp_path, "u", "d-0", undo=[{"step": "release", "data": {"device": "d-0"}}])
    record.updated = record.created
    assert files.read_note("u") == record
    unfinished = msgspec.structs.replace(record, owner="1-x", error="e", attempts=2, retry_at=3.0, updated=9.0)
    files.note(unfinished)
    assert files.read_note("u") == record
    files.note(msgspec.structs.replace(unfinished, undone=True))
    assert files.read_note("u") == msgspec.structs.replace(record, undone=True, state=State.UNPREPARING)
    assert files.read_note("v") is None
    assert caplog.text == ""
    files.specs.note_path("v").write_bytes(files.specs.note_path("u").read_bytes())
    assert files.read_note("v") is None
    assert "it is damaged, or belongs to another claim" in caplog.text
    cut(files.specs.note_path("u"))
    assert read_note(files.specs, "u") is None


# --- two instances ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def while_file_changes(
    call: str, text: str, work: Callable[[], Coroutine[Any, Any, object]]
) -> Iterator[list[asyncio.Task[object]]]:
    """Before the first such file operation, lets another instance run ``work`` for at most 0.4 s."""
    loop, tasks = asyncio.get_running_loop(), list[Any]()

    def run_work() -> None:
        tasks.append(asyncio.run_coroutine_threadsafe(work(), loop))
        with contextlib.suppress(TimeoutError):
            tasks[0].result(0.4)

    with failing_calls(0, call, text=text, when=lambda number: number == 1, do=run_work):
        yield tasks


async def test_a_note_never_outlives_its_record_if_another_instance_unprepares_the_claim(tmp_path: Path) -> None:
    api, later = FakeApiServer(), PlainDriver()
    ref, other_ref = (api.allocate(n, n, "d-0", DRIVER) for n in "ab")
    async with (
        running_manager(tmp_path, PlainDriver(), api) as old_manager,
        running_manager(tmp_path, PlainDriver(), api) as new_manager,
    ):
        with while_file_changes("open", ".record'", lambda: new_manager.claims.unprepare([ref])) as tasks:
            await old_manager.prepare(ref)
        await asyncio.wrap_future(tasks[0])
        assert not old_manager.claims.files.specs.note_path("a").exists()
    async with running_manager(tmp_path, later, api) as restarted:
        assert await restarted.records() == {}
        assert not isinstance(await restarted.prepare(other_ref), Exception)
        assert later.prepared == ["b"]


@pytest.mark.parametrize("caller", ["prepare", "reconcile"])
@pytest.mark.parametrize(("call", "text"), [("open", "claim_a.json'"), ("rename", "claim_a.json'")])
async def test_files_that_are_repaired_while_another_instance_unprepares_the_claim_are_removed(
    tmp_path: Path, caller: str, call: str, text: str
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, PlainDriver(), api) as old_manager,
        running_manager(tmp_path, PlainDriver(), api) as new_manager,
    ):
        await old_manager.prepare(ref)
        old_manager.claims.files.specs.path("a").unlink()
        with while_file_changes(call, text, lambda: new_manager.claims.unprepare([ref])) as tasks:
            if caller == "prepare":
                await old_manager.prepare(ref)
            else:
                await old_manager.claims.reconciler.once(ask_server=False)
        await asyncio.wrap_future(tasks[0])
        await wait_until(lambda: not old_manager.claims.tasks.uids)
        assert await new_manager.records() == {}
        assert list(old_manager.settings.cdi_root.iterdir()) == []


@pytest.mark.parametrize("is_orphan", [False, True])
async def test_files_of_a_claim_without_a_record_are_kept_while_another_instance_prepares_the_claim(
    tmp_path: Path, is_orphan: bool
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with (
        running_manager(tmp_path, PlainDriver(), api) as old_manager,
        running_manager(tmp_path, PlainDriver(), api) as new_manager,
    ):
        if is_orphan:
            make_record_with_file(tmp_path, "a", "d-0")
        with while_file_changes("unlink", "claim_a.json'", lambda: new_manager.claims.prepare([ref])) as tasks:
            if is_orphan:
                await old_manager.claims.reconciler.once(ask_server=False)
            else:
                assert await old_manager.unprepare(ref) == ()
        await asyncio.wrap_future(tasks[0])
        assert await new_manager.records() == {"a": "Prepared"}
        assert new_manager.claims.files.specs.path("a").exists()
