"""Leader election by a Lease of coordination.k8s.io: of several replicas one leads, and stops before another begins.

The rules are those of client-go's leaderelection. Clocks of different machines are never compared: a lease has expired when the
record has not changed for its duration on our own clock since we first saw it so. Every write names the resource version that
was read, so of two that take an expired lease one fails. Who cannot renew within ``renew_deadline`` leads no more, and the
lease lasts longer than that, so that work can end before the next leader begins.

A lease that somebody deletes is made again by its holder; who saw it held waits for its end as if it were there. (Only a replica
that starts between the deletion and the holder's next renewal knows of no holder.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from ..errors import ApiError, SettingsError, describe
from .client import KubeClient
from .resource import LEASES

log = logging.getLogger(__name__)
JSON = dict[str, Any]
_JITTER = 1.2  # the most of a retry period that a candidate adds to it, as client-go does
_RELEASE = 3.0  # seconds for giving the lease back


@dataclass(frozen=True)
class LeaseTimes:
    """Seconds; those of Kubernetes' own controllers by default.

    Raises :class:`SettingsError` where two could lead at once.
    """

    duration: float = 15.0  # others wait for this long after the last sign of life
    renew_deadline: float = 10.0  # who has not renewed for this long leads no more
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration >= 1 or not self.duration > self.renew_deadline > self.retry * _JITTER > 0:
            raise SettingsError(
                f"lease duration {self.duration:g}s must be at least 1s and above the renew deadline "
                f"{self.renew_deadline:g}s, which must be above {_JITTER:g} times the retry period {self.retry:g}s"
            )

    @property
    def slack(self) -> float:
        """Seconds between the end of one leader and the earliest beginning of the next."""
        return self.duration - self.renew_deadline


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None


def since_boot() -> float:
    """Seconds that nobody sets back. Source: clock_gettime(2)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderElector:
    """Takes part in the election for one Lease.

    ``leader`` is set while this process leads, ``lost`` once it has led and does so no more: it is not set back, because what a
    leader began (a thread in a vendor's library) may still run, and only a new process is sure to be without it.
    ``holder`` is who led when the record was last seen; ``fault`` is why the election cannot take place now.

    Args:
        identity: of this process, unique in the cluster.
        clock: seconds that only ever pass, also while the machine sleeps: others take the lease meanwhile.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
        clock: Callable[[], float] = since_boot,
    ) -> None:
        self.client = client
        self.namespace = namespace
        self.name = name
        self.identity = identity
        self.times = times or LeaseTimes()
        self.holder = ""
        self.fault = ""
        self.leader = asyncio.Event()
        self.lost = asyncio.Event()
        self._clock = clock
        self._lease: JSON | None = None  # as last seen
        self._record: _Spec | None = None
        self._seen_at = 0.0  # when the record last changed, on our clock
        self._renewed_at = 0.0  # when the last successful renewal was sent

    @property
    def leads(self) -> bool:
        """Whether this process leads now. Unlike ``leader``, false at once in a process that was frozen past its deadline."""
        return self.leader.is_set() and self._left() > 0

    async def run(self) -> None:
        """Becomes leader sooner or later, then renews, and returns when it leads no more."""
        while True:
            if await self._attempt(self.times.renew_deadline):
                break
            await asyncio.sleep(self.times.retry * random.uniform(1, _JITTER))
        log.info("leads: %s holds lease %s/%s", self.identity, self.namespace, self.name)
        self.leader.set()
        try:
            await self._renew()
        finally:
            self.leader.clear()
            self.lost.set()

    async def release(self) -> None:
        """Gives the lease back, so that another need not wait for its end. To be called when all work has ended."""
        if self.holder != self.identity or self._left() <= 0:
            return
        with contextlib.suppress(ApiError, TimeoutError, msgspec.ValidationError):  # it ends by itself
            async with asyncio.timeout(_RELEASE):
                while not await self._given_back():
                    pass

    async def _given_back(self) -> bool:
        """Read anew: a renewal whose answer was cut off has arrived, or arrives now; False where it came between."""
        found = await self._read()
        if found is None or (found.get("spec") or {}).get("holderIdentity") != self.identity:
            return True
        given = {
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "renewTime": now_exactly(),
            "acquireTime": now_exactly(),
        }
        try:
            self._see(await self.client.update(LEASES, {**found, "spec": {**found["spec"], **given}}))
        except ApiError as e:
            if e.status == 409:
                return False
            raise
        log.info("lease %s/%s given back", self.namespace, self.name)
        return True

    # --- one attempt ----------------------------------------------------------------------------

    def _left(self) -> float:
        """Seconds for which this process may still lead."""
        return self._renewed_at + self.times.renew_deadline - self._clock()

    async def _renew(self) -> None:
        while (left := self._left()) > 0:
            if await self._attempt(left):
                await asyncio.sleep(min(self.times.retry, self.times.renew_deadline))
            elif self.holder != self.identity:
                log.error("lease %s/%s was taken by %s", self.namespace, self.name, self.holder or "nobody")
                return
            else:
                await asyncio.sleep(max(0.0, min(self.times.retry, self._left())))
        log.error("lease %s/%s could not be renewed for %gs", self.namespace, self.name, self.times.renew_deadline)

    async def _attempt(self, limit: float) -> bool:
        """Whether the lease is ours after one try of at most ``limit`` seconds. No fault from outside is raised."""
        try:
            async with asyncio.timeout(limit):
                try:
                    held = await self._acquire_or_renew()
                except ApiError as e:
                    if e.status not in {404, 409} or self._lease is None or not self.leader.is_set():
                        raise
                    # While we lead somebody deleted it, or wrote: what is there now decides, and at once.
                    self._lease = None
                    held = await self._acquire_or_renew()
        except TimeoutError:
            return self._failed(f"no answer within {limit:.1f}s")
        except ApiError as e:
            if e.status in {404, 409}:
                self._lease = None  # gone, or another was quicker: read again
            return False if e.status == 409 else self._failed(str(e))
        except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as e:
            return self._failed(f"lease {self.namespace}/{self.name} is no Lease: {describe(e)}")
        self.fault = ""
        return held

    def _failed(self, why: str) -> bool:
        fault = f"leader election by lease {self.namespace}/{self.name}: {why}"
        if fault != self.fault:
            log.warning("%s", fault)
        self.fault = fault
        return False

    async def _acquire_or_renew(self) -> bool:
        sent = self._clock()
        ours = self._lease is not None and self.holder == self.identity
        if not ours:
            found = await self._read()
            if found is None:
                if self.holder and self.holder != self.identity and not self._expired():
                    return False
                made: JSON = {"apiVersion": LEASES.api_version, "kind": "Lease", "spec": self._spec(None)}
                made["metadata"] = {"name": self.name, "namespace": self.namespace}
                self._see(await self.client.create(LEASES, made))
                self._renewed_at = sent
                return True
            self._see(found)
            if self.holder and self.holder != self.identity and not self._expired():
                return False
        assert self._lease is not None
        spec = {**(self._lease.get("spec") or {}), **self._spec(self._lease)}
        self._see(await self.client.update(LEASES, {**self._lease, "spec": spec}))
        self._renewed_at = sent
        return True

    async def _read(self) -> JSON | None:
        try:
            return await self.client.get(LEASES, self.name, self.namespace)
        except ApiError as e:
            if e.status == 404 and e.names(self.name):
                return None
            raise

    def _see(self, lease: JSON) -> None:
        """Raises ``msgspec.ValidationError`` for what is no Lease."""
        spec = msgspec.convert(lease.get("spec") or {}, _Spec)
        if spec != self._record:
            self._record, self._seen_at = spec, self._clock()
        self._lease, self.holder = lease, spec.holder_identity or ""

    def _expired(self) -> bool:
        duration = (self._record.lease_duration_seconds if self._record else None) or self.times.duration
        return self._clock() >= self._seen_at + duration

    def _spec(self, before: JSON | None) -> JSON:
        old = msgspec.convert((before or {}).get("spec") or {}, _Spec)
        kept = old.holder_identity == self.identity
        taken = before is not None and not kept
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self.times.duration),
            "acquireTime": (old.acquire_time if kept else None) or now_exactly(),
            "renewTime": now_exactly(),
            "leaseTransitions": (old.lease_transitions or 0) + int(taken),
        }


def now_exactly() -> str:
    """As a ``MicroTime`` is written."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
