"""A driver whose hardware is a folder, and which can kill its own process between any two effects.

A device is taken in two steps, one file each, made exclusively: a second holder is a violation, written down where the test
finds it. KILL_AT names a point; the process kills itself there with SIGKILL, once (the first time it gets there after
KILL_SKIP times).
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra_kubeletplugin import (
    Claim,
    ContainerEdits,
    Device,
    Driver,
    Health,
    PreparedClaim,
    PreparedDevice,
    RecoveredClaim,
    RetryableError,
)
from dra_kubeletplugin.cdi import ClaimSpecs, directory
from dra_kubeletplugin.claims import RecordStore, State
from dra_kubeletplugin.claims.reconcile import Reconciler
from dra_kubeletplugin.claims.store import journal
from dra_kubeletplugin.claims.store.journal import Journal
from dra_kubeletplugin.claims.store.records import Records
from dra_kubeletplugin.claims.store.recovery import Recovery
from dra_kubeletplugin.claims.transitions import Transitions
from dra_kubeletplugin.plugin.grpc import NodeService

HARDWARE = Path(os.environ["CRASH_HARDWARE"])
FAULTS = HARDWARE.parent / "faults"
KILL_AT = os.environ.get("KILL_AT", "")
RECOVERED = {"from": "hardware"}
SURROGATE = "a vendor's text \udcff"  # cannot be encoded
DELAY = float(os.environ.get("CRASH_DELAY", "0"))
DEVICES = int(os.environ.get("CRASH_DEVICES", "4"))
_skip = int(os.environ.get("KILL_SKIP", "0"))

PREPARE_POINTS = (
    "prepare: before record",
    "prepare: after record",
    "prepare: before hardware",
    "prepare: between two steps of hardware",
    "prepare: after hardware",
    "prepare: before CDI file",
    "prepare: half a CDI file",
    "prepare: after CDI file",
    "prepare: before commit",
    "prepare: after commit",
    "prepare: before reply",
)
UNPREPARE_POINTS = (
    "unprepare: before record",
    "unprepare: after record",
    "unprepare: before CDI file",
    "unprepare: after CDI file",
    "unprepare: before hardware",
    "unprepare: between two steps of hardware",
    "unprepare: after hardware",
    "unprepare: before commit",
    "unprepare: after commit",
    "unprepare: before reply",
)
REPAIR_POINTS = (
    "repair: before filling",
    "repair: after filling",
    "repair: before making",
    "repair: after making",
    "repair: before setting aside",
    "repair: after setting aside",
    "repair: before the name",
    "repair: after the name",
    "repair: after opening",
    "recovery: before merge",
    "recovery: after merge",
    "reconcile: before orphans",
    "reconcile: after orphans",
)


def reach(point: str) -> None:
    global _skip
    if point != KILL_AT:
        return
    if _skip:
        _skip -= 1
        return
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # a thread may run on for a moment; it must do nothing more


class Crash(Driver):
    name = "crash.example.com"
    metadata = True  # one more kind of file that must be there and must go

    def devices(self) -> list[Device]:
        if fault("devices-hangs"):
            time.sleep(2)
        if fault("devices-raises"):
            raise OSError("the bus does not answer")
        if fault("devices-answers-anything"):
            return [None, "c-0", Device("C 0")]  # type: ignore[list-item]
        gone = "c-3" if asked("device-gone") else ""
        return [Device(f"c-{i}", {"index": i}) for i in range(DEVICES) if f"c-{i}" != gone]

    def health(self) -> dict[str, Health]:
        if fault("health-raises"):
            raise ValueError(SURROGATE)
        if fault("health-answers-anything"):
            return {7: "fine"}  # type: ignore[dict-item]
        return {"c-2": Health(healthy=False, message="it smokes")} if asked("device-sick") else {}

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        if fault("prepare-hangs"):
            time.sleep(2)
        if fault("prepare-raises"):
            raise RuntimeError(SURROGATE)
        if fault("prepare-stops-iteration"):
            next(iter(()))
        if fault("prepare-exits"):
            raise SystemExit(7)
        if fault("prepare-cancels"):
            raise asyncio.CancelledError
        if fault("prepare-answers-nothing"):
            return None  # type: ignore[return-value]
        reach("prepare: before hardware")
        for d in claim.devices:
            claim.on_undo("release", device=d.name)
            take(d.name, "a", claim.uid)
            if DELAY:
                time.sleep(DELAY)
            while asked("prepare-held"):
                time.sleep(0.01)
            reach("prepare: between two steps of hardware")
            take(d.name, "b", claim.uid)
        reach("prepare: after hardware")
        if fault("prepare-answers-anything"):  # when all is done, so that all has to be undone
            return [d.name for d in claim.devices]  # type: ignore[misc]
        return [d.prepared(ContainerEdits(env={f"CRASH_{d.name[2:]}": claim.uid})) for d in claim.devices]

    def unprepare(self, claim: PreparedClaim) -> None:
        reach("unprepare: before hardware")
        if fault("unprepare-hangs"):
            time.sleep(2)
        if fault("unprepare-raises"):
            raise OSError(SURROGATE)
        for d in claim.devices:
            if d.data == RECOVERED:  # its undo steps were lost with its record
                give(d.name, "b", claim.uid)
                give(d.name, "a", claim.uid)

    def undo_release(self, claim: PreparedClaim, device: str) -> None:
        if fault("undo-raises"):
            raise StopAsyncIteration
        give(device, "b", claim.uid)
        reach("unprepare: between two steps of hardware")
        if DELAY:
            time.sleep(DELAY)
        give(device, "a", claim.uid)
        reach("unprepare: after hardware")

    def recover(self) -> list[RecoveredClaim]:
        if fault("recover-raises") or asked("recover-fails"):
            raise OSError("the bus does not answer")
        by_uid: dict[str, list[str]] = {}
        for path in sorted(HARDWARE.glob("*.a")):
            by_uid.setdefault(path.read_text(), []).append(path.stem)
        return [
            RecoveredClaim(
                uid=uid,
                devices=[
                    PreparedDevice(request="", pool=self.settings.node_name, name=n, data=RECOVERED) for n in names
                ],
            )
            for uid, names in by_uid.items()
        ]


def take(device: str, step: str, uid: str) -> None:
    """A file that is made with its content or not at all, as a register is written."""
    path = HARDWARE / f"{device}.{step}"
    written = HARDWARE.parent / f"{uid}.{device}.{step}"
    written.write_text(uid)
    try:
        os.link(written, path)
    except FileExistsError:
        holder = path.read_text()
        (HARDWARE / f"VIOLATION-{device}-{uid}").write_text(f"{uid} took {device}.{step}, which {holder} holds")
        raise RetryableError(f"{device} is held by {holder}") from None
    finally:
        written.unlink()


def give(device: str, step: str, uid: str) -> None:
    path = HARDWARE / f"{device}.{step}"
    if path.exists() and path.read_text() == uid:
        path.unlink()


# --- points outside the driver: around the framework's own effects ------------------------------------


def around(owner: Any, name: str, before: Callable[..., None], after: Callable[..., None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        result = original(*args, **kwargs)
        after(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def instrument() -> None:
    """Wraps the framework's own steps. What a transaction did is remembered until it is committed."""
    done: list[str] = []

    def in_transaction(owner: Any, name: str, phase: str) -> None:
        """``before`` is killed inside the transaction, ``after`` when it is on disk."""

        def before(*_: Any) -> None:
            reach(phase.format("before"))
            done.append(phase.format("after"))

        around(owner, name, before, lambda *_: None)

    def committed(self: Any, operations: Any, **_: Any) -> None:
        points, done[:] = list(done), []
        for point in points:
            reach(point)

    in_transaction(Transitions, "begin", "prepare: {} record")
    in_transaction(Transitions, "end", "unprepare: {} record")
    in_transaction(Records, "delete", "unprepare: {} commit")
    in_transaction(Recovery, "_merge", "recovery: {} merge")
    original_update = Records.update

    def update(self: Records, record: Any, fence: Any) -> bool:
        if record.state is State.PREPARED:
            reach("prepare: before commit")
            done.append("prepare: after commit")
        return original_update(self, record, fence)

    Records.update = update  # type: ignore[method-assign]
    around(RecordStore, "_attempt", lambda *_, **__: done.clear(), committed)
    for name, word in (("write", "prepare"), ("remove", "unprepare")):
        around(
            ClaimSpecs,
            name,
            lambda *_, word=word: reach(f"{word}: before CDI file"),
            lambda *_, word=word: reach(f"{word}: after CDI file"),
        )
    for owner, name, what in (
        (Journal, "_keep_aside", "repair: {} setting aside"),
        (Journal, "_rebuild", "repair: {} filling"),
        (journal, "write_new", "repair: {} making"),
        (Journal, "_open", "repair: {} opening"),
        (Reconciler, "_orphans", "reconcile: {} orphans"),
    ):
        around(
            owner,
            name,
            lambda *_, w=what, **__: reach(w.format("before")),
            lambda *_, w=what, **__: reach(w.format("after")),
        )
    around(directory, "_write_all", lambda *_: None, lambda *_: reach("prepare: half a CDI file"))
    rename = Path.rename

    def renamed(self: Path, target: Any) -> Any:
        if self.name == ".records.journal.new":
            reach("repair: before the name")
        result = rename(self, target)
        if self.name == ".records.journal.new":
            reach("repair: after the name")
        return result

    Path.rename = renamed  # type: ignore[method-assign]
    for method in ("prepare", "unprepare"):
        original = getattr(NodeService, method)

        async def replying(self: Any, request: Any, kind: Any, original: Any = original, method: str = method) -> Any:
            answer = await original(self, request, kind)
            if request.claims:
                reach(f"{method}: before reply")
            return answer

        setattr(NodeService, method, replying)


