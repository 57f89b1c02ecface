"""CDI files: written whole or not at all, compared by content; odd ones in the folder end nothing and tell no lies."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, ContainerEdits, Driver, Pool, PreparedClaim, PreparedDevice
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import claim_files as module
from dra_kubeletplugin.claims.claim_files import ClaimFiles, record_of
from dra_kubeletplugin.claims.metadata_files import MetadataFiles
from dra_kubeletplugin.errors import DeviceHeldError, DraError, RecordsError
from tests.helpers.crash.claim_manager import FakeApiServer, running_manager
from tests.helpers.crash.record_stores import DRIVER, make_record_with_file
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")

UUID = "0b7c1f1e-5d55-4f0e-9c55-0123456789ab"


class Plain(Driver):
    """Each container gets its device's name, and as much text as ``padding`` says."""

    name = DRIVER
    padding = 0

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name, "Y": "y" * self.padding})) for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None:
        pass


def path_of(folder: Path, uid: str) -> Path:
    return ClaimSpecs(folder / "cdi", DRIVER).path(uid)


def note_of(folder: Path, uid: str) -> Path:
    return ClaimSpecs(folder / "cdi", DRIVER).note_path(uid)


Which = Callable[[Path, str], Path]


# --- whole or not at all ----------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder for CDI files of 64 KiB."""
    folder = tmp_path / "cdi"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.mounts
async def test_a_full_tmpfs_fails_the_claim_leaves_no_part_of_a_file_and_heals(tmp_path: Path, small: Path) -> None:
    api = FakeApiServer()
    first, second = (api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate(("a", "b")))
    driver = Plain()
    async with running_manager(tmp_path, driver, api) as one:
        assert not isinstance(await one.prepare(first), DraError)
        filler = small / "filler"
        filler.write_bytes(b"x" * 40_000)  # some pages are left, and a file of 30 KiB would be cut
        driver.padding = 30_000
        answer = await one.prepare(second)
        assert isinstance(answer, RecordsError)
        assert "No space left" in str(answer)
        assert [p.name for p in small.iterdir() if f"_{second.uid}." in p.name] == []
        assert await one.records() == {"a": "Prepared"}
        filler.unlink()
        assert not isinstance(await one.prepare(second), DraError)
        assert (
            json.loads(path_of(tmp_path, "b").read_text())["devices"][0]["containerEdits"]["env"][1]
            == "Y=" + "y" * 30_000
        )


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def of_another(path: Path) -> None:
    path.write_text(path.read_text().replace("X=d-0", "X=d-9"))


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def huge(path: Path) -> None:
    os.truncate(path, 1 << 40)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/x")


CHANGES = [cut, emptied, of_another, longer, huge, fifo, zeros, nowhere]


@pytest.mark.parametrize("which", [path_of, note_of])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_repetition_writes_the_file_again_unless_its_content_is_right(
    tmp_path: Path, which: Which, change: Callable[[Path], None]
) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as one:
        first = await one.prepare(ref)
        path = which(tmp_path, "a")
        await wait_until(path.exists)
        right = path.read_bytes()
        for ask in (lambda: one.prepare(ref), one.claims.reconciler.once):
            change(path)
            await ask()
            assert path.read_bytes() == right
            assert path.is_file()
            assert not path.is_symlink()
        inode = path.stat().st_ino
        assert await one.prepare(ref) == first
        assert path.stat().st_ino == inode


# --- what files tell --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [f"gpu-{UUID}", UUID, "d-0"])
@pytest.mark.parametrize("share", [None, UUID])
async def test_a_device_whose_name_ends_in_a_uuid_is_rebuilt_as_it_was(
    tmp_path: Path, device: str, share: str | None
) -> None:
    from dra_kubeletplugin import Device

    api = FakeApiServer()
    ref = api.allocate("a", "a", device, DRIVER, **({"shareID": share} if share else {}))
    async with running_manager(tmp_path, Plain(), api) as one:
        await one.inventory.update([Pool("node", [Device(device)])])
        answer = await one.prepare(ref)
        assert not isinstance(answer, DraError)
        before = (await one.claims.store.all())[0]
        one.settings.records_path.write_bytes(b"garbage" * 999)
    one.settings.records_path.write_bytes(b"garbage" * 999)
    async with running_manager(tmp_path, Plain(), api) as after:
        await after.inventory.update([Pool("node", [Device(device)])])
        (record,) = await after.claims.store.all()
        assert record.devices == before.devices
        assert [h[:3] for h in record.holds()] == [("node", device, share or "")]
        assert await after.prepare(ref) == answer
        other = api.allocate("b", "b", device, DRIVER, **({"shareID": share} if share else {}))
        assert isinstance(await after.prepare(other), DeviceHeldError)


