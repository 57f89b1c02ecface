"""One byte of a journal is flipped, cut or doubled: no device becomes free that had a holder, and each claim is intact or reported.

Lines are parsed one by one. So each change is parsed within its line and the next, and then only the claims that these two lines are
about are compared. `make test` checks every 97th byte of a journal of 50 claims, `make test-all` each one.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.record import UnreadableRecord, decode_record
from dra_kubeletplugin.claims.store.journal_file import new_header
from dra_kubeletplugin.claims.store.lines import OPEN, PUT, Change, Line, encode, parse
from dra_kubeletplugin.claims.store.records import Records
from tests.helpers.crash.record_stores import DRIVER, instance, make_record

CLAIMS = 50
STEP = 97  # a prime, so that each run meets all parts of a line


@functools.cache
def written() -> bytes:
    """A journal as a plugin writes it: claims in all states, some of them ended, and each batch a write of its own."""
    records = Records()
    out = [encode(new_header(DRIVER, 1, 1))]

    def write() -> None:
        out.append(records.changed_lines())
        records.commit()

    for i in range(CLAIMS):
        record = make_record(
            f"u-{i}", f"d-{i % 40}-{i}", State.PREPARING, "1-owner", undo=[{"step": "s", "data": {"i": i}}]
        )
        if i % 7 == 0:
            record.devices[0]["shareID"] = f"share-{i}"
            record.devices[0]["takes"] = {"capacity": {"lanes": "2"}}
        if i % 11 == 0:
            record.devices.append({"request": "r", "pool": "other", "device": f"admin-{i}", "adminAccess": True})
        records.insert(record)
        write()
        if i % 5:
            fence, record.state, record.owner = record.fence, State.PREPARED, ""
            record.doc["text"] = (
                'tab \t, newline \n and a text that looks like a part: 00000000 {"op":"delete","uid":"u-1"}'
            )
            assert records.update(record, fence)
            write()
        if i % 5 in {2, 3}:
            fence, record.state, record.owner = record.fence, State.UNPREPARING, "1-owner"
            assert records.update(record, fence)
            write()
        if i % 5 == 3:
            assert records.delete(record.fence)
            write()
        if i % 10 == 0:
            records.set_meta("key", str(i))
            write()
    return b"".join(out)


def content(lines: Sequence[Line]) -> Records:
    records = Records()
    for line in lines:
        records.apply(line)
    return records


def is_noticed(data: bytes) -> bool:
    """Whether a start on this journal notices damage."""
    found = parse(data)
    has_start = bool(found.lines and found.lines[0].change and found.lines[0].change.op == OPEN)
    return bool(found.damaged) or not has_start


def held(records: Records) -> set[tuple[str, str]]:
    """Returns devices with their claims."""
    return {(hold.device, uid) for uid, stored in records._claims.items() for hold in stored.holds}


def harms(data: bytes, at: int) -> Iterator[tuple[str, bytes]]:
    one = data[at]
    for bit in (0, 3, 7):
        yield f"bit {bit} flipped", data[:at] + bytes([one ^ 1 << bit]) + data[at + 1 :]
    for other in {0, ord("\n"), ord("\t")} - {one}:
        yield f"{other} in its place", data[:at] + bytes([other]) + data[at + 1 :]
    yield "cut", data[:at] + data[at + 1 :]
    yield "doubled", data[: at + 1] + data[at:]


class Journal(NamedTuple):
    """A journal by its lines; ``of`` has the numbers of all lines of a claim."""

    raw: list[bytes]
    lines: list[Line]
    of: Mapping[str, Sequence[int]]


@functools.cache
def by_line() -> Journal:
    raw = written().splitlines(keepends=True)
    lines = parse(written()).lines
    assert len(raw) == len(lines)
    of: dict[str, list[int]] = {}
    for i, line in enumerate(lines):
        if line.change and line.change.uid:
            of.setdefault(line.change.uid, []).append(i)
    return Journal(raw, lines, of)


def uid_of(line: Line) -> str:
    return line.change.uid if line.change else str(decode_record(line.body).uid)


def check(journal: Journal, number: int, at: int) -> int:
    """Checks all harms at one byte of a line, and returns how many."""
    around = range(number, min(number + 2, len(journal.lines)))
    window = b"".join(journal.raw[i] for i in around)
    is_last = len(around) == 1  # a crash may have cut it
    harmed_windows = list(harms(window, at))
    for what, harmed in harmed_windows:
        found = parse(harmed)
        where = f"byte {at} of line {number} {what}: {harmed[max(0, at - 40) : at + 40]!r}"
        plain = [line[:2] for line in found.lines]
        if not found.damaged and plain == [line[:2] for line in journal.lines[around.start : around.stop]]:
            continue
        assert found.damaged or is_last, where
        for uid in {uid_of(line) for line in [*found.lines, *(journal.lines[i] for i in around)]} - {""}:
            own = journal.of[uid]  # of a claim that there is
            mine = [line for line in found.lines if uid_of(line) == uid]
            before = content([journal.lines[i] for i in own])
            after = content([
                *(journal.lines[i] for i in own if i < number), *mine, *(journal.lines[i] for i in own if i not in around and i > number)
            ])  # fmt: skip
            assert held(before) <= held(after), where
            old, new = before.read(uid), after.read(uid)
            assert (new is not None) or old is None, where
            assert new == old or isinstance(new, UnreadableRecord) or found.damaged, where
    return len(harmed_windows)


def sweep(positions: range) -> int:
    journal = by_line()
    count = start = 0
    for number, raw in enumerate(journal.raw):
        first = -(-max(0, start - positions.start) // positions.step) * positions.step + positions.start
        for at in range(first, min(start + len(raw), positions.stop), positions.step):
            count += check(journal, number, at - start)
        start += len(raw)
    return count


def test_the_journal_has_claims_in_all_states() -> None:
    rows = content(parse(written()).lines).read_all()
    assert {r.state for r in rows if isinstance(r, Record)} == set(State)
    assert len(rows) == CLAIMS * 4 // 5


def test_some_bytes_may_be_flipped_cut_or_doubled() -> None:
    assert sweep(range(0, len(written()), STEP)) > len(written()) // STEP * 6


@pytest.mark.full
@pytest.mark.parametrize("part", range(8))
def test_any_byte_may_be_flipped_cut_or_doubled(part: int) -> None:
    positions = range(part, len(written()), 8)
    assert sweep(positions) > len(positions) * 6


def test_a_damaged_journal_without_newlines_is_read_in_linear_time() -> None:
    data = written() * 20
    found = parse(data.replace(b"\n", b" ") + b"\n")
    assert len(found.lines) > 20 * len(parse(written()).lines) * 0.9


def test_a_journal_that_is_cut_anywhere_is_the_journal_after_an_earlier_write() -> None:
    """A crash may cut the last write at any byte. That is no damage, and all earlier writes count."""
    data = written()
    for at in random.Random(1).sample(range(len(data)), 60):
        found = parse(data[:at])
        assert not found.damaged
        earlier = data[: data.rfind(b"\n", 0, at) + 1]
        assert found.lines[: len(parse(earlier).lines)] == parse(earlier).lines
        assert len(found.lines) - len(parse(earlier).lines) in {0, 1}  # a last line that only lost its newline counts
        zeros = parse(data[:at] + bytes(4096))
        assert (zeros.lines[: len(parse(earlier).lines)], zeros.damaged) == (parse(earlier).lines, 0)


@pytest.mark.parametrize("damage", ["separator", "head"])
@pytest.mark.parametrize("body", [b'{"uid":"u-0","doc":1}', b'{"doc":' + b"[" * 10000 + b"]" * 10000 + b"}"])
def test_a_body_that_this_version_cannot_read_frees_no_device_of_a_damaged_line(body: bytes, damage: str) -> None:
    head = Change(PUT, "u-0", "ns/name", (("node", "d-0", "", "{}"),))
    line = encode(head, body)
    data = line.replace(b"\t", b"x") if damage == "separator" else line + line.replace(b"put", b"pot")
    found = parse(data)
    assert found.damaged
    records = content(found.lines)
    assert held(records) == {("d-0", "u-0")}
    assert isinstance(records.read("u-0"), UnreadableRecord)


def test_parts_of_a_damaged_line_that_belong_to_no_claim_have_no_effect() -> None:
    parts = [b"", b"[]", b"{}", b'{"op":"later","uid":"u-0"}']
    found = parse(b"\t".join(b"%08x %s" % (zlib.crc32(part), part) for part in parts) + b"\n")
    assert found.damaged
    assert content(found.lines).read_all() == []


@pytest.mark.parametrize("part", range(10))
async def test_a_start_on_a_journal_with_a_wrong_byte_keeps_all_devices_and_reports(tmp_path: Path, part: int) -> None:
    data = written()
    had = {device for device, _ in held(content(parse(data).lines))}
    at = random.Random(part).randrange(len(data))
    for what, harmed in harms(data, at):
        folder = tmp_path / what
        folder.mkdir()
        (folder / "records.journal").write_bytes(harmed)
        async with instance(folder) as store:
            assert had <= {device for _, device in await store.held()}
            assert is_noticed(harmed) is bool(store.journal.report)
        async with instance(folder) as store:
            assert had <= {device for _, device in await store.held()}
            assert store.journal.report == []
