"""A rolling update between versions: the older instance continues while the newer one writes the records and adds
lines to its lock file.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dra_devkit.testing import node_with
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.claims.instance_lock import InstanceLock
from dra_kubeletplugin.claims.record import VERSION, checked_line, checked_text
from dra_kubeletplugin.claims.store.records import file_name
from tests.helpers.crash.record_stores import set_version
from tests.helpers.drivers import make_toy_class

NOTHING = {"files": [], "records": [], "held": []}


def fields(path: Path) -> list[JSON]:
    """Returns the objects in the lines of a record."""
    return [msgspec.json.decode(checked_text(line) or b"") for line in path.read_bytes().splitlines()]


async def test_a_running_instance_continues_after_a_newer_one_has_written_the_records() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod("before")
        uid = (await node.claim_of("before"))["metadata"]["uid"]
        path = node.settings.records_path / file_name(uid)
        new = path.with_name("new")
        new.write_bytes(b"".join(checked_line(line | {"newer": {"a": [1]}}) for line in fields(path)))
        new.rename(path)
        await node.run_pod("after")
        assert await node.plugin.not_ready() == []
        await node.restart()  # the older version again, after a rollback of the update
        assert all(line["newer"] == {"a": [1]} for line in fields(path))
        set_version(node.settings.records_path, uid, VERSION + 1)
        await node.run_pod("next")
        assert len((await node.leftovers())["held"]) == 3
        set_version(node.settings.records_path, uid, VERSION)
        for name in ("before", "after", "next"):
            await node.delete_pod(name)
        assert await node.leftovers() == NOTHING


def test_a_lock_file_of_a_newer_version_is_read_and_a_malformed_one_still_marks_a_running_process(
    tmp_path: Path,
) -> None:
    newer, older = InstanceLock(tmp_path), InstanceLock(tmp_path)
    older.acquire()
    newer.acquire()
    path = tmp_path / f"{newer.id}.lock"
    path.write_bytes(path.read_bytes() + b'{"version": {"of": "the future"}}\n')
    (instance,) = older.others()
    assert instance.since == newer.since
    assert not older.is_newest()
    path.write_bytes(b'{"seconds": 5}\n')
    assert older.alive(newer.id)
    assert older.reap_dead() == []
    assert older.alive(newer.id)
    newer.release()
    older.release()
