"""A rolling update between versions: the older instance goes on while the newer one migrates the records and adds to its mark."""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path

import msgspec

from dra_kubeletplugin.claims.instances import InstanceLock, OpenDatabase
from dra_kubeletplugin.claims.store.schema import SCHEMA
from dra_kubeletplugin.plugin.instances import is_newest
from dra_kubeletplugin.testing import node_with
from tests.helpers.drivers import toy

NOTHING = {"files": [], "records": [], "held": []}


async def test_a_running_instance_works_on_after_a_newer_one_has_migrated_the_records() -> None:
    async with node_with(toy()) as node:
        await node.run_pod("before")
        before = (await node.claim_of("before"))["metadata"]["uid"]
        db = sqlite3.connect(node.settings.records_path, isolation_level=None, timeout=60)
        db.execute("BEGIN IMMEDIATE")
        db.execute("ALTER TABLE claims ADD COLUMN newer TEXT NOT NULL DEFAULT 'by default'")
        db.execute("UPDATE claims SET newer = 'kept', doc = json_set(doc, '$.newer', json('{\"a\": [1]}'))")
        db.execute("CREATE TABLE newer (uid TEXT)")
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        db.execute("COMMIT")
        db.close()
        await node.run_pod("after")
        assert await node.plugin.not_ready() == []
        await node.restart()  # the older version again: it is rolled back
        db = sqlite3.connect(node.settings.records_path, timeout=60)
        select = "SELECT newer, json_extract(doc, '$.newer.a[0]') FROM claims WHERE uid = ?"
        assert db.execute(select, (before,)).fetchone() == ("kept", 1)
        assert db.execute("SELECT count(*) FROM claims WHERE newer = 'by default'").fetchone() == (1,)
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA + 1,)
        db.close()
        for name in ("before", "after"):
            await node.delete_pod(name)
        assert await node.leftovers() == NOTHING


def test_a_mark_with_fields_of_a_newer_version_is_read_and_of_another_shape_is_still_a_life(tmp_path: Path) -> None:
    newer, older = InstanceLock(tmp_path), InstanceLock(tmp_path)
    older.acquire()
    newer.acquire()
    opened = OpenDatabase(3, ((1, 2), None, None))
    newer.note_records(opened)
    path = tmp_path / f"{newer.id}.lock"

    def write(content: bytes) -> None:
        with path.open("r+b") as file:
            file.write(b"%s\n%08x\n" % (content, zlib.crc32(content)))

    content = msgspec.json.decode(path.read_bytes().partition(b"\n")[0])
    content["version"] = {"of": "the future"}
    content["opened"]["more"] = 1
    write(msgspec.json.encode(content))
    (seen,) = older.others()
    assert (seen.opened, seen.since) == (opened, content["since"])
    assert not is_newest(older)
    write(b'{"since": {"seconds": 5}}')
    assert older.alive(newer.id)
    assert older.reap_dead() == []
    assert older.alive(newer.id)
    newer.release()
    older.release()
