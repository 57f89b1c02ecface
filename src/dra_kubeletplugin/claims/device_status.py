"""Writes drivers' reports about allocated devices into ``status.devices[]`` of their claims (KEP-4817), in the background.

It uses server-side apply with its own field manager, so entries of other drivers and conditions of other writers stay.
An apply must contain all fields of its manager. Fields that this process or an earlier one reported are read back from the claim
and sent again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import msgspec

from ..base.backoff import Backoff
from ..base.json_types import JSON
from ..base.telemetry.logs import claim_fields
from ..base.telemetry.metrics import Metrics
from ..driver.status import DeviceStatus, ReportedStatus, ReportStatus
from ..errors import ApiError, describe
from ..kube import KubeClient
from ..kube.errors import BadRequestError, ConflictError, ForbiddenError, InvalidError, NotFoundError
from ..resourceapi.defaulting import now
from .claim_fields import ClaimFields, ClaimIdentity, DeviceKey
from .waits import DEFAULT, Waits

log = logging.getLogger(__name__)
APPLY = "application/apply-patch+yaml"
_AT_ONCE = 4  # claims that are written concurrently
_CONFLICTS = 5  # consecutive conflicts before a write counts as failed
_MAX_MANAGER = 128  # bytes


class _PendingStatuses(msgspec.Struct):
    """The statuses of one claim that are still to be written, and the results that callers wait for."""

    claim: ClaimIdentity
    wanted: dict[DeviceKey, DeviceStatus] = {}
    results: list[Future[bool]] = []


class DeviceStatusReporter:
    """Writes the status reports of one driver with one field manager.

    :meth:`queue` can be called from any thread. ``fault`` is why reports fail now; empty if they succeed.

    Args:
        manager: name of the field manager; cut to 128 bytes.
    """

    def __init__(self, client: KubeClient, driver: str, manager: str, metrics: Metrics, waits: Waits = DEFAULT) -> None:
        self.client = client
        self.driver = driver
        self.manager = manager.encode()[:_MAX_MANAGER].decode(errors="ignore")
        self.metrics = metrics
        self.waits = waits
        self.fault = ""
        self._pending: dict[str, _PendingStatuses] = {}  # by UID
        self._begun: asyncio.Queue[_PendingStatuses] = asyncio.Queue()  # those that have no task yet
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._loop: asyncio.AbstractEventLoop | None = None

    def of(self, claim: ClaimIdentity) -> ReportStatus:
        """Returns the function that queues a report about one device of a claim."""
        return lambda device, status: self.queue(claim, {device: status})

    def queue(self, claim: ClaimIdentity, statuses: Mapping[DeviceKey, DeviceStatus]) -> ReportedStatus:
        """Queues reports, which are written soon."""
        result: Future[bool] = Future()
        if self._loop is None:  # the loop has not started yet
            self._add(claim, statuses, result)
        else:
            try:
                self._loop.call_soon_threadsafe(self._add, claim, statuses, result)
            except RuntimeError:  # the loop is closed
                result.set_result(False)
        return ReportedStatus(result)

    def _add(self, claim: ClaimIdentity, statuses: Mapping[DeviceKey, DeviceStatus], result: Future[bool]) -> None:
        pending = self._pending.get(claim.uid)
        if pending is None:
            pending = self._pending[claim.uid] = _PendingStatuses(claim)
            self._begun.put_nowait(pending)
        pending.wanted |= statuses
        pending.results.append(result)

    async def run(self) -> None:
        """Writes pending reports. Never returns, and no external failure ends it."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._write_pending(await self._begun.get()))

    async def _write_pending(self, pending: _PendingStatuses) -> None:
        """Writes the statuses of one claim until none is left. Statuses that are queued during a write are in the next write."""
        backoff = Backoff(*self.waits.report_retries, jitter=0.3)
        failing_since = math.inf
        while pending.wanted:
            sent, results = pending.wanted, pending.results
            pending.wanted, pending.results = {}, []
            try:
                async with self._at_once:
                    written = await self.write(pending.claim, sent)
            except Exception as e:  # an unexpected response must not end the process
                self._log_failure(pending.claim, e)
                failing_since = min(failing_since, time.monotonic())
                is_refused = isinstance(e, (BadRequestError, InvalidError))
                if not is_refused and time.monotonic() - failing_since <= self.waits.report_retry_for:
                    pending.wanted, pending.results = sent | pending.wanted, results + pending.results
                    await asyncio.sleep(backoff.next())
                    continue
                log.warning(
                    "device status is not reported and no longer retried: %s", e, extra=claim_fields(pending.claim)
                )
                written = False
            else:
                self.fault = ""
                self.metrics.inc("status_reports_total", result="written" if written else "dropped")
            failing_since = math.inf
            for result in results:
                result.set_result(written)
        del self._pending[pending.claim.uid]

    def _log_failure(self, claim: ClaimIdentity, e: Exception) -> None:
        self.metrics.inc("status_reports_total", result="failed")
        hint = (
            " (set the feature deviceStatus in values.yaml, and deploy again)" if isinstance(e, ForbiddenError) else ""
        )
        reason = str(e) if isinstance(e, ApiError) else describe(e)
        fault = f"cannot write device status to claims{hint}: {reason}"
        if fault != self.fault:
            log.warning(
                "cannot write device status to claims%s: %s",
                hint,
                reason,
                extra=claim_fields(claim),
                exc_info=None if isinstance(e, ApiError) else e,
            )
        self.fault = fault

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
                response = await self.client.raw("GET", resource.path(claim.namespace, claim.name))
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
            body = {
                "apiVersion": resource.api_version,
                "kind": "ResourceClaim",
                "metadata": {**claim._asdict(), "resourceVersion": found.metadata.resource_version},
                "status": {"devices": entries},
            }
            path = resource.path(claim.namespace, claim.name, "status")
            query = {"fieldManager": self.manager, "force": "true"}
            try:
                response = await self.client.raw("PATCH", path, body, query=query, content_type=APPLY)
            except ConflictError:
                continue  # another writer changed the claim: read it again
            try:
                if not ClaimFields.decode(response.body).device_statuses(msgspec.Raw):
                    raise BadRequestError(
                        "the API server dropped status.devices: its gate DRAResourceClaimDeviceStatus is off"
                    )
            except (ValueError, RecursionError) as e:
                what = "the API server's response to a status write is not a ResourceClaim"
                raise ApiError(f"{what}: {describe(e)}") from None
            return True
        raise ConflictError(f"claim {claim} cannot be written: other clients change it again and again")


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
