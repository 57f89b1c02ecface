"""The record database fails: no crash loop, nothing reset silently; set aside, rebuilt, reported."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_kubeletplugin import PreparedDevice, RecoveredClaim
from dra_kubeletplugin.claims import Record
from dra_kubeletplugin.claims.store import rows
from dra_kubeletplugin.claims.store.schema import _MIGRATIONS, SCHEMA, connect, transaction
from dra_kubeletplugin.errors import RecordsError, RecordsNewerError
from dra_kubeletplugin.testing import DriverNode, node_with
from tests.helpers.crash.record_stores import a_record, add, open_store
from tests.helpers.drivers import Toy, toy
from tests.plugin.test_node import allocate, prepare_call, ref, unprepare_call


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 + 100])


def zero(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(8192))


def garbage_inside(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:8192] = os.urandom(4096)
    path.write_bytes(data)


def vanish(path: Path) -> None:
    path.unlink()


async def broken_after(node: DriverNode, damage: Callable[[Path], None]) -> str:
    """A prepared claim, a stopped plugin, damage, and a fresh start. Answers the claim's UID."""
    await node.run_pod()
    uid: str = (await node.claim_of("pod"))["metadata"]["uid"]
    await node.stop()
    path = node.settings.records_path
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    damage(path)
    await node.start()
    return uid


@pytest.mark.parametrize("damage", [truncate, zero, garbage, garbage_inside])
async def test_a_damaged_database_is_set_aside_and_its_claims_are_known_again(damage: Callable[[Path], None]) -> None:
    cls = toy()
    async with node_with(cls, http_address="127.0.0.1:0") as node:
        uid = await broken_after(node, damage)
        folder = node.settings.plugin_dir
        (aside,) = [p for p in folder.iterdir() if ".damaged-" in p.name and not p.name.endswith(("-wal", "-shm"))]
        assert aside.name.startswith("records.db.damaged-2")
        assert (await node.leftovers()) == {"files": [uid], "records": [uid], "held": ["toy-0"]}
        assert any("set aside" in line for line in node.plugin.claims.database.report)
        assert b"dra_records_damaged_total 1.0" in node.plugin.metrics.text()
        assert not await node.plugin.not_ready()
        assert any("the record database was damaged" in line for line in await node.plugin.notes())
        # Nothing is handed out twice, and what was held can be given back.
        second = await allocate(node, "second", [{"pool": "node-1", "device": "toy-0"}])
        assert (await prepare_call(node, ref(second))).claims[second["metadata"]["uid"]].error.startswith("DEVICE_HELD")
        await node.delete_pod()
        assert (await node.leftovers())["held"] == []


async def test_a_database_that_vanished_is_rebuilt_from_cdi_files() -> None:
    async with node_with(toy()) as node:
        uid = await broken_after(node, vanish)
        assert (await node.leftovers())["held"] == ["toy-0"]
        again = await prepare_call(node, ref(await node.claim_of("pod")))
        assert list(again.claims[uid].devices[0].request_names) == ["device"]
        await node.delete_pod()
        assert (await node.leftovers())["records"] == []


async def test_what_the_driver_knows_completes_what_the_files_tell() -> None:
    class Knowing(Toy):
        uid = ""

        async def recover(self) -> list[RecoveredClaim]:
            device = PreparedDevice(request="device", pool="node-1", name="toy-0", data={"index": 0})
            lost = PreparedDevice(request="device", pool="node-1", name="toy-3", data={"index": 3})
            if not type(self).uid:
                return []  # the first start: nothing is prepared yet
            return [
                RecoveredClaim(uid=type(self).uid, namespace="default", name="known", devices=[device]),
                RecoveredClaim(uid="only-the-hardware-knows", devices=[lost]),
            ]

    async with node_with(Knowing) as node:
        await node.run_pod()
        Knowing.uid = (await node.claim_of("pod"))["metadata"]["uid"]
        await node.stop()
        garbage(node.settings.records_path)
        await node.start()
        record = await node.plugin.claims.store.get(Knowing.uid)
        assert isinstance(record, Record)
        assert record.devices[0]["data"] == {"index": 0}
        assert (await node.leftovers())["held"] == ["toy-0", "toy-3"]


async def test_damage_while_running_is_mended_at_the_next_call() -> None:
    async with node_with(toy()) as node:
        await node.run_pod()
        found = await node.claim_of("pod")
        db = node.plugin.claims.store._db
        assert db
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        garbage(node.settings.records_path)
        answer = (await unprepare_call(node, ref(found))).claims[found["metadata"]["uid"]]
        assert answer.error == ""


