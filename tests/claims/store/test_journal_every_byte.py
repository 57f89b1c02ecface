"""One byte of a journal is flipped, cut or doubled: no device becomes free that had a holder, and each claim is intact or reported.

The whole journal of 50 claims takes about a minute; `make test` checks every 97th position of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.record import UnreadableRecord
from dra_kubeletplugin.claims.store.journal_file import new_header
from dra_kubeletplugin.claims.store.lines import OPEN, encode, parse
from dra_kubeletplugin.claims.store.records import Records
from tests.helpers.crash.record_stores import DRIVER, instance, make_record

CLAIMS = 50
STEP = 97  # a prime, so that each run meets all parts of a line
Held = Mapping[str, set[str]]  # device to claim UIDs


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
            assert records.mark(record, fence)
            write()
        if i % 5 == 3:
            assert records.delete(record.fence)
            write()
        if i % 10 == 0:
            records.set_meta("key", str(i))
            write()
    return b"".join(out)


def content(data: bytes) -> tuple[Records, bool]:
    """Returns what a start reads, and whether it notices damage."""
    found = parse(data)
    records = Records()
    for line in found.lines:
        if not (line.change and line.change.op == OPEN):
            records.apply(line)
    has_start = bool(found.lines and found.lines[0].change and found.lines[0].change.op == OPEN)
    return records, bool(found.damaged) or not has_start


def held(records: Records) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for stored in records._claims.values():
        for hold in stored.holds:
            out.setdefault(hold.device, set()).add(hold.uid)
    return out


def harms(data: bytes, at: int) -> Iterator[tuple[str, bytes]]:
    one = data[at]
    for bit in (0, 3, 7):
        yield f"bit {bit} flipped", data[:at] + bytes([one ^ 1 << bit]) + data[at + 1 :]
    for other in {0, ord("\n"), ord("\t")} - {one}:
        yield f"{other} in its place", data[:at] + bytes([other]) + data[at + 1 :]
    yield "cut", data[:at] + data[at + 1 :]
    yield "doubled", data[: at + 1] + data[at:]


def check(data: bytes, at: int, before: Mapping[str, Record], had: Held) -> None:
    for what, harmed in harms(data, at):
        records, noticed = content(harmed)
        where = f"byte {at} {what}: {harmed[max(0, at - 40) : at + 40]!r}"
        now = held(records)
        for device, uids in had.items():
            assert uids <= now.get(device, set()), f"{device} is free; {where}"
        for uid, record in before.items():
            row = records.read(uid)
            if isinstance(row, UnreadableRecord):
                assert noticed, where
            else:
                assert row == record or noticed, f"{uid} is {row}; {where}"
                assert row is not None, where
        assert noticed or records.uids() == before.keys(), where


def sweep(positions: range) -> None:
    data = written()
    records, damaged = content(data)
    assert not damaged
    before = {r.uid: r for r in records.read_all() if isinstance(r, Record)}
    assert {r.state for r in before.values()} == set(State)
    had = held(records)
    assert len(before) == CLAIMS * 4 // 5
    for at in positions[: len(data)]:
        check(data, at, before, had)


def test_some_bytes_may_be_flipped_cut_or_doubled() -> None:
    sweep(range(0, len(written()), STEP))


@pytest.mark.full
@pytest.mark.parametrize("part", range(8))
def test_any_byte_may_be_flipped_cut_or_doubled(part: int) -> None:
    size = len(written())
    sweep(range(size * part // 8, size * (part + 1) // 8))


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


@pytest.mark.parametrize("part", range(10))
async def test_a_start_on_a_journal_with_a_wrong_byte_keeps_all_devices_and_reports(tmp_path: Path, part: int) -> None:
    data = written()
    had = held(content(data)[0])
    chance = random.Random(part)
    at = chance.randrange(len(data))
    for what, harmed in harms(data, at):
        folder = tmp_path / what
        folder.mkdir()
        (folder / "records.journal").write_bytes(harmed)
        async with instance(folder) as store:
            assert had.keys() <= {device for _, device in await store.held()}
            assert content(harmed)[1] is bool(store.journal.report)
        async with instance(folder) as store:
            assert had.keys() <= {device for _, device in await store.held()}
            assert store.journal.report == []
