"""One byte of a journal is changed, removed or doubled: no held device becomes free, and each claim is intact or
reported.

Lines are parsed one by one. So each test parses the changed line with the next line, and compares only the claims of
these two lines. `make test` checks every 97th byte of a journal of 50 claims, `make test-all` every byte.
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
STEP = 97  # a prime, so that the checked positions cover all parts of a line


@functools.cache
def written() -> bytes:
    """A journal as a plugin writes it: claims in all states, some of them unprepared. Each batch is a separate
    write.
    """
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
    """Returns whether a start on this journal reports damage."""
    parsed = parse(data)
    has_start = bool(parsed.lines and parsed.lines[0].change and parsed.lines[0].change.op == OPEN)
    return bool(parsed.damaged) or not has_start


def held_devices(records: Records) -> set[tuple[str, str]]:
    """Returns pairs of a device and the UID of its claim."""
    return {(hold.device, uid) for uid, stored in records._claims.items() for hold in stored.holds}


def changed_bytes(data: bytes, position: int) -> Iterator[tuple[str, bytes]]:
    original = data[position]
    for bit in (0, 3, 7):
        yield f"bit {bit} flipped", data[:position] + bytes([original ^ 1 << bit]) + data[position + 1 :]
    for byte in {0, ord("\n"), ord("\t")} - {original}:
        yield f"{byte} in its place", data[:position] + bytes([byte]) + data[position + 1 :]
    yield "cut", data[:position] + data[position + 1 :]
    yield "doubled", data[: position + 1] + data[position:]


class Journal(NamedTuple):
    """A journal by its lines. ``line_numbers`` contains the numbers of all lines of a claim."""

    raw: list[bytes]
    lines: list[Line]
    line_numbers: Mapping[str, Sequence[int]]


@functools.cache
def by_line() -> Journal:
    raw = written().splitlines(keepends=True)
    lines = parse(written()).lines
    assert len(raw) == len(lines)
    line_numbers: dict[str, list[int]] = {}
    for i, line in enumerate(lines):
        if line.change and line.change.uid:
            line_numbers.setdefault(line.change.uid, []).append(i)
    return Journal(raw, lines, line_numbers)


def uid_of(line: Line) -> str:
    return line.change.uid if line.change else str(decode_record(line.body).uid)


def check(journal: Journal, number: int, position: int) -> int:
    """Checks all changes of one byte of a line, and returns their number."""
    around = range(number, min(number + 2, len(journal.lines)))
    window = b"".join(journal.raw[i] for i in around)
    is_last = len(around) == 1  # a crash may have cut the last line
    changes = list(changed_bytes(window, position))
    for change, changed in changes:
        parsed = parse(changed)
        message = f"byte {position} of line {number} {change}: {changed[max(0, position - 40) : position + 40]!r}"
        heads = [line[:2] for line in parsed.lines]
        if not parsed.damaged and heads == [line[:2] for line in journal.lines[around.start : around.stop]]:
            continue
        assert parsed.damaged or is_last, message
        for uid in {uid_of(line) for line in [*parsed.lines, *(journal.lines[i] for i in around)]} - {""}:
            numbers = journal.line_numbers[uid]  # The claim of an unchanged line.
            changed_lines = [line for line in parsed.lines if uid_of(line) == uid]
            expected = content([journal.lines[i] for i in numbers])
            actual = content([
                *(journal.lines[i] for i in numbers if i < number), *changed_lines, *(journal.lines[i] for i in numbers if i not in around and i > number)
            ])  # fmt: skip
            assert held_devices(expected) <= held_devices(actual), message
            expected_record, actual_record = expected.read(uid), actual.read(uid)
            assert (actual_record is not None) or expected_record is None, message
            assert actual_record == expected_record or isinstance(actual_record, UnreadableRecord) or parsed.damaged, (
                message
            )
    return len(changes)


def check_positions(positions: range) -> int:
    journal = by_line()
    count = start = 0
    for number, raw in enumerate(journal.raw):
        first = -(-max(0, start - positions.start) // positions.step) * positions.step + positions.start
        for position in range(first, min(start + len(raw), positions.stop), positions.step):
            count += check(journal, number, position - start)
        start += len(raw)
    return count


def test_the_journal_has_claims_in_all_states() -> None:
    rows = content(parse(written()).lines).read_all()
    assert {r.state for r in rows if isinstance(r, Record)} == set(State)
    assert len(rows) == CLAIMS * 4 // 5


def test_a_change_of_some_bytes_frees_no_device() -> None:
    assert check_positions(range(0, len(written()), STEP)) > len(written()) // STEP * 6


@pytest.mark.full
@pytest.mark.parametrize("part", range(8))
def test_a_change_of_any_byte_frees_no_device(part: int) -> None:
    positions = range(part, len(written()), 8)
    assert check_positions(positions) > len(positions) * 6


def test_a_damaged_journal_without_newlines_is_read_in_linear_time() -> None:
    data = written() * 20
    parsed = parse(data.replace(b"\n", b" ") + b"\n")
    assert len(parsed.lines) > 20 * len(parse(written()).lines) * 0.9


def test_a_journal_that_is_cut_at_any_byte_equals_the_journal_after_an_earlier_write() -> None:
    """A crash may cut the last write at any byte. This is no damage, and the journal contains all earlier writes."""
    data = written()
    for position in random.Random(1).sample(range(len(data)), 60):
        parsed = parse(data[:position])
        assert not parsed.damaged
        earlier = data[: data.rfind(b"\n", 0, position) + 1]
        assert parsed.lines[: len(parse(earlier).lines)] == parse(earlier).lines
        assert len(parsed.lines) - len(parse(earlier).lines) in {0, 1}  # a last line that lost only its newline counts
        zeros = parse(data[:position] + bytes(4096))
        assert (zeros.lines[: len(parse(earlier).lines)], zeros.damaged) == (parse(earlier).lines, 0)


@pytest.mark.parametrize("damage", ["separator", "head"])
@pytest.mark.parametrize("body", [b'{"uid":"u-0","doc":1}', b'{"doc":' + b"[" * 10000 + b"]" * 10000 + b"}"])
def test_a_body_that_this_version_cannot_read_frees_no_device_of_a_damaged_line(body: bytes, damage: str) -> None:
    head = Change(PUT, "u-0", "ns/name", (("node", "d-0", "", "{}"),))
    line = encode(head, body)
    data = line.replace(b"\t", b"x") if damage == "separator" else line + line.replace(b"put", b"pot")
    parsed = parse(data)
    assert parsed.damaged
    records = content(parsed.lines)
    assert held_devices(records) == {("d-0", "u-0")}
    assert isinstance(records.read("u-0"), UnreadableRecord)


def test_parts_of_a_damaged_line_without_a_claim_have_no_effect() -> None:
    parts = [b"", b"[]", b"{}", b'{"op":"later","uid":"u-0"}']
    parsed = parse(b"\t".join(b"%08x %s" % (zlib.crc32(part), part) for part in parts) + b"\n")
    assert parsed.damaged
    assert content(parsed.lines).read_all() == []


@pytest.mark.parametrize("part", range(10))
async def test_a_start_on_a_journal_with_a_wrong_byte_keeps_all_devices_and_reports_the_damage(
    tmp_path: Path, part: int
) -> None:
    data = written()
    had = {device for device, _ in held_devices(content(parse(data).lines))}
    position = random.Random(part).randrange(len(data))
    for change, changed in changed_bytes(data, position):
        folder = tmp_path / change
        folder.mkdir()
        (folder / "records.journal").write_bytes(changed)
        async with instance(folder) as store:
            assert had <= {device for _, device in await store.held()}
            assert is_noticed(changed) is bool(store.journal.report)
        async with instance(folder) as store:
            assert had <= {device for _, device in await store.held()}
            assert store.journal.report == []