async def test_damage_while_running_asks_the_driver_what_it_holds() -> None:
    class Knowing(Toy):
        async def recover(self) -> list[RecoveredClaim]:
            lost = PreparedDevice(request="device", pool="node-1", name="toy-3", data={"index": 3})
            return [RecoveredClaim(uid="only-the-hardware-knows", devices=[lost])]

    async with node_with(Knowing) as node:
        db = node.plugin.claims.store._db
        assert db
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        garbage(node.settings.records_path)

        async def known() -> bool:
            try:
                return {d for _, d in await node.plugin.claims.store.held()} == {"toy-3"}
            except RecordsError:
                return False

        await node.cluster.wait("the driver's answer", known)


async def test_a_database_that_is_removed_under_a_running_plugin_is_written_again() -> None:
    async with node_with(toy()) as node:
        await node.run_pod()
        node.settings.records_path.unlink()
        await node.run_pod("second")
        await node.restart()
        assert [c[0] for c in node.driver.calls] == ["prepare", "prepare"]
        records = await node.plugin.claims.store.all()
        assert {r.name.rpartition("-t0-")[0] for r in records} == {"pod", "second"}
        await node.delete_pod()
        await node.delete_pod("second")
        assert (await node.leftovers())["records"] == []


async def test_an_instance_follows_another_that_set_the_damaged_file_aside(tmp_path: Path) -> None:
    first, second = open_store(tmp_path), open_store(tmp_path)
    await first.all()
    await second.all()
    assert first._db
    first._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    garbage(tmp_path / "records.db")
    await add(first, a_record("u", "d-0"))
    assert [r.uid for r in await second.all()] == ["u"]
    assert len([p for p in tmp_path.iterdir() if ".damaged-" in p.name and p.name.endswith("Z")]) == 1
    await first.close()
    await second.close()


# --- disks ------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of one MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    path = folder / "filler"
    with path.open("wb", buffering=0) as f:
        size = 65536
        while size:
            try:
                f.write(b"x" * size)
            except OSError:
                size //= 2
    return path


@pytest.mark.mounts
async def test_a_full_disk_is_an_error_per_claim_and_heals(small_disk: Path) -> None:
    cls = toy()
    async with node_with(cls) as node:
        await node.stop()
        shutil.copytree(node.settings.kubelet_root, small_disk / "kubelet", ignore=shutil.ignore_patterns("*.sock"))
        shutil.rmtree(node.settings.kubelet_root)
        node.settings.kubelet_root.symlink_to(small_disk / "kubelet")
        await node.start()
        claims = [await allocate(node, f"c{i}", [{"pool": "node-1", "device": f"toy-{i}"}]) for i in range(2)]
        assert not (await prepare_call(node, ref(claims[0]))).claims[claims[0]["metadata"]["uid"]].error
        filler = fill(small_disk)
        errors = []
        for _ in range(30):  # the log has some room left; then it has not
            error = (await prepare_call(node, ref(claims[1]))).claims[claims[1]["metadata"]["uid"]].error
            errors.append(error)
            await unprepare_call(node, ref(claims[1]))
            if error:
                break
        assert "the disk is full" in errors[-1] or "cannot be written" in errors[-1], errors
        assert any("disk is full" in line for line in await node.plugin.not_ready())
        filler.unlink()
        assert not (await prepare_call(node, ref(claims[1]))).claims[claims[1]["metadata"]["uid"]].error
        assert await node.plugin.not_ready() == []
        assert sorted(d for _, d in await node.plugin.claims.store.held()) == ["toy-0", "toy-1"]
        await node.stop()


@pytest.mark.mounts
async def test_a_read_only_disk_is_told_and_nothing_is_reset(tmp_path: Path) -> None:
    async with node_with(toy()) as node:
        await node.run_pod()
        found = await node.claim_of("pod")
        await node.stop()
        folder = node.settings.plugin_dir
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
            from dra_kubeletplugin.errors import SettingsError

            with pytest.raises(SettingsError, match="cannot be written"):
                await node.start()
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        await node.start()
        assert (await node.leftovers())["records"] == [found["metadata"]["uid"]]


async def test_records_that_cannot_be_used_fail_claims_and_not_the_plugin() -> None:
    async with node_with(toy()) as node:
        found = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        await node.stop()
        path = node.settings.records_path
        db = sqlite3.connect(path)
        db.execute(f"PRAGMA user_version = {SCHEMA + 2}")
        db.close()
        await node.start()
        error = (await prepare_call(node, ref(found))).claims[found["metadata"]["uid"]].error
        assert error.startswith("RECORDS_NEWER:")
        assert any("use a newer plugin" in line for line in await node.plugin.not_ready())
        assert not [p for p in path.parent.iterdir() if "damaged" in p.name]


# --- schemas ----------------------------------------------------------------------------------------