async def test_a_copy_of_another_claim_s_file_reports_nothing_and_goes_without_touching_that_claim(
    tmp_path: Path,
) -> None:
    undone: list[str] = []

    class Noting(Plain):
        async def unprepare(self, claim: PreparedClaim) -> None:
            undone.append(claim.uid)

    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Noting(), api) as one:
        await one.prepare(ref)
        for which in (path_of, note_of):
            await wait_until(which(tmp_path, "a").exists)
            which(tmp_path, "copy").write_bytes(which(tmp_path, "a").read_bytes())
            os.utime(which(tmp_path, "copy"), (1, 1))
    one.settings.records_path.write_bytes(b"")
    async with running_manager(tmp_path, Noting(), api) as after:
        assert await after.records() == {"a": "Prepared"}
        await after.claims.reconciler.once()
        for which in (path_of, note_of):
            assert not which(tmp_path, "copy").exists()
            assert which(tmp_path, "a").exists()
        assert undone == []


async def test_an_unprepare_that_cannot_read_a_note_now_undoes_nothing_and_is_reported_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note alone tells what is to be undone, and the process has no file left to open it."""
    undone: list[str] = []

    class Noting(Plain):
        async def unprepare(self, claim: PreparedClaim) -> None:
            undone.append(claim.uid)

    def fails(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Noting(), api) as one:
        await one.prepare(ref)
        await wait_until(note_of(tmp_path, "a").exists)
        await one.claims.store.do(lambda records: records.forget("a"))
        with monkeypatch.context() as patch:
            patch.setattr(ClaimSpecs, "note", fails)
            answer = await one.unprepare(ref)
        assert isinstance(answer, RecordsError), answer
        assert await one.unprepare(ref) == ()
        assert undone == ["a"]


def noted(change: dict[str, Any]) -> Callable[[Path], None]:
    """Fields of a note, or of the document in it."""

    def write(path: Path) -> None:
        found = json.loads(path.read_text())
        outer = {k: v for k, v in change.items() if k in found}
        inner = {k: v for k, v in change.items() if k not in found}
        if "doc" in found:
            found["doc"] |= inner
        path.write_text(json.dumps(found | outer))

    return write


def nested(path: Path) -> None:
    path.write_text("[" * 100_000)


def nested_inside(path: Path) -> None:
    path.write_text('{"uid":"a","namespace":"","name":"","boot":"boot","created":1.0,"doc":' + "[" * 100_000)


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


ODD: list[Callable[[Path], None]] = [
    *CHANGES[:2], *CHANGES[4:], nested, nested_inside, a_directory, noted({"devices": 5}), noted({"devices": [1]}),
    noted({"namespace": 5}), noted({"created": "x"}), noted({"uid": "b"}), noted({"undo": [{"step": 1}]}), noted({"boot": []}),
    noted({"doc": []}), noted({"cdi": {"devices": [None]}}),
]  # fmt: skip


@pytest.mark.cases(24)
@pytest.mark.parametrize("change", ODD)
@pytest.mark.parametrize("which", [path_of, note_of])
@pytest.mark.parametrize("repair", [True, False])
async def test_a_malformed_file_ends_nothing_and_the_other_claims_are_known(
    tmp_path: Path, change: Callable[[Path], None], which: Which, repair: bool
) -> None:
    api = FakeApiServer()
    refs = [api.allocate(n, n, f"d-{i}", DRIVER) for i, n in enumerate(("a", "b"))]
    async with running_manager(tmp_path, Plain(), api) as one:
        for ref in refs:
            await one.prepare(ref)
            await wait_until(note_of(tmp_path, ref.uid).exists)
    change(which(tmp_path, "a"))
    if repair:
        one.settings.records_path.write_bytes(b"")
    async with running_manager(tmp_path, Plain(), api) as after:
        assert (await after.records())["b"] == "Prepared"
        await after.claims.reconciler.once()
        assert not isinstance(await after.prepare(refs[1]), DraError)
        assert await after.claims.faults() == []
        assert await after.unprepare(refs[1]) == ()


async def test_malformed_names_in_the_folder_end_nothing(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as one:
        await one.prepare(ref)
        prefix = path_of(tmp_path, "").name.removesuffix(".json")
        await wait_until(note_of(tmp_path, "a").exists)
        whole = note_of(tmp_path, "a").read_bytes()
        for name in (b"\xff\xfe", b"", b"a\nb", b"\xed\xa0\x80", b"x" * 150):
            for which in (path_of, note_of):
                before, after = os.fsencode(which(tmp_path, "UID")).split(b"UID")
                path = before + name + after
                with open(path, "wb") as f:  # noqa: ASYNC230, PTH123  (a name that is no text)
                    f.write(whole.replace(b'"uid":"a"', b'"uid":"' + name + b'"'))
                os.utime(path, (1, 1))
        (tmp_path / "cdi" / f".{prefix}z.tmp-9-00000000").mkdir()
        await one.claims.reconciler.once()
    one.settings.records_path.write_bytes(b"")
    async with running_manager(tmp_path, Plain(), api) as after:
        assert (await after.records())["a"] == "Prepared"
        assert await after.claims.faults() == []
        report = await after.claims.reconciler.once()
        assert "a" not in report.files_removed
        assert await after.unprepare(ref) == ()


async def test_a_uid_that_no_file_can_have_fails_its_own_claim_only(tmp_path: Path) -> None:
    api = FakeApiServer()
    refs = [api.allocate("a", "a", "d-0", DRIVER), api.allocate("n", "n\0n", "d-1", DRIVER)]
    async with running_manager(tmp_path, Plain(), api) as one:
        answers = await one.claims.prepare(refs)
        assert not isinstance(answers["a"], DraError)
        assert isinstance(answers["n\0n"], DraError)
        undone = await one.claims.unprepare(refs)
        assert undone["a"] == ()


@pytest.mark.parametrize("days", [-3650, 3650])
async def test_an_orphan_goes_also_where_the_clock_has_jumped(tmp_path: Path, days: int) -> None:
    async with running_manager(tmp_path, Plain()) as one:
        (tmp_path / "cdi").mkdir(exist_ok=True)
        orphan = path_of(tmp_path, "orphan")
        orphan.write_text("{}")
        when = time.time() + days * 86400
        os.utime(orphan, (when, when))
        await one.claims.reconciler.once()
        assert not orphan.exists()


@pytest.mark.parametrize("token", ["1", "9-deadbeef", "", "x" * 40])
async def test_what_a_writer_left_that_died_goes_also_one_that_was_process_1_elsewhere(
    tmp_path: Path, token: str
) -> None:
    async with running_manager(tmp_path, Plain()) as one, running_manager(tmp_path, Plain()) as other:
        (tmp_path / "cdi").mkdir(exist_ok=True)
        name = "." + path_of(tmp_path, "u").name.removesuffix(".json")
        left = tmp_path / "cdi" / f"{name}.tmp-{token}"
        living = tmp_path / "cdi" / f"{name}.tmp-{other.process.id}"
        for path in (left, living):
            path.touch()
        await one.claims.reconciler.once()
        assert not left.exists()
        assert living.exists()


async def test_a_file_that_appears_while_its_claim_ends_is_no_lost_record(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = api.allocate("a", "a", "d-0", DRIVER)
    async with running_manager(tmp_path, Plain(), api) as one:
        await one.prepare(ref)
        await one.unprepare(ref)

        async def gone() -> bool:
            return not await one.records() and not path_of(tmp_path, "a").exists()

        await wait_until(gone)
        async with running_manager(tmp_path, Plain(), api) as other:
            assert await other.records() == {}
            assert other.claims.store.journal.report == []


def test_the_record_of_a_file_is_the_record_that_it_was_written_for(tmp_path: Path) -> None:
    record = make_record_with_file(tmp_path, "u", "d-0", undo=[{"step": "release", "data": {"device": "d-0"}}])
    found = record_of(ClaimSpecs(tmp_path / "cdi", DRIVER), "u")
    assert found
    assert (found.devices, found.steps, found.name, found.boot_id) == (
        record.devices, record.steps, record.name, record.boot_id,
    )  # fmt: skip


# --- one file alone ----------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> ClaimFiles:
    specs = ClaimSpecs(tmp_path / "cdi", DRIVER)
    return ClaimFiles(specs, MetadataFiles(tmp_path / "plugin", specs.driver))


def failing(error: Exception) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            OSError(errno.ENOSPC, "No space left", "/x"),
            "/x cannot be written (No space left): free space on its file system",
        ),
        (
            OSError(errno.EPERM, "Not permitted", "/x"),
            "/x cannot be written (Not permitted): see the permissions and attributes",
        ),
        (
            OSError(errno.EIO, "I/O error", "/x"),
            "/x cannot be written (I/O error): see the disk and the mount that it is on",
        ),
        (OSError("odd"), "a file of the claim cannot be written (OSError: odd): see the disk"),
        (ValueError("a name\n"), "the files of the claim cannot be written: a name"),
    ],
)
def test_each_error_of_a_file_has_its_advice_and_only_a_disk_is_a_fault_until_a_probe(
    tmp_path: Path, files: ClaimFiles, error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record_with_file(tmp_path, "u", "d-0")
    with monkeypatch.context() as patch:
        patch.setattr(files.specs, "write", failing(error))
        with pytest.raises(RecordsError) as caught:
            files.put(record)
        assert says in str(caught.value)
        assert files.fault == (str(caught.value) if isinstance(error, OSError) else "")
        patch.setattr(files.specs, "probe", failing(error))
        files.probe()
        assert bool(files.fault) is isinstance(error, OSError)
    files.probe()
    assert files.fault == ""
    files.put(record)


@pytest.mark.parametrize("name", ["/cdi/x", None])
def test_a_note_that_cannot_be_read_now_names_its_file_or_the_folder(
    files: ClaimFiles, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.specs, "note", failing(OSError(errno.EIO, "I/O error", name)))
    with pytest.raises(RecordsError) as caught:
        files.read_note("u")
    assert str(caught.value) == f"{name or files.specs.root} cannot be read (I/O error): see its mount"


def test_a_record_from_its_note_is_complete_and_a_note_of_another_claim_is_none(
    tmp_path: Path, files: ClaimFiles, caplog: pytest.LogCaptureFixture
) -> None:
    record = make_record_with_file(tmp_path, "u", "d-0")
    record.doc.pop("complete")
    files.note(record)
    found = files.read_note("u")
    assert found is not None
    assert (found.doc["complete"], found.created, found.boot_id) == (True, record.created, record.boot_id)
    assert files.read_note("v") is None
    assert caplog.text == ""
    files.specs.note_path("v").write_bytes(files.specs.note_path("u").read_bytes())
    assert files.read_note("v") is None
    assert "it belongs to claim u" in caplog.text


def test_a_note_that_cannot_be_removed_stops_the_rollback_only_if_it_would_bring_the_claim_back(
    tmp_path: Path, files: ClaimFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_record_with_file(tmp_path, "u", "d-0")
    monkeypatch.setattr(files.specs, "remove_note", failing(OSError(errno.EROFS, "Read-only", "/x")))
    with pytest.raises(RecordsError, match="/x cannot be removed"):
        files.remove_note("u")
    files.specs.note_path("u").write_bytes(b"{")
    files.remove_note("u")
    assert "cannot remove the claim's note: /x cannot be removed" in caplog.text


def test_a_note_that_cannot_be_written_is_logged_and_fails_nothing(
    tmp_path: Path, files: ClaimFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = make_record_with_file(tmp_path, "u", "d-0")
    for error in (OSError(errno.ENOSPC, "No space left"), ValueError("a name")):
        monkeypatch.setattr(files.specs, "write_note", failing(error))
        files.note(record)
    assert caplog.text.count("cannot write the claim's note") == 2


def test_files_are_restored_only_where_they_differ_and_removed_all_together(tmp_path: Path, files: ClaimFiles) -> None:
    record = make_record_with_file(tmp_path, "u", "d-0")
    assert files.are_intact(record)
    assert files.restore(record) is False
    for lost in (files.specs.path("u"), files.specs.note_path("u")):
        lost.unlink()
        assert not files.are_intact(record)
        assert files.restore(record) is True
        assert files.are_intact(record)
    files.remove(record)
    assert [p.name for p in files.specs.root.iterdir()] == [files.specs.note_path("u").name]
    files.remove_all("u")
    assert list(files.specs.root.iterdir()) == []


def test_the_age_of_a_claim_s_files_is_that_of_the_newest(tmp_path: Path, files: ClaimFiles) -> None:
    make_record_with_file(tmp_path, "u", "d-0")
    for path, age in ((files.specs.path("u"), 5_000), (files.specs.note_path("u"), 1_000)):
        os.utime(path, (time.time() - age,) * 2)
    assert 1_000 <= files.uids()["u"] < 1_100
    os.utime(files.specs.path("u"), (time.time() - 100,) * 2)
    assert 100 <= files.uids()["u"] < 200
    assert module._age(tmp_path / "nowhere") > 1e9
