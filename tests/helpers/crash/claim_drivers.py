"""Drivers for tests of the claim manager."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import ClaimIdentity
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager
from tests.helpers.crash.record_stores import DRIVER

UID = "0b6a0c1e-0000-4000-8000-000000000001"
LONGEST_LABEL = "n" * 63
LONGEST_NAME = ".".join(["c" * 63, "l" * 63, "a" * 63, "i" * 61])


class PlainDriver(Driver):
    """A driver without undo. Each container gets its device's name. ``prepared`` are the UIDs of its prepares."""

    name = DRIVER

    def __init__(self) -> None:
        self.prepared: list[str] = []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        self.prepared.append(claim.uid)
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]


class RecordingDriver(PlainDriver):
    """Records the UIDs of the claims that it unprepares."""

    def __init__(self) -> None:
        super().__init__()
        self.unprepared: list[str] = []

    async def unprepare(self, claim: PreparedClaim) -> None:
        self.unprepared.append(claim.uid)


class BlockingDriver(PlainDriver):
    """``prepare`` and ``unprepare`` wait for ``go`` and raise ``fault``. ``states`` contains the recorded states in each call, if
    ``records`` returns them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fault: dict[str, Exception] = {}
        self.go = asyncio.Event()
        self.go.set()
        self.entered = asyncio.Event()
        self.records: Callable[[], Awaitable[dict[str, str]]] | None = None
        self.states: list[dict[str, str]] = []

    async def _enter(self, operation: str) -> None:
        if self.records:
            self.states.append(await self.records())
        self.entered.set()
        await self.go.wait()
        if operation in self.fault:
            raise self.fault[operation]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        await self._enter("prepare")
        return await super().prepare(claim)

    async def unprepare(self, claim: PreparedClaim) -> None:
        await self._enter("unprepare")


class MetadataDriver(Driver):
    """A driver with metadata files."""

    name = DRIVER
    metadata = True

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"X": d.name}), metadata={"made": True}) for d in claim.devices]

    async def unprepare(self, claim: PreparedClaim) -> None: ...


class HolderTrackingDriver(MetadataDriver):
    """Records which claims hold device d-0. The unprepare raises ``failure``, if it is set."""

    def __init__(self) -> None:
        self.holders: set[str] = set()
        self.failure: Exception | None = None
        self.attempts = 0

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        assert not self.holders - {claim.uid}, "a second holder"
        self.holders.add(claim.uid)
        return await super().prepare(claim)

    async def unprepare(self, claim: PreparedClaim) -> None:
        self.attempts += 1
        if self.failure:
            raise self.failure
        self.holders.discard(claim.uid)


def allocate_long(
    api: FakeApiServer, name: str = "c", uid: str = UID, request: str = "r", **annotations: str
) -> ClaimIdentity:
    """Creates a claim in the namespace with the longest name, with the device d-0."""
    api.allocate(name, uid, "d-0", DRIVER, request=request)
    api.claims[name]["metadata"] |= {"namespace": LONGEST_LABEL, "annotations": annotations}
    return ClaimIdentity(LONGEST_LABEL, name, uid)


def files_of(manager: RunningManager) -> list[Path]:
    """Returns all files and folders below the folders for claim files."""
    tops = (manager.settings.cdi_root, manager.settings.plugin_dir / "dra-device-metadata")
    return sorted(p for top in tops if top.exists() for p in top.rglob("*"))