async def test_an_older_schema_is_migrated_and_keeps_every_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_with(toy()) as node:
        await node.run_pod()
        found = await node.claim_of("pod")
        await node.stop()
        db = sqlite3.connect(node.settings.records_path)
        db.execute("ALTER TABLE claims DROP COLUMN error")
        db.execute("ALTER TABLE claims DROP COLUMN attempts")
        db.execute("DROP TABLE meta")
        db.execute("PRAGMA user_version = 1")
        db.commit()
        db.close()
        await node.start()
        await prepare_call(node, ref(found))
        assert [c[0] for c in node.driver.calls] == ["prepare"]
        await node.delete_pod()
        assert (await node.leftovers())["records"] == []


async def test_one_version_newer_is_used_and_its_columns_and_fields_survive() -> None:
    """Upgrade, downgrade, upgrade: what only the newer version knows is still there."""
    async with node_with(toy()) as node:
        await node.run_pod()
        found = await node.claim_of("pod")
        uid = found["metadata"]["uid"]
        await node.stop()
        db = sqlite3.connect(node.settings.records_path)
        db.execute("ALTER TABLE claims ADD COLUMN future TEXT NOT NULL DEFAULT 'unknown'")
        db.execute("UPDATE claims SET future = 'kept', doc = json_set(doc, '$.novelty', 42)")
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        db.commit()
        db.close()
        await node.start()
        record = await node.plugin.claims.store.get(uid)
        assert record
        assert isinstance(record, Record)
        assert await node.plugin.claims.store.do(lambda db: rows.update(db, record, record.fence))
        await node.run_pod("another")
        db = sqlite3.connect(node.settings.records_path)
        assert db.execute(
            "SELECT future, json_extract(doc, '$.novelty') FROM claims WHERE uid = ?", (uid,)
        ).fetchone() == ("kept", 42)
        assert db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA + 1
        db.close()


def make(path: Path, schema: int = SCHEMA) -> None:
    """A database as an older version has made it."""
    db = sqlite3.connect(path, isolation_level=None)
    with transaction(db):
        for step in range(1, schema + 1):
            for statement in _MIGRATIONS[step]:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {schema}")
    db.close()


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_two_processes_that_migrate_at_once_do_it_once(tmp_path: Path, schema: int) -> None:
    path = tmp_path / "records.db"
    make(path, schema)
    first, second = connect(path, 1), connect(path, 1)
    for db in (first, second):
        assert db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA
        db.close()


def test_two_versions_newer_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    make(path)
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {SCHEMA + 2}")
    db.close()
    with pytest.raises(RecordsNewerError, match="use a newer plugin"):
        connect(path, 1)


async def test_a_new_database_is_whole_before_it_has_its_name(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.all()
    await store.close()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith((".records", "records"))) == ["records.db"]


@pytest.mark.mounts
async def test_a_database_file_that_turns_read_only_fails_claims_is_told_and_heals() -> None:
    async with node_with(toy()) as node:
        await node.run_pod()
        found = await node.claim_of("pod")
        second = await allocate(node, "second", [{"pool": "node-1", "device": "toy-1"}])
        await node.stop()
        path = str(node.settings.records_path)
        subprocess.run(["mount", "--bind", path, path], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
            await node.start()
            answer = await prepare_call(node, ref(second), ref(found))
            assert answer.claims[second["metadata"]["uid"]].error.startswith("RECORDS_UNAVAILABLE:")
            assert "read-only" in answer.claims[second["metadata"]["uid"]].error
            assert any("read-only" in line for line in await node.plugin.not_ready())
            assert not [p for p in node.settings.plugin_dir.iterdir() if "damaged" in p.name]
        finally:
            subprocess.run(["umount", "-l", path], check=True)
        await node.restart()
        assert not (await prepare_call(node, ref(second))).claims[second["metadata"]["uid"]].error
        assert sorted(d for _, d in await node.plugin.claims.store.held()) == ["toy-0", "toy-1"]


async def test_who_looks_at_the_records_and_leaves_takes_nothing_away() -> None:
    """`dra claims`, or another instance that ends: SQLite's last one out removes the log, and a lost lock makes it the last."""
    async with node_with(toy()) as node:
        await node.run_pod()
        store = node.plugin.claims.store
        await store.check_file()
        script = (
            "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT * FROM claims'); db.close()"
        )
        log = store.path.with_name("records.db-wal")
        before = log.stat().st_ino
        subprocess.run([sys.executable, "-c", script, str(store.path)], check=True)
        assert log.exists()
        assert log.stat().st_ino == before
        await node.delete_pod()
        db = sqlite3.connect(store.path)
        assert db.execute("SELECT count(*) FROM claims").fetchone() == (0,)
        db.close()
