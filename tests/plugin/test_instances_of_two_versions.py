"""A rolling update between versions: the older instance goes on while the newer one writes the records and adds to its mark."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from dra_kubeletplugin.claims.instances import InstanceLock
from dra_kubeletplugin.claims.record import Record
from dra_kubeletplugin.claims.store.journal_file import JournalFile
from dra_kubeletplugin.claims.store.lines import FORMAT
from dra_kubeletplugin.plugin.instances import is_newest
from dra_kubeletplugin.testing import node_with
from tests.helpers.drivers import make_toy_class

NOTHING = {"files": [], "records": [], "held": []}


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replaces each JSON text of the journal, as a newer version compacts it."""

    def part(text: bytes) -> bytes:
        new = change(text[9:])
        return b"%08x %s" % (zlib.crc32(new), new)

    lines = [b"\t".join(map(part, line.split(b"\t"))) for line in path.read_bytes().splitlines()]
    new = path.with_name("new")
    new.write_bytes(b"\n".join(lines) + b"\n")
    new.rename(path)


async def test_a_running_instance_works_on_after_a_newer_one_has_written_the_records() -> None:
    def newer(text: bytes) -> bytes:
        found = msgspec.json.decode(text)
        if found.get("op") == "open":
            found |= {"format": FORMAT + 1, "generation": 9, "newer": 1}
        elif "doc" in found:
            found |= {"newer": "kept", "doc": found["doc"] | {"newer": {"a": [1]}}}
        return msgspec.json.encode(found)

    async with node_with(make_toy_class()) as node:
        await node.run_pod("before")
        before = (await node.claim_of("before"))["metadata"]["uid"]
        path = node.settings.records_path
        rewrite(path, newer)
        text = b'{"op":"later","what":[1]}'
        line = b"%08x %s" % (zlib.crc32(text), text)
        with path.open("ab") as file:
            file.write(line + b"\t" + line + b"\n")
        await node.run_pod("after")
        assert await node.plugin.not_ready() == []
        await node.restart()  # the older version again: it is rolled back
        file = JournalFile(path)
        assert not file.fault
        assert file.header.format == FORMAT + 1
        record = file.records.read(before)
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


def test_a_mark_with_fields_of_a_newer_version_is_read_and_of_another_shape_is_still_a_life(tmp_path: Path) -> None:
    newer, older = InstanceLock(tmp_path), InstanceLock(tmp_path)
    older.acquire()
    newer.acquire()
    newer.note_records(3)
    path = tmp_path / f"{newer.id}.lock"

    def write(content: bytes) -> None:
        with path.open("r+b") as file:
            file.write(b"%s\n%08x\n" % (content, zlib.crc32(content)))

    content = msgspec.json.decode(path.read_bytes().partition(b"\n")[0])
    content["version"] = {"of": "the future"}
    write(msgspec.json.encode(content))
    (seen,) = older.others()
    assert (seen.generation, seen.since) == (3, content["since"])
    assert not is_newest(older)
    write(b'{"since": {"seconds": 5}}')
    assert older.alive(newer.id)
    assert older.reap_dead() == []
    assert older.alive(newer.id)
    newer.release()
    older.release()
