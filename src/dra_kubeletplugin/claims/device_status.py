"""Writes drivers' reports about allocated devices into ``status.devices[]`` of their claims (KEP-4817), in the background.

It uses server-side apply with its own field manager, so entries of other drivers and conditions of other writers stay.
An apply must contain all fields of its manager. Fields that this process or an earlier one reported are read back from the claim
and sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from ..base.backoff import Backoff
from ..base.json_types import JSON
from ..base.telemetry.logs import claim_fields
from ..base.telemetry.metrics import Metrics
from ..driver.status import DeviceStatus, ReportedStatus, StatusSink
from ..errors import ApiError, describe
from ..kube import KubeClient, Resource
from ..kube.errors import BadRequestError, ConflictError, ForbiddenError, InvalidError, NotFoundError
from ..resourceapi.defaulting import now
from .claim_fields import ClaimFields, ClaimIdentity, DeviceKey

log = logging.getLogger(__name__)
APPLY = "application/apply-patch+yaml"
_WAIT = 5.0  # seconds that a caller waits for a report to be written
_RETRY_FOR = 600.0  # seconds for which a failing report is retried
_MAX_PAUSE = 30.0
_MAX_PENDING = 1_000  # claims with pending reports; above this the oldest is dropped
_AT_ONCE = 4
_CONFLICTS = 5  # consecutive conflicts before a write counts as failed
_MAX_MANAGER = 128  # bytes


class _PendingStatuses(msgspec.Struct):
    """The statuses of one claim that are still to be written."""

    claim: ClaimIdentity
    wanted: dict[DeviceKey, DeviceStatus] = msgspec.field(default_factory=dict)
    since: float = msgspec.field(default_factory=time.monotonic)
    backoff: Backoff = msgspec.field(default_factory=lambda: Backoff(0.4, _MAX_PAUSE, jitter=0.3))
    not_before: float = 0.0
    listeners: list[Callable[[bool], object]] = msgspec.field(default_factory=list)

    def notify(self, written: bool) -> None:
        waiting, self.listeners = self.listeners, []
        for listener in waiting:
            listener(written)


class DeviceStatusReporter:
    """Writes the status reports of one driver with one field manager.

    Create it on the event loop; :meth:`queue` can be called from any thread. ``fault`` is why reports fail now; empty if they succeed.

    Args:
        manager: name of the field manager; cut to 128 bytes.
    """

    def __init__(self, client: KubeClient, driver: str, manager: str, metrics: Metrics) -> None:
        self.client = client
        self.driver = driver
        self.manager = manager.encode()[:_MAX_MANAGER].decode(errors="ignore")
        self.metrics = metrics
        self.fault = ""
        self._pending: dict[str, _PendingStatuses] = {}
        self._busy: set[str] = set()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def of(self, claim: ClaimIdentity) -> StatusSink:
        """Returns the sink for the reports of one claim."""
        return _ClaimStatus(self, claim)

    def queue(self, claim: ClaimIdentity, statuses: Mapping[DeviceKey, DeviceStatus]) -> ReportedStatus:
        """Queues reports, which are written soon."""
        done, ended = asyncio.Event(), threading.Event()
        result: list[bool] = []

        def finish(written: bool) -> None:
            result.append(written)
            done.set()
            ended.set()

        if self._loop is None:  # the loop has not started yet
            self._take(claim, statuses, finish)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
                self._loop.call_soon_threadsafe(self._take, claim, statuses, finish)

        async def wait() -> bool:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WAIT):
                    await done.wait()
            return bool(result and result[0])

        def block() -> bool:
            return ended.wait(_WAIT) and result[0]

        return ReportedStatus(wait, block)

    async def run(self) -> None:
        """Writes pending reports. Never returns, and no external failure ends it."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                for pending in self._due():
                    self._busy.add(pending.claim.uid)
                    tasks.create_task(self._work(pending))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._wake.wait()

    # --- pending reports ------------------------------------------------------------------------

    def _take(
        self, claim: ClaimIdentity, statuses: Mapping[DeviceKey, DeviceStatus], listener: Callable[[bool], object]
    ) -> None:
        pending = self._pending.pop(claim.uid, None) or _PendingStatuses(claim)
        pending.wanted.update(statuses)
        pending.listeners.append(listener)
        pending.not_before = 0.0
        self._pending[claim.uid] = pending
        while len(self._pending) > _MAX_PENDING:
            oldest = self._pending.pop(next(iter(self._pending)))
            log.warning("device status is not reported: too many reports are pending", extra=claim_fields(oldest.claim))
            oldest.notify(False)
        self._wake.set()

    def _due(self) -> list[_PendingStatuses]:
        at = time.monotonic()
        due = [p for uid, p in self._pending.items() if uid not in self._busy and p.not_before <= at]
        return due[: max(0, _AT_ONCE - len(self._busy))]

    def _pause(self) -> float:
        at = time.monotonic()
        free = [p.not_before - at for uid, p in self._pending.items() if uid not in self._busy]
        return max(0.01, min([_MAX_PAUSE, *free])) if len(self._busy) < _AT_ONCE else _MAX_PAUSE

    async def _work(self, pending: _PendingStatuses) -> None:
        uid = pending.claim.uid
        sent, listeners = dict(pending.wanted), list(pending.listeners)
        try:
            written = await self.write(pending.claim, sent)
        except ApiError as e:
            if self._gives_up(pending, e):
                self._settle(pending, sent, listeners, written=False)
        except Exception as e:  # an unexpected response must not end the process
            log.exception("unexpected failure while device status is reported", extra=claim_fields(pending.claim))
            if self._gives_up(pending, ApiError(describe(e))):
                self._settle(pending, sent, listeners, written=False)
        else:
            self.fault = ""
            self.metrics.inc("status_reports_total", result="written" if written else "dropped")
            self._settle(pending, sent, listeners, written=written)
        finally:
            self._busy.discard(uid)
            self._wake.set()

    def _settle(
        self,
        pending: _PendingStatuses,
        sent: Mapping[DeviceKey, DeviceStatus],
        listeners: list[Callable[[bool], object]],
        *,
        written: bool,
    ) -> None:
        """Removes the statuses that were sent; statuses that were queued meanwhile stay pending."""
        for listener in listeners:
            listener(written)
        pending.listeners = [t for t in pending.listeners if t not in listeners]
        pending.wanted = {k: s for k, s in pending.wanted.items() if sent.get(k) is not s}
        pending.since = time.monotonic()
        if not pending.wanted and self._pending.get(pending.claim.uid) is pending:
            del self._pending[pending.claim.uid]

    def _gives_up(self, pending: _PendingStatuses, e: ApiError) -> bool:
        """Schedules the next attempt. Returns True if the report is given up instead."""
        self.metrics.inc("status_reports_total", result="failed")
        hint = (
            " (set the feature deviceStatus in values.yaml, and deploy again)" if isinstance(e, ForbiddenError) else ""
        )
        fault = f"cannot write device status to claims{hint}: {e}"
        if fault != self.fault:
            log.warning("cannot write device status to claims%s: %s", hint, e, extra=claim_fields(pending.claim))
        self.fault = fault
        pending.not_before = time.monotonic() + pending.backoff.next()
        if time.monotonic() - pending.since > _RETRY_FOR or isinstance(e, (BadRequestError, InvalidError)):
            log.warning("device status is not reported and no longer retried: %s", e, extra=claim_fields(pending.claim))
            return True
        return False

    # --- one write ------------------------------------------------------------------------------

    async def write(
        self,
        claim: ClaimIdentity,
        wanted: Mapping[DeviceKey, DeviceStatus],
        same: Callable[[ClaimFields], bool] = lambda _: True,
    ) -> bool:
        """Writes the statuses now.

        Args:
            claim: the claim to write to.
            wanted: the statuses to write, by device.
            same: checks the claim that was read; nothing is written if this function returns False.

        Returns:
            Whether the claim has the statuses now. False if the claim is gone, no longer has the devices, or ``same`` returned False.

        Raises :class:`ApiError`.
        """
        resource = await self.client.dra("resourceclaims")
        for _ in range(_CONFLICTS):
            try:
                response = await self.client.raw(resource.path(claim.namespace, claim.name))
            except NotFoundError as e:
                if e.names(claim.name):
                    return False
                raise
            try:
                found = ClaimFields.decode(response.body)
                if found.metadata.uid != claim.uid or not same(found):
                    return False
                entries = merged(found, self.driver, self.manager, wanted)
            except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as e:
                what = f"the API server's object for claim {claim} is not a ResourceClaim"
                raise ApiError(f"{what}: {describe(e)}") from None
            if entries is None:
                return False
            try:
                await self._apply(resource, claim, found.metadata.resource_version, entries)
            except ConflictError:
                continue  # another writer changed the claim: read it again
            return True
        raise ConflictError(f"claim {claim} cannot be written: other clients change it again and again")

    async def _apply(self, resource: Resource, claim: ClaimIdentity, version: str, entries: list[JSON]) -> None:
        body = {
            "apiVersion": resource.api_version,
            "kind": "ResourceClaim",
            "metadata": {**claim._asdict(), "resourceVersion": version},
            "status": {"devices": entries},
        }
        path = resource.path(claim.namespace, claim.name, "status")
        query = {"fieldManager": self.manager, "force": "true"}
        response = await self.client.raw(path, query, method="PATCH", body=body, content_type=APPLY)
        if entries and not _has_device_statuses(response.body):
            raise BadRequestError("the API server dropped status.devices: its gate DRAResourceClaimDeviceStatus is off")


