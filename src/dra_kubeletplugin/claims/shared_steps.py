"""Sets up shared hardware state for the first claim that uses it, and tears it down after the last one.

The records contain which claims use a shared step; there is no separate counter. Each decision and each call of the driver is made
with the hardware lock of the step's key. The lock also excludes the other plugin instance during a rolling update. A record names the
step before the driver sets the state up, and until the driver has torn it down. The entry is ``ready`` only while the state is known to
be set up.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from ..base.settings import Settings
from ..base.telemetry.logs import claim_fields
from ..driver import Driver
from ..driver.calls import Calls
from ..driver.hardware_lock import LOCKS, HardwareLock
from ..errors import (
    ConfigError,
    DriverError,
    HardwareUnknownError,
    RecordsError,
    SharedStepError,
    printable,
)
from .record import Record
from .store.records import RECOVER, Records
from .store.store import Mode, Operation, RecordStore
from .undo_steps import mismatch, run_all, setup_name, teardown_name

log = logging.getLogger(__name__)
Entry = dict[str, Any]  # as it is recorded: {"step": name, "key": text, "data": {...}, "ready": bool}
Result = TypeVar("Result")


class _Users(msgspec.Struct):
    """The other claims that use a shared step, with their entries.

    Args:
        ready: the state is set up.
        unfinished: a set-up or a teardown did not end.
        stale: the claim was prepared before the last reboot. The state may be gone, set up, or partly set up.
        uncertain: the record is ``recovered``, and the state may have changed since the step was recorded.
        unknown: whether a claim with a ``recovered`` or unreadable record may use the state. True if ``uncertain`` is not empty.
    """

    ready: list[tuple[Record, Entry]] = []
    unfinished: list[Entry] = []
    stale: list[Entry] = []
    uncertain: list[tuple[Record, Entry]] = []
    unknown: bool = False


class SharedSteps:
    """The shared steps of one driver on one node, in one process.

    State that was set up in another boot than ``boot_id`` is never relied on. ``note`` writes the note of a record in the record thread.
    """

    def __init__(
        self,
        driver: Driver,
        calls: Calls,
        settings: Settings,
        store: RecordStore,
        boot_id: str,
        note: Callable[[Record], None],
    ) -> None:
        self.driver = driver
        self.calls = calls
        self.settings = settings
        self.store = store
        self.boot_id = boot_id
        self.note = note

    async def set_up(self, record: Record, step: str, key: str, data: Mapping[str, Any]) -> None:
        """Records that a claim in preparation uses the step, and sets the state up unless another claim uses it.

        Raises :class:`DraError`.
        """
        entry: Entry = {"step": step, "key": key, "data": dict(data), "ready": False}

        async with self._locked(key):
            own = _find(record, entry)
            if own and own["ready"]:
                if own["data"] != entry["data"]:
                    requests = ", ".join(sorted({str(d.get("request")) for d in record.devices}))
                    raise ConfigError(
                        f"claim {record.shown}: requests {requests} contradict each other on {printable(key)}, which has one "
                        f"{printable(step)} for all: {printable(own['data'])}, but {printable(data)}; write the same value for these "
                        "requests, or use separate claims"
                    )
                return

            def join(records: Records) -> list[Entry] | None:
                """Adds the entry to the record. Returns the unfinished entries to tear down first; None if the state is set up."""
                users = self._users(records, record.uid, entry)
                for user, used in (*users.ready, *users.uncertain):
                    if used["data"] != entry["data"]:
                        raise SharedStepError(
                            f"the shared step {printable(step)} of {printable(key)} is set up for claim {user.shown} with "
                            f"{printable(used['data'])}, and this claim needs {printable(entry['data'])}: it waits until that "
                            f"claim's pod has stopped"
                        )
                self._put(records, record, entry, {**entry, "ready": bool(users.ready)})
                if users.ready:
                    return None
                to_undo: list[Entry] = []
                for unfinished in (*users.unfinished, *users.stale, *([own] if own else [])):
                    if not users.unknown and all(unfinished["data"] != other["data"] for other in to_undo):
                        to_undo.append(unfinished)
                return to_undo

            to_undo = await self._write(record, entry, join, Mode.SYNC)
            if to_undo is None:
                return
            for unfinished in to_undo:
                await self._call(teardown_name(step), unfinished)
            await self._call(setup_name(step), entry)
            await self._write(record, entry, lambda rs: self._put(rs, record, entry, {**entry, "ready": True}))
            log.info("set up shared step: %s of %s", step, key)

    async def release(self, record: Record) -> None:
        """Ends the use of all shared steps of a claim, newest first, and tears down each step that no other claim uses.

        Call it when ``unprepare`` and all undo steps of the claim have succeeded.

        Raises :class:`DraError` at the end, also if only one failed; the record then still names the steps that failed.
        """
        entries = reversed(record.shared)
        await run_all(
            [(f"shared step {printable(e['step'])}", functools.partial(self._release, record, e)) for e in entries]
        )

    async def _release(self, record: Record, entry: Entry) -> None:
        def leave(records: Records) -> bool:
            """Removes the entry if another claim uses the state. Otherwise marks the entry as not ready, and returns True."""
            users = self._users(records, record.uid, entry)
            is_last = not (users.ready or users.stale or users.unknown)
            if not users.ready and users.unknown:
                log.warning(
                    "shared state stays set up, because a claim with an incomplete record may use it: %s of %s",
                    entry["step"],
                    entry["key"],
                    extra=claim_fields(record),
                )
            # A retry must not call undo steps again: they may need the state that is torn down now.
            record.undone = True
            self._put(records, record, entry, {**entry, "ready": False} if is_last else None)
            if is_last:
                self.note(record)  # if the record is lost during the teardown, the claim is not restored as prepared
            return is_last

        async with self._locked(entry["key"]):
            if await self._write(record, entry, leave):
                await self._call(teardown_name(entry["step"]), entry)
                await self._write(record, entry, lambda rs: self._put(rs, record, entry, None))
                log.info("tore down shared step: %s of %s", entry["step"], entry["key"])

    # --- records and calls ----------------------------------------------------------------------

    def _users(self, records: Records, uid: str, entry: Entry) -> _Users:
        """Raises :class:`HardwareUnknownError` if the driver may still report claims that use the state."""
        users = _Users()
        for row in records.read_all():
            if row.uid == uid or (isinstance(row, Record) and row.superseded):
                continue
            used = _find(row, entry) if isinstance(row, Record) else None
            if not isinstance(row, Record):
                users.unknown = True
            elif row.boot_id != self.boot_id:
                users.stale += [used] if used else []
            elif row.recovered:
                users.uncertain += [(row, used)] if used else []
                users.unknown = users.unknown or used is not None or row.shared_unknown
            elif used and used["ready"]:
                users.ready.append((row, used))
            elif used:
                users.unfinished.append(used)
        if not users.ready and records.has_meta(RECOVER):
            raise HardwareUnknownError(
                f"shared state is not changed: {printable(entry['step'])} of {printable(entry['key'])}. Records were lost, and "
                "recover() of the driver has not yet returned which claims use it; the plugin retries"
            )
        return users

    async def _write(
        self, record: Record, entry: Entry, operation: Operation[Result], mode: Mode = Mode.WRITE
    ) -> Result:
        """Runs an operation that changes the entry of a record. Raises the exception of the operation, or :class:`RecordsError`."""
        try:
            return await self.store.do(operation, mode)
        except RecordsError:
            # It is not known whether this write took effect, and other claims decide from the records. So a later write of this record
            # must neither remove the entry nor mark it as ready.
            record.shared = _replaced(record, entry, {**entry, "ready": False})
            raise

    def _put(self, records: Records, record: Record, entry: Entry, new: Entry | None) -> None:
        """Replaces the entry of a record, or removes it. Raises :class:`.ClaimTakenError`."""
        # Changes only this field: the event loop may add an undo step to the document at the same time.
        record.shared = _replaced(record, entry, new)
        records.update_owned(record, record.fence)

    async def _call(self, method: str, entry: Entry) -> None:
        if fault := mismatch(self.driver, method, "key", entry["data"]):
            raise DriverError(f"a shared step of another version of the driver cannot be run: {fault}")
        await self.calls(getattr(self.driver, method), entry["key"], **entry["data"])

    @contextlib.asynccontextmanager
    async def _locked(self, key: str) -> AsyncIterator[None]:
        lock = HardwareLock(self.settings.plugin_dir / LOCKS, key, self.settings.call_timeout, of_step=True)
        await lock.__aenter__()
        release = lock.release
        try:
            yield
        except asyncio.CancelledError:
            # The plugin stops. A plain method continues in its thread, and must keep the lock until it ends.
            release = functools.partial(self.calls.when_idle, lock.release)
            raise
        finally:
            release()


def _by_key(record: Record) -> dict[tuple[str, str], Entry]:
    """Returns the entries of a record by step and key."""
    return {(e["step"], e["key"]): e for e in record.shared}


def _find(record: Record, entry: Entry) -> Entry | None:
    """Returns the entry of a record for the same step and key."""
    return _by_key(record).get((entry["step"], entry["key"]))


def _replaced(record: Record, entry: Entry, new: Entry | None) -> list[Entry]:
    """Returns the entries of a record with ``new`` in the place of ``entry``, or at the end; with None, without ``entry``."""
    entries: dict[tuple[str, str], Entry | None] = {**_by_key(record), (entry["step"], entry["key"]): new}
    return [e for e in entries.values() if e]
