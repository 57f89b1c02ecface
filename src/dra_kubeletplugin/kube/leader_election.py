"""Leader election with a Lease of coordination.k8s.io: one of several replicas leads, and it stops before another replica starts.

It follows the rules of client-go's leaderelection. Clocks of different machines are never compared: a candidate measures on its own
clock how long the Lease has not changed. Every write contains the resource version that was read, so only one of two candidates for an
expired Lease succeeds. A leader that cannot renew within ``renew_deadline`` stops leading. The Lease lasts longer than that, so that
the leader's work can end before the next leader starts.

If the Lease is deleted, its holder creates it again. A candidate that saw the holder waits until the deleted Lease would have
expired. Only a replica that starts between the deletion and the holder's next renewal does not know the
holder; it may become the leader while the holder still leads.
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

import msgspec

from ..base.json_types import JSON
from ..errors import ApiError, SettingsError, describe
from .client import KubeClient
from .errors import ConflictError, NotFoundError
from .resource import LEASES

log = logging.getLogger(__name__)
_JITTER = 1.2  # maximum jitter of a candidate, as a factor of the retry period, as in client-go
_RELEASE = 3.0  # seconds to release the lease


@dataclass(frozen=True)
class LeaseTimes:
    """Periods in seconds, with the defaults of the Kubernetes controllers.

    Raises :class:`SettingsError` if two replicas could lead at the same time.
    """

    duration: float = 15.0  # other replicas wait this long after the last renewal
    renew_deadline: float = 10.0  # a leader that has not renewed for this long stops leading
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration >= 1 or not self.duration > self.renew_deadline > self.retry * _JITTER > 0:
            raise SettingsError(
                f"lease duration {self.duration:g}s must be at least 1s and above the renew deadline "
                f"{self.renew_deadline:g}s, which must be above {_JITTER:g} times the retry period {self.retry:g}s"
            )

    @property
    def slack(self) -> float:
        """Seconds between the moment when one leader stops and the earliest moment when the next starts."""
        return self.duration - self.renew_deadline


class _LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None


def since_boot() -> float:
    """Returns the seconds since boot, including sleep. This clock cannot be set back. Source: clock_gettime(2)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderElector:
    """Takes part in the election for one Lease.

    ``leader`` is set while this process leads, and ``lost`` when it has stopped leading. ``lost`` is never cleared: work of the
    leader, such as a thread in a vendor's library, may still run, so only a new process may lead again.
    ``holder`` is the leader according to the Lease as last read. ``fault`` is why the election cannot take place now; empty if it can.

    Args:
        identity: identity of this process, unique in the cluster.
        clock: returns monotonic seconds. It must include the time when the machine sleeps, because another replica may lead meanwhile.
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
        self._record: _LeaseSpec | None = None
        self._seen_at = 0.0  # local time when the record last changed
        self._renewed_at = 0.0  # local time when the last successful renewal was sent

    @property
    def leads(self) -> bool:
        """Whether this process leads now. Unlike ``leader``, it is false at once in a process that was frozen past its deadline."""
        return self.leader.is_set() and self._remaining() > 0

    async def run(self) -> None:
        """Waits until this process becomes the leader, then renews the Lease, and returns when the process no longer leads."""
        while True:
            if await self._attempt(self.times.renew_deadline):
                break
            await asyncio.sleep(self.times.retry * random.uniform(1, _JITTER))
        log.info("became leader: lease %s/%s, identity %s", self.namespace, self.name, self.identity)
        self.leader.set()
        try:
            await self._renew()
        finally:
            self.leader.clear()
            self.lost.set()

    async def release(self) -> None:
        """Releases the lease, so that the next leader need not wait for its expiry. Call it when all work has ended."""
        if self.holder != self.identity or self._remaining() <= 0:
            return
        # After a failure the Lease expires on its own.
        with contextlib.suppress(ApiError, TimeoutError, msgspec.ValidationError):
            async with asyncio.timeout(_RELEASE):
                while True:
                    # Read first, because the server may have stored a renewal although no response arrived.
                    found = await self._read()
                    if found is None or (found.get("spec") or {}).get("holderIdentity") != self.identity:
                        return
                    now = now_exactly()
                    released = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now}
                    with contextlib.suppress(ConflictError):
                        self._store(await self.client.update(LEASES, {**found, "spec": {**found["spec"], **released}}))
                        log.info("released lease %s/%s", self.namespace, self.name)
                        return

    # --- one attempt ----------------------------------------------------------------------------

    def _remaining(self) -> float:
        """Returns the seconds for which this process may still lead."""
        return self._renewed_at + self.times.renew_deadline - self._clock()

    async def _renew(self) -> None:
        while (remaining := self._remaining()) > 0:
            if await self._attempt(remaining):
                await asyncio.sleep(min(self.times.retry, self.times.renew_deadline))
            elif self.holder != self.identity:
                log.error("lost lease %s/%s to %s", self.namespace, self.name, self.holder or "an unknown holder")
                return
            else:
                await asyncio.sleep(max(0.0, min(self.times.retry, self._remaining())))
        log.error("cannot renew lease %s/%s for %g s", self.namespace, self.name, self.times.renew_deadline)

    async def _attempt(self, limit: float) -> bool:
        """Tries once, for at most ``limit`` seconds. Returns whether this process holds the Lease. Failures are logged, not raised."""
        try:
            async with asyncio.timeout(limit):
                try:
                    held = await self._acquire_or_renew()
                except (NotFoundError, ConflictError):
                    if self._lease is None or not self.leader.is_set():
                        raise
                    # The lease was deleted or changed while this process leads: read it and decide at once.
                    self._lease = None
                    held = await self._acquire_or_renew()
        except TimeoutError:
            return self._failed(f"no response within {limit:.1f}s")
        except ApiError as e:
            if isinstance(e, (NotFoundError, ConflictError)):
                self._lease = None  # deleted, or another candidate was faster: read it again
            return False if isinstance(e, ConflictError) else self._failed(str(e))
        except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as e:
            return self._failed(f"lease {self.namespace}/{self.name} is not a Lease: {describe(e)}")
        self.fault = ""
        return held

    def _failed(self, why: str) -> bool:
        fault = f"leader election by lease {self.namespace}/{self.name}: {why}"
        if fault != self.fault:
            log.warning("cannot acquire or renew lease %s/%s: %s", self.namespace, self.name, why)
        self.fault = fault
        return False

    async def _acquire_or_renew(self) -> bool:
        sent = self._clock()
        lease = self._lease if self.holder == self.identity else None
        if lease is None and (lease := await self._read()) is not None:
            self._store(lease)
        if self.holder and self.holder != self.identity and not self._expired():
            return False
        spec = self._spec(lease)
        if lease is None:
            new_lease: JSON = {"apiVersion": LEASES.api_version, "kind": "Lease", "spec": spec}
            new_lease["metadata"] = {"name": self.name, "namespace": self.namespace}
            self._store(await self.client.create(LEASES, new_lease))
        else:
            self._store(await self.client.update(LEASES, {**lease, "spec": (lease.get("spec") or {}) | spec}))
        self._renewed_at = sent
        return True

    async def _read(self) -> JSON | None:
        try:
            return await self.client.get(LEASES, self.name, self.namespace)
        except NotFoundError as e:
            if e.names(self.name):
                return None
            raise

    def _store(self, lease: JSON) -> None:
        """Stores the lease as last seen. Raises ``msgspec.ValidationError`` for an object that is not a Lease."""
        spec = msgspec.convert(lease.get("spec") or {}, _LeaseSpec)
        if spec != self._record:
            self._record, self._seen_at = spec, self._clock()
        self._lease, self.holder = lease, spec.holder_identity or ""

    def _expired(self) -> bool:
        duration = (self._record.lease_duration_seconds if self._record else None) or self.times.duration
        return self._clock() >= self._seen_at + duration

    def _spec(self, before: JSON | None) -> JSON:
        old = msgspec.convert((before or {}).get("spec") or {}, _LeaseSpec)
        was_held = old.holder_identity == self.identity
        was_taken = before is not None and not was_held
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self.times.duration),
            "acquireTime": (old.acquire_time if was_held else None) or now_exactly(),
            "renewTime": now_exactly(),
            "leaseTransitions": (old.lease_transitions or 0) + int(was_taken),
        }


def now_exactly() -> str:
    """Returns the current time in the format of ``MicroTime``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