class _ClaimStatus(StatusSink):
    def __init__(self, reports: DeviceStatusReporter, claim: ClaimIdentity) -> None:
        self._reports = reports
        self._claim = claim

    def report(self, key: DeviceKey, status: DeviceStatus) -> ReportedStatus:
        return self._reports.queue(self._claim, {key: status})


def _has_device_statuses(encoded: bytes) -> bool:
    """Whether a claim that the API server returned has ``status.devices``; other fields are not decoded."""
    try:
        return bool(ClaimFields.decode(encoded).device_statuses(msgspec.Raw))
    except (ValueError, RecursionError) as e:
        raise ApiError(f"the API server's response to a status write is not a ResourceClaim: {describe(e)}") from None


def merged(
    claim: ClaimFields, driver: str, manager: str, wanted: Mapping[DeviceKey, DeviceStatus]
) -> list[JSON] | None:
    """Returns all entries that ``manager`` must apply: the entries that it applied before, updated with the new statuses.

    None if none of the wanted devices is allocated to the claim any more.
    """
    allocated = {r.key for r in claim.results(driver)}
    fresh = {k: s for k, s in wanted.items() if k in allocated}
    if not fresh:
        return None
    current = {_key(d): d for d in claim.device_statuses(dict) if d.get("driver") == driver}
    applied = _applied(claim.managed_fields(), driver, manager, current)
    out = []
    for key in sorted(allocated & (applied.keys() | fresh.keys())):
        pool, device, share = key
        entry: JSON = {"driver": driver, "pool": pool, "device": device} | ({"shareID": share} if share else {})
        report = fresh.get(key)
        out.append(entry | (report.json(current.get(key, {}), now()) if report else applied[key]))
    return out


