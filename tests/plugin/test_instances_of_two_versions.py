"""A rolling update between versions: the older instance continues while the newer one writes the records and adds
fields to its lock file.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from dra_kubeletplugin.claims.instance_lock import InstanceLock
from dra_kubeletplugin.claims.record import Record
from dra_kubeletplugin.claims.store.journal_file import JournalFile
from dra_kubeletplugin.claims.store.lines import FORMAT
from dra_kubeletplugin.plugin.instances import is_newest
from dra_kubeletplugin.testing import node_with
from tests.helpers.drivers import make_toy_class

NOTHING = {"files": [], "records": [], "held": []}


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replaces each JSON text of the journal, as a newer version compacts it."""

    def rewritten(text: bytes) -> bytes:
        new_body = change(text[9:])
        return b"%08x %s" % (zlib.crc32(new_body), new_body)

    lines = [b"\t".join(map(rewritten, line.split(b"\t"))) for line in path.read_bytes().splitlines()]
    new_body = path.with_name("new")
    new_body.write_bytes(b"\n".join(lines) + b"\n")
    new_body.rename(path)


async def test_a_running_instance_continues_after_a_newer_one_has_written_the_records() -> None:
    def add_newer_fields(text: bytes) -> bytes:
        document = msgspec.json.decode(text)
        if document.get("op") == "open":
            document |= {"format": FORMAT + 1, "generation": 9, "newer": 1}
        elif "doc" in document:
            document |= {"newer": "kept", "doc": document["doc"] | {"newer": {"a": [1]}}}
        return msgspec.json.encode(document)

    async with node_with(make_toy_class()) as node:
        await node.run_pod("before")
        uid_before = (await node.claim_of("before"))["metadata"]["uid"]
        path = node.settings.records_path
        rewrite(path, add_newer_fields)
        text = b'{"op":"later","what":[1]}'
        line = b"%08x %s" % (zlib.crc32(text), text)
        with path.open("ab") as file:
            file.write(line + b"\t" + line + b"\n")
        await node.run_pod("after")
        assert await node.plugin.not_ready() == []
        await node.restart()  # the older version again, after a rollback of the update
        file = JournalFile(path)
        assert not file.fault
        assert file.header.format == FORMAT + 1
        record = file.records.read(uid_before)
        assert isinstance(record, Record)
        assert record.doc["newer"] == {"a": [1]}
        fence = record.fence
        assert file.records.update(record, fence)
        assert b'"newer":"kept"' in file.content()
        assert line in file.content(), "a change of an unknown kind"
        file.close()
        for name in ("before", "after"):
            await node.delete_pod(name)
        assert await node.leftovers() == NOTHING


def test_a_lock_file_of_a_newer_version_is_read_and_a_malformed_one_still_marks_a_running_process(
    tmp_path: Path,
) -> None:
    add_newer_fields, older = InstanceLock(tmp_path), InstanceLock(tmp_path)
    older.acquire()
    add_newer_fields.acquire()
    add_newer_fields.note_records(3)
    path = tmp_path / f"{add_newer_fields.id}.lock"

    def write(content: bytes) -> None:
        with path.open("r+b") as file:
            file.write(b"%s\n%08x\n" % (content, zlib.crc32(content)))

    content = msgspec.json.decode(path.read_bytes().partition(b"\n")[0])
    content["version"] = {"of": "the future"}
    write(msgspec.json.encode(content))
    (instance,) = older.others()
    assert (instance.generation, instance.since) == (3, content["since"])
    assert not is_newest(older)
    write(b'{"since": {"seconds": 5}}')
    assert older.alive(add_newer_fields.id)
    assert older.reap_dead() == []
    assert older.alive(add_newer_fields.id)
    add_newer_fields.release()
    older.release()