def note_syncs() -> None:
    """Notes the size of the journal at its last sync: a power failure keeps at least that much."""
    attempt, replace = RecordStore._attempt, Journal._replace

    def note(journal: Journal) -> None:
        if journal.file:
            note = HARDWARE.parent / "synced"
            note.with_suffix(".new").write_text(str(journal.file.end))
            note.with_suffix(".new").rename(note)

    def synced_attempt(self: Any, operations: Any, *, sync: bool) -> Any:
        out = attempt(self, operations, sync=sync)
        if sync:
            note(self.journal)
        return out

    def replaced(self: Any, *args: Any, **options: Any) -> None:
        replace(self, *args, **options)
        note(self)

    RecordStore._attempt = synced_attempt  # type: ignore[method-assign]
    Journal._replace = replaced  # type: ignore[method-assign]


def inject() -> None:
    """Faults of the disk that a test turns on while the process runs, by writing their names into a folder."""
    attempt = RecordStore._attempt
    write = directory._write_all

    def failing(self: Any, operations: Any, **options: Any) -> Any:
        if fault("eio") or fault("eio-again"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return attempt(self, operations, **options)

    def full(fd: int, data: bytes) -> None:
        if asked("cdi-full"):
            write(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(fd, data)

    RecordStore._attempt = failing  # type: ignore[method-assign]
    directory._write_all = full


def fault(name: str) -> bool:
    """Whether a fault is asked for; it happens once."""
    try:
        (FAULTS / name).unlink()
    except FileNotFoundError:
        return False
    return True


def asked(name: str) -> bool:
    """Whether a fault that lasts is asked for."""
    return (FAULTS / name).exists()


if HARDWARE.is_dir():  # in the plugin's process; a test that imports the names of the points changes nothing in its own
    note_syncs()
    instrument()
    inject()
