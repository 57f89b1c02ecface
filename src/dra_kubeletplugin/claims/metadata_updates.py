"""Updates the metadata of prepared claims' devices: first in the record, then in the file that containers have mounted.

The record is committed first. A write transaction then updates the file from the record, so no instance writes an older
version over a newer one. If a process dies in between, the next check of the claim's files writes the update.
The generation that a container sees never decreases. Programs in containers are not notified.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable

from ..base.json_types import JSON
from ..driver import MetadataUpdate
from ..errors import ClaimBusyError, DraError, DriverError, MetadataUpdateError, RecordsError, StoppingError, printable
from ..metadata.paths import base_request
from .inflight import Work, as_dra_error
from .metadata_files import MAX_ATTRIBUTES, generation
from .record import Record, State
from .rollback import Rollback
from .store.records import Records
from .undo_steps import CallOnLoop

log = logging.getLogger(__name__)
_EXTRA_WAIT = 5.0  # seconds beyond the timeout until a blocked thread raises: the event loop has probably ended


class MetadataUpdates:
    """Runs the updates of one driver's claims.

    Args:
        rollback: the updates use the same records, files and tasks.
        timeout: seconds that an update waits for other work on its claim. A prepare may await an update of its own claim, and that
            update must fail before the kubelet's call times out.
    """

    def __init__(self, rollback: Rollback, timeout: float) -> None:
        self.store, self.files, self.tasks = rollback.store, rollback.files, rollback.tasks
        self.transitions = rollback.transitions
        self.timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int

    def open(self) -> None:
        """Call it on the event loop. Until then, updates raise :class:`StoppingError`."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def begin(self, update: MetadataUpdate) -> Awaitable[int]:
        """Starts an update; can be called from any thread. A failure is logged, because the driver need not await the update.

        If it is called on the event loop's thread, it returns while the update is in flight. On any other thread, it returns when the
        update is complete.
        See ``Driver.update_metadata``.
        """
        call = "update_metadata()"
        if self._loop is None:
            raise StoppingError(
                f"{call}: the plugin has not opened its records yet: call it after start() has returned"
            )
        pending = CallOnLoop(call, self._apply(update), self._loop)
        if threading.get_ident() != self._thread:  # the loop's own thread must not wait for the loop
            pending.wait(self.timeout + _EXTRA_WAIT)
        return pending

    async def _apply(self, update: MetadataUpdate) -> int:
        """Applies an update as in-flight work of its claim, and returns the file's new generation. Raises :class:`DraError`."""
        try:
            if self.tasks.ending:
                raise StoppingError("update_metadata(): the plugin is shutting down")
            task = self.tasks.start(update.uid, Work.TIDY, lambda: self._update(update))
            await asyncio.wait({task}, timeout=self.timeout)
            if not task.done():
                raise ClaimBusyError(
                    f"claim {printable(update.uid)} has had other work in flight for more than {self.timeout:g} s; its metadata will "
                    "be updated when that work has ended: do not await update_metadata() in prepare; pass the metadata to prepared() "
                    "instead"
                )
            if task.cancelled():
                raise StoppingError("update_metadata(): the plugin is shutting down")
            if error := task.exception():
                raise as_dra_error(error)
        except DraError as e:
            fields = {"claim_uid": update.uid, "request": update.request}
            log.warning("device metadata is not updated: %s", e, extra=fields)
            raise
        found: int = task.result()
        return found

    async def _update(self, update: MetadataUpdate) -> int:
        def commit(records: Records) -> None:
            record = self._prepared(records, update)
            metadata = updated(record, update)
            if metadata != record.metadata:
                record.metadata = metadata
                records.update(record, record.fence)
                self.files.note(record)

        def write(records: Records) -> int:
            record = self._prepared(records, update)  # may include later updates by another instance
            try:
                self.files.put_metadata(record)
            except RecordsError as e:
                raise RecordsError(
                    f"metadata of claim {record.shown} is recorded, but its file cannot be written yet; the plugin retries: {e}"
                ) from None
            return generation(record, update.request)

        await self.store.do(commit)
        done = await self.store.do(write)
        log.info("updated device metadata", extra={"request": update.request, "generation": done})
        return done

    def _prepared(self, records: Records, update: MetadataUpdate) -> Record:
        record = self.transitions.readable(records.read(update.uid))
        if record and self.transitions.is_prepared(record):
            return record
        shown = record.shown if record else printable(update.uid)
        if record and record.state is State.PREPARING and self.transitions.has_other_owner(record):
            raise ClaimBusyError(
                f"claim {shown} is being prepared by another instance of the plugin: update its metadata later"
            )
        raise MetadataUpdateError(
            f"claim {shown} is not prepared, so it has no metadata to update: the kubelet prepares it before a container starts"
        )


def updated(record: Record, update: MetadataUpdate) -> JSON:
    """Returns the metadata of ``record`` after an update of one device, with the next generation for the file of its request.

    An update without a change does not change the generation.

    Raises :class:`MetadataUpdateError` for a claim without metadata. Raises :class:`DriverError` for an unknown request or device, or
    too many attributes.
    """
    metadata, shown = record.metadata, f"claim {record.shown}"
    if not metadata:
        raise MetadataUpdateError(
            f"{shown} has no device metadata: it was prepared by a version of the driver that wrote none"
        )
    requests = metadata["requests"]
    devices = [(r, d) for r in requests if update.request in (r, base_request(r)) for d in requests[r]]
    if not devices:
        raise DriverError(f"{shown} has no request {update.request!r}: it has {', '.join(requests)}")
    found = [(r, d) for r, d in devices if update.device in ("", d["name"], f"{d['pool']}/{d['name']}")]
    if len(found) != 1:
        names = ", ".join(f"{d['pool']}/{d['name']}" for _, d in devices)
        hint = f"device {update.device!r} matches none or several of them"
        hint = hint if update.device else "choose one with device="
        raise DriverError(f"request {update.request} of {shown} has devices {names}: {hint}")
    [(request, device)] = found
    attributes = {n: v for n, v in {**device.get("attributes", {}), **update.attributes}.items() if v is not None}
    if len(attributes) > MAX_ATTRIBUTES:
        raise DriverError(
            f"{shown}: metadata of device {device['name']}: {len(attributes)} attributes are more than {MAX_ATTRIBUTES}"
        )
    changed = {key: value for key, value in device.items() if key != "attributes"}
    if attributes:
        changed["attributes"] = attributes
    if update.network_data is not None:
        changed["networkData"] = dict(update.network_data)
    if changed == device:
        return metadata
    updates = metadata.get("updates") or {}
    base = base_request(request)
    return {
        **metadata,
        "requests": {**requests, request: [changed if d is device else d for d in requests[request]]},
        "updates": {**updates, base: updates.get(base, 0) + 1},
    }