def _key(device: Mapping[str, Any]) -> DeviceKey:
    return str(device.get("pool")), str(device.get("device")), str(device.get("shareID") or "")


def _applied(
    managed_fields: Iterable[JSON], driver: str, manager: str, current: Mapping[DeviceKey, Mapping[str, Any]]
) -> dict[DeviceKey, JSON]:
    """Returns the part of ``current`` that belongs to the field manager, according to the claim's managed fields."""
    out: dict[DeviceKey, JSON] = {}
    for entry in managed_fields:
        if (entry.get("manager"), entry.get("operation"), entry.get("subresource")) != (manager, "Apply", "status"):
            continue
        fields = ((entry.get("fieldsV1") or {}).get("f:status") or {}).get("f:devices") or {}
        for keys, owned in _items(fields):
            key = _key(keys)
            device = current.get(key)
            if keys.get("driver") != driver or device is None:
                continue
            types = {k.get("type") for k, _ in _items(owned.get("f:conditions") or {})}
            conditions = [c for c in device.get("conditions") or [] if c.get("type") in types]
            applied = {"conditions": conditions} if conditions else {}
            applied |= {
                n: device[n] for n in ("data", "networkData") if f"f:{n}" in owned and device.get(n) is not None
            }
            out[key] = applied
    return out


def _items(fields: Mapping[str, Any]) -> Iterable[tuple[JSON, JSON]]:
    """Yields the items of a keyed list from managed fields."""
    for element, below in fields.items():
        if element.startswith("k:"):
            yield json.loads(element[2:]), below
