"""Faults of claims in use: each fault is one event when it begins, and again only after it had ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.alerts import Alerts
from dra_kubeletplugin.claims.record import UnreadableRecord
from dra_kubeletplugin.claims.waits import Waits
from dra_kubeletplugin.errors import RecordsError
from tests.helpers.waiting import wait_until


class Events:
    def __init__(self) -> None:
        self.node: list[tuple[str, str, str]] = []
        self.claims: list[tuple[str, str]] = []

    def warn(self, about: Any, reason: str, message: str) -> None:
        self.node.append((about.name, reason, message))

    def warn_claim(self, claim: Any, reason: str, message: str) -> None:
        self.claims.append((f"{claim.namespace}/{claim.name} {claim.uid}", f"{reason}: {message}"))


class Devices:
    """An inventory: names of missing devices, and names of unhealthy devices with the reason."""

    def __init__(self) -> None:
        self.missing: set[str] = set()
        self.unhealthy: dict[str, str] = {}
        self.health_version = 0
        self.reports: asyncio.Queue[int] = asyncio.Queue()
        self.wait_count = 0

    @property
    def has_faults(self) -> bool:
        return bool(self.unhealthy)

    async def health_changed(self, seen: int) -> int:
        self.wait_count += 1
        self.health_version = await self.reports.get()
        return self.health_version

    def find(self, name: str, pool: str) -> object:
        return object() if (name, pool) != ("never", "node") else None

    def get(self, name: str, pool: str) -> object:
        return None if name in self.missing or name == "never" else object()

    def healthy(self, name: str, pool: str) -> bool:
        return name not in self.unhealthy

    def unhealthy_reason(self, name: str, pool: str) -> str:
        return self.unhealthy[name]


class Setup:
    def __init__(self) -> None:
        self.events, self.devices = Events(), Devices()
        self.rows: list[Any] = []
        self.repaired: list[str] = []
        self.fault: Exception | None = None
        self.reads = 0
        waits = Waits(alerts=600.0, alerts_retry=0.001)
        self.alerts = Alerts(self.events, self.devices, "node-1", self.read, self.repaired, waits)  # type: ignore[arg-type]

    async def read(self) -> list[Any]:
        self.reads += 1
        if self.fault:
            raise self.fault
        return self.rows


@pytest.fixture
def setup() -> Setup:
    return Setup()


def record(uid: str, *devices: str, state: State = State.PREPARED) -> Record:
    entries = [{"request": "r", "pool": "node", "device": d} for d in devices]
    return Record(uid, "ns", f"c-{uid}", state, "boot", "", entries)


async def test_each_fault_is_reported_when_it_begins_and_again_after_it_had_ended(setup: Setup) -> None:
    setup.rows = [record("u", "d-0", "d-1"), record("v", "d-1", state=State.UNPREPARING), record("w", "never")]
    await setup.alerts.check()
    assert setup.events.claims == []
    setup.devices.missing = {"d-0"}
    setup.devices.unhealthy = {"d-0": "hot", "d-1": "hot"}
    vanished = ("ns/c-u u", "DeviceVanished: device node/d-0 of this claim is no longer on the node")
    event = ("ns/c-u u", "DeviceUnhealthy: device node/d-1 of this claim is unhealthy: hot")
    for _ in range(2):
        await setup.alerts.check()
        assert setup.events.claims == [event, vanished]
    setup.devices.unhealthy = {}
    await setup.alerts.check()
    setup.devices.unhealthy = {"d-1": "hot"}
    await setup.alerts.check()
    assert setup.events.claims == [event, vanished, event]


async def test_an_unreadable_record_is_reported_on_its_claim_and_each_repair_once_on_the_node(setup: Setup) -> None:
    setup.rows = [UnreadableRecord("u", "its file is damaged", {"namespace": "ns", "name": "c"})]
    setup.repaired.append("first")
    await setup.alerts.check()
    text = "the record of this claim on the node cannot be read, so its devices stay held: its file is damaged"
    assert setup.events.claims == [("ns/c u", f"RecordUnreadable: {text}")]
    setup.repaired.append("second")
    for _ in range(2):
        await setup.alerts.check()
    assert setup.events.node == [("node-1", "RecordsDamaged", "first"), ("node-1", "RecordsDamaged", "second")]


@pytest.fixture
async def running(setup: Setup) -> AsyncIterator[Setup]:
    task = asyncio.create_task(setup.alerts.run())
    await wait_until(lambda: setup.devices.wait_count == 1)
    yield setup
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


async def test_a_health_report_is_checked_at_once_if_it_or_the_last_one_had_a_fault(running: Setup) -> None:
    running.rows = [record("u", "d-0")]
    reads = 1
    for number, unhealthy in enumerate(({}, {}, {"d-0": "hot"}, {}, {"d-0": "hot"}), 1):
        running.devices.unhealthy = unhealthy
        running.devices.reports.put_nowait(number)
        reads += number > 2
        await wait_until(lambda number=number: running.devices.wait_count == number + 1)  # type: ignore[misc]
        assert running.reads == reads
    assert len(running.events.claims) == 2


async def test_unreadable_records_are_read_again_soon(running: Setup) -> None:
    running.fault = RecordsError("the disk is full")
    running.devices.unhealthy = {"d-0": "hot"}
    running.devices.reports.put_nowait(1)
    await wait_until(lambda: running.reads > 2)
    running.fault, running.rows = None, [record("u", "d-0")]
    await wait_until(lambda: running.events.claims)
