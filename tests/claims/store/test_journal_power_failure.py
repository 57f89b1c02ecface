"""The power fails at any moment and loses any subset of the unsynced blocks of the journal: each claim that may have
hardware is still in the journal.

A lost block has the content of the last sync, or zeros if it was beyond the end then. The file may have any length
between its length at the last sync and its last length.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dra_kubeletplugin.claims import State
from dra_kubeletplugin.claims.store.lines import parse
from dra_kubeletplugin.claims.store.records import Records
from dra_kubeletplugin.claims.store.store import Mode, RecordJob
from tests.helpers.crash.record_stores import JOURNAL, instance, make_record, open_store

BLOCK = 512  # bytes; a disk writes such a sector completely or not at all
MAX_SUBSETS = 256  # subsets of one moment; above this number, random ones are selected


class Moment(NamedTuple):
    """The journal at a power failure. ``held`` contains the devices of claims whose record was synced and whose
    unprepare had not begun.
    """

    synced: bytes
    current: bytes
    held: frozenset[str]


def moments(folder: Path) -> list[Moment]:
    """Prepares and unprepares two claims at a time. Records a moment after each system call that changes the file."""
    store = open_store(folder)
    store._work([RecordJob(Records.read_all, Mode.READ)])
    path = folder / JOURNAL
    moments_found: list[Moment] = []
    synced = path.read_bytes()
    held: set[str] = set()
    real = {name: getattr(os, name) for name in ("pwrite", "fdatasync", "ftruncate")}

    def wrap(name: str) -> Any:
        def call(*args: Any) -> Any:
            nonlocal synced
            result = real[name](*args)
            if name == "fdatasync":
                synced = path.read_bytes()
            moments_found.append(Moment(synced, path.read_bytes(), frozenset(held)))
            return result

        return call

    def do(operation: Any, *, sync: bool = False) -> None:
        (response,) = store._work([RecordJob(operation, Mode.SYNC if sync else Mode.WRITE)])
        assert not isinstance(response, BaseException), response

    with pytest.MonkeyPatch.context() as patch:
        for name in real:
            patch.setattr(os, name, wrap(name))
        chance = random.Random(1)
        for i in range(8):
            record = make_record(f"u-{i}", f"d-{i}", State.PREPARING, "1-owner", text="x" * chance.randrange(900))
            do(lambda records, record=record: records.insert(record), sync=True)
            held.add(f"d-{i}")
            fence, record.state, record.owner = record.fence, State.PREPARED, ""
            do(lambda records, record=record, fence=fence: records.update(record, fence))
            if i % 2:
                fence, record.state, record.owner = record.fence, State.UNPREPARING, "1-owner"
                do(lambda records, record=record, fence=fence: records.update(record, fence))
                held.discard(f"d-{i}")
                do(lambda records, record=record: records.delete(record.fence))
    store.journal.drop()
    store.journal.process.release()
    return moments_found


def images(moment: Moment) -> Iterator[bytes]:
    """Yields the possible contents of the disk after the failure."""
    current = moment.current
    synced = moment.synced.ljust(len(current), b"\0")
    blocks = range(0, len(current), BLOCK)
    changed = [offset for offset in blocks if current[offset : offset + BLOCK] != synced[offset : offset + BLOCK]]
    subsets: Any = itertools.product([False, True], repeat=len(changed))
    if 2 ** len(changed) > MAX_SUBSETS:
        chance = random.Random(len(current))
        subsets = ([chance.random() < 0.5 for _ in changed] for _ in range(MAX_SUBSETS))
    for lost_blocks in subsets:
        image = bytearray(current)
        for offset in itertools.compress(changed, lost_blocks):
            image[offset : offset + BLOCK] = synced[offset : offset + BLOCK]
        yield bytes(image)
        for size in {len(moment.synced), *(offset for offset in changed if offset > len(moment.synced))} - {
            len(current)
        }:
            yield bytes(image[:size])


def held(image: bytes) -> set[str]:
    records = Records()
    for line in parse(image).lines:
        records.apply(line)
    return {device for _, device in records.held_devices()}


def test_any_subset_of_unsynced_blocks_may_be_lost(tmp_path: Path) -> None:
    count = 0
    for moment in moments(tmp_path):
        for image in images(moment):
            count += 1
            assert moment.held <= held(image), image
    assert count > 500


async def test_a_start_after_a_power_failure_restores_all_claims_and_repairs_at_most_once(tmp_path: Path) -> None:
    chance = random.Random(2)
    for i, moment in enumerate(chance.sample(moments(tmp_path), 12)):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / JOURNAL).write_bytes(chance.choice(list(images(moment))))
        async with instance(folder, boot="next") as store:
            assert moment.held <= {device for _, device in await store.held()}
        async with instance(folder, boot="next") as store:
            assert moment.held <= {device for _, device in await store.held()}
            assert store.journal.report == []
