"""The steps that checks share: creating claims with an allocation, calling the driver like a kubelet, and cleaning up."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dra_devkit.localcluster.node_reboot import empty
from dra_kubeletplugin.base.json_types import JSON

from . import allocation
from .api_server import NAMESPACE
from .catalogue import CheckFailed, CheckSkipped, DevicesMissing, expect
from .driver_command import DriverCommand
from .kubelet_client import CallResponse, ClaimResponse
from .profile import ConformanceProfile
from .surroundings import DriverSurroundings

_RETURN = 10.0  # seconds after a check until a driver that publishes must have complete slices again
REMOVAL = 2.0  # seconds after unprepare until a CDI spec must be removed


def expect_prepared(claim: Mapping[str, Any], found: CallResponse) -> ClaimResponse:
    """Returns the entry for a claim. Raises :class:`CheckFailed` for an error."""
    entry = found.of(claim)
    expect(not entry.error, f"NodePrepareResources succeeds for {claim['metadata']['name']}", entry.error)
    return entry


class Harness(DriverSurroundings):
    """The surroundings of a driver, with the steps of checks.

    Attributes:
        claims: the claims that exist, by UID.
    """

    def __init__(self, command: DriverCommand, profile: ConformanceProfile) -> None:
        super().__init__(command, profile)
        self.claims: dict[str, JSON] = {}
        self._count = 0

    async def reset(self) -> None:
        """Deletes the driver's state, all claims and all slices, and starts the driver. Raises :class:`DriverNotReady`."""
        await self.end_all()
        self.api.clear_faults()
        self.api.remove_slices()
        for name in [c["metadata"]["name"] for c in self.claims.values()]:
            self.api.remove_claim(name)
        self.claims.clear()
        self.used.clear()
        self.boot_id = None
        for folder in (self.registry, self.plugins, self.cdi.path):
            empty(folder)
        self.make_folders()
        await self.start()

    async def clean_up(self) -> None:
        """Removes injected faults and claims after a check, and starts the driver if it does not run.

        Raises:
            CheckFailed: a claim cannot be unprepared, or slices are missing.
            DriverNotReady: the driver cannot be started.
        """
        self.api.clear_faults()
        if not self.driver.alive or self.boot_id is not None:
            self.boot_id = None
            await self.restart()
        for claim in list(self.used.values()):
            await self.unprepared(claim)
        for claim in list(self.claims.values()):
            self.release(claim)
        if self.is_publishing and not await self.until(self.published, _RETURN):
            raise CheckFailed("the slices come back after the check", "no complete pool")
        others = [i for i in self.instances if i is not self.driver]
        for instance in others:
            await instance.kill()
        self.instances = [self.driver]

    @property
    def publish_timeout(self) -> float:
        """Seconds to wait for published devices, because a started driver may publish its slices again; 0 if it never publishes."""
        return _RETURN if self.is_publishing else 0.0

    # --- claims -----------------------------------------------------------------------------------

    async def claim(self, *requests: str) -> JSON:
        """Waits for published devices, and creates a claim with an allocation.

        Args:
            requests: names of requests, as for :func:`allocation.claim_spec`; one request by default.

        Raises :class:`CheckSkipped` if the driver has too few devices.
        """
        if not await self.until(self.devices, self.publish_timeout):
            raise DevicesMissing(allocation.why_no_device(self.name, self.slices, self.node))
        spec = allocation.claim_spec(requests or (allocation.REQUEST,), self.name, self.profile.default)
        draft = {"metadata": {"name": "new", "namespace": NAMESPACE}, "spec": spec}
        allocated = allocation.allocate(self.name, self.slices, self.node, self.claims.values(), draft)
        return self.put_claim(spec, {"allocation": allocated})

    def put_claim(self, spec: JSON, status: JSON) -> JSON:
        """Creates a claim with any status."""
        self._count += 1
        out = self.api.put_claim(f"claim-{self._count}", spec, status)
        self.claims[out["metadata"]["uid"]] = out
        return out

    async def claims_up_to(self, count: int) -> list[JSON]:
        """Creates up to ``count`` claims of one device. Raises :class:`CheckSkipped` if not even one is possible."""
        out = [await self.claim()]
        with contextlib.suppress(CheckSkipped):
            while len(out) < count:
                out.append(await self.claim())
        return out

    async def free_claim(self) -> tuple[JSON, JSON]:
        """Returns spec and status of an allocated claim that does not exist, for claims with other content."""
        claim = await self.claim()
        self.release(claim)
        return claim["spec"], copy.deepcopy(claim["status"])

    async def prepared_claim(self) -> JSON:
        """Creates a claim and prepares it. Raises :class:`CheckFailed` if that fails, and :class:`CheckSkipped` without a free device."""
        claim = await self.claim()
        await self.prepared(claim)
        return claim

    async def cycles(self, most: int = 1, seconds: float = math.inf) -> int:
        """Creates, prepares, unprepares and deletes claims one after the other. Returns their number. Raises as :meth:`prepared_claim`.

        Args:
            seconds: after this time, no further cycle begins.
        """
        done, end = 0, self.transcript.now + seconds
        while done < most and self.transcript.now < end:
            claim = await self.prepared_claim()
            await self.unprepared(claim)
            self.release(claim)
            done += 1
        return done

    def release(self, claim: Mapping[str, Any]) -> None:
        """Deletes a claim, so that its devices are free for other claims."""
        self.claims.pop(claim["metadata"]["uid"], None)
        self.api.remove_claim(claim["metadata"]["name"])

    async def prepared(self, claim: Mapping[str, Any]) -> ClaimResponse:
        """Prepares a claim. Raises :class:`CheckFailed` if that fails."""
        return expect_prepared(claim, await self.plugin.prepare(claim))

    async def prepare_if_possible(self) -> None:
        """Prepares a claim, because a driver may report only prepared devices. Ignores a failure."""
        with contextlib.suppress(CheckFailed, CheckSkipped):
            await self.prepared_claim()

    async def unprepared(self, claim: Mapping[str, Any]) -> None:
        """Unprepares a claim. Raises :class:`CheckFailed` if that fails."""
        found = (await self.plugin.unprepare(claim)).of(claim)
        expect(not found.error, f"NodeUnprepareResources succeeds for {claim['metadata']['name']}", found.error)
        self.used.pop(claim["metadata"]["uid"], None)

    async def prepared_after_retries(self, claim: Mapping[str, Any]) -> ClaimResponse:
        """Prepares a claim, and retries after an error like a kubelet. Raises :class:`CheckFailed`."""
        return (await self._retry(self.plugin.prepare, claim)).of(claim)

    async def unprepared_after_retries(self, claim: Mapping[str, Any]) -> None:
        """Unprepares a claim, and retries after an error like a kubelet. Raises :class:`CheckFailed`."""
        await self._retry(self.plugin.unprepare, claim)
        self.used.pop(claim["metadata"]["uid"], None)

    async def _retry(self, call: Callable[..., Any], claim: Mapping[str, Any]) -> CallResponse:
        pace = self.profile.pace
        end = asyncio.get_running_loop().time() + pace.retry
        while True:
            found: CallResponse = await call(claim, timeout=pace.call)
            if not (error := found.of(claim).error):
                return found
            if asyncio.get_running_loop().time() > end:
                raise CheckFailed(f"{call.__name__} succeeds, at the latest with a retry after {pace.retry:g} s", error)
            await asyncio.sleep(0.2)

    # --- CDI specs --------------------------------------------------------------------------------

    async def cdi_baseline(self) -> frozenset[str]:
        """Prepares and unprepares a claim, and returns the remaining files and CDI devices.

        A driver may write specs at its start or when it first prepares a device, and keep these specs for all claims.
        """
        await self.cycles()
        return frozenset(self.cdi.names())

    async def expect_no_new_spec(self, before: Collection[str]) -> None:
        """Raises :class:`CheckFailed` if files or CDI devices remain that are not in ``before``."""
        await self.until(lambda: not self.cdi.names() - set(before), REMOVAL)
        left = sorted(self.cdi.names() - set(before))
        expect(not left, "no CDI spec of the claim is left", ", ".join(left))
