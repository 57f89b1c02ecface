"""A person, another instance or the disk changes the folder of the records: each fault leads to its repair, and no device gets a second
holder.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_kubeletplugin.claims import Record, RecordStore, State
from dra_kubeletplugin.claims.record import encode_record
from dra_kubeletplugin.claims.store.files import LOCK, forget, read_rows, synced_path
from dra_kubeletplugin.claims.store.records import NODE_FILE, RECOVER, Records, file_name
from dra_kubeletplugin.claims.store.store import Mode
from dra_kubeletplugin.errors import DeviceHeldError, RecordsError
from tests.helpers.crash.file_faults import failing_calls
from tests.helpers.crash.record_stores import (
    RECORDS,
    damage_body,
    insert,
    instance,
    kill,
    make_record,
    make_record_with_file,
    open_store,
)

pytestmark = pytest.mark.usefixtures("no_leak")


def states(path: Path) -> dict[str, str]:
    """Returns the state of each claim in the files, by UID."""
    return {row.uid: str(row.state) if isinstance(row, Record) else "Unreadable" for row in read_rows(path)}


async def check_held(store: RecordStore, *devices: str) -> None:
    """Checks that each device has exactly one holder that is not superseded, in memory and in the files, and gets no second one."""
    await store.check_files()
    for rows in (await store.everything(), read_rows(store.path)):
        holders = [d["device"] for row in rows if isinstance(row, Record) and not row.superseded for d in row.devices]
        assert {device: holders.count(device) for device in devices} == dict.fromkeys(devices, 1), rows
    for device in devices:
        with pytest.raises(DeviceHeldError):
            await insert(store, make_record("thief", device))


async def recovered(store: RecordStore) -> None:
    """Ends a recovery, as after recover() of a driver that reports no claim."""

    await store.do(lambda records: records.clear_meta(RECOVER))


async def end(store: RecordStore, uid: str) -> None:
    """Ends a claim in the order of a rollback: first its note, then its record."""

    def drop(records: Records) -> None:
        store.folder.specs.remove_note(uid)
        records.forget(uid)

    await store.do(drop)


# --- another instance -------------------------------------------------------------------------------


async def test_a_change_in_the_same_step_of_the_clock_by_an_instance_that_has_ended_is_seen(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        async with instance(tmp_path) as other:
            await insert(store, make_record("a", "d-0"))
            modified = store.path.stat().st_mtime_ns
            await insert(other, make_record("b", "d-1"))
            os.utime(store.path, ns=(modified, modified))
        os.utime(store.path, ns=(modified, modified))
        assert set(await store.held()) == {("node", "d-0"), ("node", "d-1")}


# --- removed files ----------------------------------------------------------------------------------


def remove_file(path: Path) -> None:
    (path / "a.json").unlink()


def remove_both_names(path: Path) -> None:
    for file in (path / "a.json", Path(synced_path(path, "a.json"))):
        file.unlink()


def remove_all_files(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


def replace_by_an_empty_folder(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.mkdir()


def remove_node_file(path: Path) -> None:
    (path / NODE_FILE).unlink()


def damage_node_file(path: Path) -> None:
    (path / NODE_FILE).write_bytes(b"{}")


REMOVALS = [
    *(remove_file, remove_both_names, remove_all_files, shutil.rmtree, replace_by_an_empty_folder),
    *(remove_node_file, damage_node_file),
]


@pytest.mark.parametrize("found_by", ["the check", "a transaction", "another instance", "a restart", "a start"])
@pytest.mark.parametrize("kind", ["with a note", "without a note", "in flight"])
@pytest.mark.parametrize("removal", REMOVALS)
async def test_a_removed_claim_is_written_again_as_long_as_something_shows_that_it_has_not_ended(
    tmp_path: Path, removal: Callable[[Path], object], kind: str, found_by: str
) -> None:
    store = open_store(tmp_path)
    await recovered(store)
    if kind == "with a note":
        record = make_record_with_file(tmp_path, "a", "d-0")
    elif kind == "without a note":
        record = make_record("a", "d-0")
    else:
        record = make_record("a", "d-0", State.PREPARING, store.folder.process.id)
    await insert(store, record)
    if found_by == "a start":
        await kill(store)
    removal(store.path)
    match found_by:
        case "the check":
            await store.check_files()
        case "a transaction":
            await insert(store, make_record("b", "d-1"))
        case "another instance":
            async with instance(tmp_path) as other:
                await insert(other, make_record("b", "d-1"))
                await store.check_files()
    if found_by != "a start":
        await store.close()
        store.folder.process.release()
    # Without a note, only memory and the second name show that the claim has not ended.
    is_lost = kind != "with a note" and (
        removal is remove_both_names
        or (found_by == "a start" and removal not in (remove_file, remove_node_file, damage_node_file))
    )
    async with instance(tmp_path) as store:
        await store.all()
        assert states(store.path).get("a") == (None if is_lost else str(record.state))
        if not is_lost:
            await check_held(store, "d-0")
        if removal not in (remove_file, remove_both_names):
            assert await store.recovering()


async def test_a_claim_that_is_forgotten_while_the_plugin_runs_does_not_come_back(tmp_path: Path) -> None:
    async with instance(tmp_path) as store, instance(tmp_path) as other:
        await store.all()
        for uid in "ab":
            await insert(store, make_record_with_file(tmp_path, uid, f"d-{uid}"))
        await other.all()
        forget(store.path, 1, "a", lambda: store.folder.specs.remove_note("a"))
        for opened in (store, other):
            await opened.check_files()
            assert set(await opened.held()) == {("node", "d-b")}
        await insert(other, make_record("c", "d-a"))
        await check_held(store, "d-a", "d-b")


# --- a replaced folder ------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["the worker", "an instance that has not seen its changes", "a start"])
async def test_an_older_copy_of_the_folder_replaces_neither_newer_claims_nor_newer_versions(
    tmp_path: Path, first: str
) -> None:
    worker, idle = open_store(tmp_path), open_store(tmp_path)
    await recovered(worker)
    await insert(worker, make_record_with_file(tmp_path, "ended", "d-0"))
    await insert(worker, preparing := make_record("committed", "d-1", State.PREPARING, worker.folder.process.id))
    await insert(worker, in_flight := make_record("in-flight", "d-2", State.PREPARING, worker.folder.process.id))
    await insert(worker, failed := make_record("failed", "d-3"))
    await idle.all()
    shutil.copytree(worker.path, tmp_path / "backup")
    # These changes are not in the copy.
    committed = make_record_with_file(tmp_path, "committed", "d-1", created=preparing.created)
    assert await worker.do(lambda records: records.update(committed, preparing.fence))
    await end(worker, "ended")
    await insert(worker, make_record_with_file(tmp_path, "new", "d-0"))
    in_flight.undo = [{"step": "s", "data": {}}]
    assert await worker.do(lambda records: records.update(in_flight, in_flight.fence))
    fence, failed.state = failed.fence, State.UNPREPARING
    assert await worker.do(lambda records: records.update(failed, fence))
    if first == "a start":
        await kill(worker)
        await kill(idle)
    shutil.rmtree(worker.path)
    shutil.copytree(tmp_path / "backup", worker.path)
    if first == "a start":
        stores = [open_store(tmp_path)]
    else:
        stores = [worker, idle] if first == "the worker" else [idle, worker]
    for store in [*stores, *stores]:
        await store.check_files()
    for store in stores:
        assert await store.recovering()
        await check_held(store, "d-0", "d-1", "d-2", "d-3")
        rows = {row.uid: row for row in await store.all()}
        if first != "a start":
            assert (rows["in-flight"].undo, rows["failed"].state) == (in_flight.undo, State.UNPREPARING)
        assert {uid: str(rows[uid].state) for uid in ("new", "committed")} == dict.fromkeys(
            ("new", "committed"), "Prepared"
        )
        assert "ended" not in rows or rows["ended"].superseded, (
            "the driver must not undo it: its device has a new holder"
        )
        await store.close()
        store.folder.process.release()


async def test_a_claim_that_another_instance_has_ended_is_not_added_to_a_new_folder(tmp_path: Path) -> None:
    async with instance(tmp_path) as store, instance(tmp_path) as other:
        await store.all()
        await insert(store, make_record_with_file(tmp_path, "prepared", "d-1"))
        await insert(store, make_record("failed", "d-2", State.UNPREPARING))
        await store.all()
        for uid in ("prepared", "failed"):
            await end(other, uid)
        await insert(other, make_record("next", "d-2"))
        await insert(other, make_record("in-flight", "d-1", State.PREPARING, other.folder.process.id))
        shutil.rmtree(store.path)
        await other.check_files()
        await store.check_files()
        assert states(store.path) == {"in-flight": "Preparing", "next": "Prepared"}
        await check_held(store, "d-1", "d-2")


async def test_a_folder_that_is_replaced_in_a_transaction_gets_its_changes(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await insert(store, make_record("a", "d-0"))
        calls = list[int]()

        def operation(records: Records) -> None:
            if not calls:
                replace_by_an_empty_folder(store.path)
            calls.append(1)
            if records.read("b") is None:
                records.insert(make_record("b", "d-1"))

        await store.do(operation)
        assert len(calls) == 2
        assert set(states(store.path)) == {"a", "b"}
        assert await store.recovering()


async def test_an_equal_copy_of_the_folder_or_of_a_record_is_not_written_again(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await recovered(store)
        record = make_record_with_file(tmp_path, "a", "d-0")
        await insert(store, record)
        shutil.copytree(store.path, tmp_path / "copy")
        store.path.rename(tmp_path / "away")
        (tmp_path / "copy").rename(store.path)
        inode = (store.path / "a.json").stat().st_ino
        await store.check_files()
        assert (store.path / "a.json").stat().st_ino == inode
        record.updated = record.created  # as in the note
        (store.path / "a.json").write_bytes(encode_record(record, record.holds()))
    async with instance(tmp_path) as store:
        await store.all()
        assert (store.path / "a.json").stat().st_ino == inode


@pytest.mark.parametrize("is_removed", [True, False])
@pytest.mark.parametrize("is_rebooted", [True, False])
async def test_a_note_of_an_earlier_boot_is_only_used_if_the_whole_folder_was_lost(
    tmp_path: Path, is_removed: bool, is_rebooted: bool
) -> None:
    async with instance(tmp_path) as store:
        await recovered(store)
        await insert(store, make_record("b", "d-1"))
    make_record_with_file(tmp_path, "a", "d-0")
    if is_removed:
        shutil.rmtree(store.path)
    async with instance(tmp_path, boot="next boot" if is_rebooted else "boot") as store:
        await store.all()
        assert ("a" in states(store.path)) is (is_removed or not is_rebooted)
        assert await store.recovering() is (is_removed or not is_rebooted)


# --- damaged files ----------------------------------------------------------------------------------


def in_place(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.unlink()
        make(file)

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda file: file.write_bytes(b""),
    "garbage": lambda file: file.write_bytes(os.urandom(8192)),
    "a wrong byte": lambda file: file.write_bytes(file.read_bytes().replace(b'"uid"', b'"uie"', 1)),
    "another claim": lambda file: shutil.copy(file.with_name("b.json"), file),
    "a large file": lambda file: os.truncate(file, 1 << 30),
    "a pipe": in_place(os.mkfifo),
    "a link": in_place(lambda file: file.symlink_to("b.json")),
}


@pytest.mark.parametrize("copy", ["memory", "memory of another instance", "a note", "the last sync", "no copy"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_a_damaged_file_is_written_again_from_its_copy_or_stays(
    tmp_path: Path, damage: Callable[[Path], object], copy: str
) -> None:
    first = open_store(tmp_path)
    await recovered(first)
    await insert(first, make_record_with_file(tmp_path, "a", "d-0") if copy == "a note" else make_record("a", "d-0"))
    await insert(first, make_record("b", "d-1"))
    if copy == "the last sync":
        await first.do(lambda records: records.update(make_record("a", "d-0"), make_record("a", "d-0").fence))
    if not copy.startswith("memory"):
        await kill(first)
    damage(first.path / "a.json")
    boot = "next boot" if copy == "the last sync" else "boot"
    store = first if copy == "memory" else open_store(tmp_path, boot=boot)
    for _ in range(2):
        await store.check_files()
        if first is not store:
            await first.check_files()
    if copy == "no copy":
        assert states(store.path) == {"a": "Unreadable", "b": "Prepared"}
        assert await store.do(Records.damaged) == ["a"]
        assert any("a.json is damaged and has no copy" in line for line in store.folder.report)
        assert b"dra_records_damaged_total 1.0" in store.folder.metrics.text()
        async with instance(tmp_path) as later:
            assert await later.do(Records.damaged) == ["a"]
        forget(store.path, 1, "a")
        assert await store.do(Records.damaged) == []
        await check_held(store, "d-1")
    else:
        assert states(store.path) == {"a": "Prepared", "b": "Prepared"}
        assert await store.do(Records.damaged) == []
        await check_held(store, "d-0", "d-1")
        assert any("it is written again" in line for line in store.folder.report + first.folder.report)
    assert await store.recovering() is (copy in ("no copy", "memory of another instance"))
    for opened in {first, store}:
        await opened.close()
        opened.folder.process.release()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("name", ["a.json", "unknown.json", NODE_FILE])
async def test_a_folder_in_the_place_of_a_record_is_renamed_and_all_claims_work(
    tmp_path: Path, name: str, is_restarted: bool
) -> None:
    store = open_store(tmp_path)
    await recovered(store)
    await insert(store, make_record_with_file(tmp_path, "a", "d-0"))
    if is_restarted:
        await kill(store)
    (store.path / name).unlink(missing_ok=True)
    (store.path / name / "content").mkdir(parents=True)
    if is_restarted:
        store = open_store(tmp_path)
    await store.check_files()
    await check_held(store, "d-0")
    await insert(store, make_record("b", "d-1"))
    await end(store, "a")
    await check_held(store, "d-1")
    assert (store.fault, [f"{name} is a folder" in line for line in store.folder.report].count(True)) == ("", 1)
    (aside,) = store.path.glob(f"{name}.*")
    assert (aside / "content").is_dir()
    await store.close()
    store.folder.process.release()


async def test_a_file_that_is_put_back_ends_its_claim_s_damage(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await insert(store, make_record("a", "d-0"))
    content = (store.path / "a.json").read_bytes()
    (store.path / "a.json").write_bytes(b"")
    async with instance(tmp_path) as store:
        assert await store.do(Records.damaged) == ["a"]
        (store.path / "a.json").write_bytes(content)
        await store.check_files()
        assert await store.do(Records.damaged) == []
        await check_held(store, "d-0")


async def test_a_damaged_second_line_is_written_again_from_memory_or_the_note(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await store.all()
        await insert(store, make_record_with_file(tmp_path, "a", "d-0"))
        await insert(store, make_record("b", "d-1"))
        damage_body(store.path, "b")
        await store.check_files()
        assert [r.uid for r in await store.all()] == ["a", "b"]
        await kill(store)
        damage_body(store.path, "a")
    async with instance(tmp_path) as store:
        assert [r.uid for r in await store.all()] == ["a", "b"]


async def test_other_files_in_the_folder_are_ignored_and_incomplete_ones_are_removed(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await recovered(store)
        await insert(store, make_record("a", "d-0"))
        await kill(store)
    others = [
        os.fsdecode(b"\xff.json"),
        "a copy.json",
        "notes.txt",
        ".hidden.json",
        "a.json~",
        "a.damaged-x",
        "x\n.json",
    ]
    for name in others:
        (store.path / name).write_bytes(b"garbage")
    for name in (".a.json.new", "._node.json.new", ".b.json.new.new", "._probe.new"):
        (store.path / name).write_bytes(b"partial")
    (store.path / ".folder.new").mkdir()
    async with instance(tmp_path) as store:
        await check_held(store, "d-0")
        assert await store.recovering() is False
        assert {p.name for p in store.path.iterdir()} == {
            *others,
            "a.json",
            ".a.synced",
            NODE_FILE,
            LOCK,
            ".folder.new",
        }
        assert {r.uid for r in read_rows(store.path)} == {"a"}
        assert store.path.stat().st_mode & 0o777 == 0o700
        assert {(store.path / n).stat().st_mode & 0o777 for n in ("a.json", ".a.synced", NODE_FILE, LOCK)} == {0o600}


# --- two files with one device ----------------------------------------------------------------------


@pytest.mark.parametrize("is_running", [True, False])
async def test_of_two_files_with_one_device_the_one_with_a_note_or_the_older_keeps_it(
    tmp_path: Path, is_running: bool
) -> None:
    store = open_store(tmp_path)
    rows = [
        make_record("old", "d-0", created=1.0),
        make_record("new", "d-0", created=2.0),
        make_record("ghost", "d-1", created=1.0),
        make_record_with_file(tmp_path, "real", "d-1", created=2.0),
        make_record("recorded", "d-2", created=1.0),
        make_record("reported", "d-2", created=2.0, recovered=True),
        make_record("other", "d-3", created=3.0),
    ]
    # It loses d-0, so it must not cost the holder of d-3 its device.
    rows[1].devices = rows[1].devices + rows[6].devices
    await store.all()
    if not is_running:
        await kill(store)
    for row in rows:
        (store.path / file_name(row.uid)).write_bytes(encode_record(row, row.holds()))
    if not is_running:
        store = open_store(tmp_path)
    await store.check_files()
    superseded = {row.uid: row.superseded for row in await store.all()}
    assert {uid for uid, is_superseded in superseded.items() if is_superseded} == {"new", "ghost"}
    assert {uid: state for uid, state in states(store.path).items() if state != "Prepared"} == dict.fromkeys(
        ("new", "ghost"), "Unpreparing"
    )
    report = [line for line in store.folder.report if "two claims have one device" in line]
    assert len(report) == 2
    assert "two claims have one device: claim new is rolled back, and claim old keeps it" in report
    await store.close()
    store.folder.process.release()
    async with instance(tmp_path) as store:
        await store.all()
        assert not [line for line in store.folder.report if "two claims" in line], "it is reported once"


# --- the folder itself ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("not there"), os.mkfifo])
async def test_something_else_in_place_of_the_folder_is_an_error_and_loses_no_claim(
    tmp_path: Path, make: Callable[[Path], object], is_running: bool
) -> None:
    store = open_store(tmp_path)
    await insert(store, make_record("a", "d-0", State.PREPARING, store.folder.process.id))
    if not is_running:
        await kill(store)
    store.path.rename(tmp_path / "away")
    make(store.path)
    if not is_running:
        store = open_store(tmp_path)
    await store.check_files()
    assert "is not a folder: put the folder in its place" in store.fault
    with pytest.raises(RecordsError, match="is not a folder"):
        await insert(store, make_record("b", "d-0"))
    store.path.unlink()
    (tmp_path / "away").rename(store.path)
    await check_held(store, "d-0")
    await store.close()
    store.folder.process.release()


async def test_the_folder_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / RECORDS).symlink_to(tmp_path / "disk")
    for device in ("d-0", "d-1"):
        async with instance(tmp_path) as store:
            await insert(store, make_record(device, device))
            await check_held(store, device)
    assert set(states(tmp_path / "disk")) == {"d-0", "d-1"}


async def test_a_folder_without_locks_is_an_error_and_frees_nothing(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await insert(store, make_record("a", "d-0"))
        with failing_calls(errno.ENOLCK, "flock"), pytest.raises(RecordsError, match="No locks available"):
            await end(store, "a")
        await check_held(store, "d-0")


# --- writes that fail -------------------------------------------------------------------------------


async def test_a_full_disk_fails_only_the_claims_that_it_has_no_room_for(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await insert(store, make_record("kept", "d-9"))
        rows = [make_record("a", "d-0"), make_record("large", "d-1"), make_record("b", "d-2")]
        with failing_calls(errno.ENOSPC, "open", text="large"):
            a, large, b, freed = await asyncio.gather(
                *(insert(store, row) for row in rows), end(store, "kept"), return_exceptions=True
            )
        assert (a, b, freed) == (None, None, None)
        assert isinstance(large, RecordsError)
        assert "the disk is full: free space" in str(large)
        assert {r.uid for r in await store.all()} == set(states(store.path)) == {"a", "b"}
        assert not list(store.path.glob(".*.new"))
        await insert(store, rows[1])


@pytest.mark.parametrize("call", ["rename", "link", "fsync"])
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_after_a_write_of_several_files_that_fails_halfway_memory_and_files_agree(
    tmp_path: Path, call: str, number: int
) -> None:
    async with instance(tmp_path) as store:
        for uid in "abc":
            await insert(store, make_record(uid, f"d-{uid}"))

        def change(records: Records) -> None:
            for uid in "abc":
                row = records.read(uid)
                assert isinstance(row, Record)
                fence, row.state = row.fence, State.UNPREPARING
                records.update(row, fence)
            records.forget("b")
            records.insert(make_record("new", "d-b"))

        with failing_calls(errno.ENOSPC, call, when=lambda n: n >= number):
            error = (await asyncio.gather(store.do(change, Mode.SYNC), return_exceptions=True))[0]
        assert isinstance(error, RecordsError) or (call, number) in {("fsync", 2), ("fsync", 3)}
        await insert(store, make_record("later", "d-later"))
        assert {r.uid: str(r.state) for r in await store.all()} == states(store.path)
        devices = [d["device"] for row in await store.all() for d in row.devices]
        assert len(devices) == len(set(devices))
        assert not list(store.path.glob(".*.new"))


async def test_a_process_that_dies_in_a_recovery_repeats_it(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        assert await store.recovering()

        def merge(records: Records) -> None:
            records.clear_meta(RECOVER)
            records.insert(make_record("reported", "d-0", recovered=True))

        with failing_calls(errno.EIO, "rename", text="reported.json"), pytest.raises(RecordsError):
            await store.do(merge)
        await kill(store)
    async with instance(tmp_path) as store:
        assert await store.recovering()
