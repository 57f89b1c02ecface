"""The events that a component writes, compared with client-go's correlator."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest

from dra_devkit.localcluster import event_recorder
from dra_devkit.localcluster.event_recorder import EventRecorder
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import NotFoundError

POD = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}}
COMBINED = "(combined from similar events): "


class Events:
    """A client that stores events."""

    def __init__(self) -> None:
        self.stored: dict[str, JSON] = {}
        self.writes = 0

    async def create(self, _: object, obj: JSON, __: str) -> JSON:
        self.writes += 1
        assert obj["metadata"]["name"] not in self.stored
        self.stored[obj["metadata"]["name"]] = obj
        return obj

    async def patch(self, _: object, name: str, change: JSON, __: str) -> JSON:
        if name not in self.stored:
            raise NotFoundError("not found")
        self.writes += 1
        self.stored[name] |= change
        return self.stored[name]

    @property
    def counts(self) -> dict[str, int]:
        return {e["message"]: e["count"] for e in self.stored.values()}


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._unique = 0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        self._unique += 1
        return self._unique


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr(event_recorder, "time", fake_clock)
    return fake_clock


async def record(recorder: EventRecorder, *messages: str) -> None:
    for message in messages:
        recorder.warn(POD, "Pod", "Failed", message)
    running = asyncio.create_task(recorder.run())
    for _ in range(20 + 5 * len(messages)):
        await asyncio.sleep(0)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_an_event_that_the_rate_limit_drops_is_counted(clock: Clock) -> None:
    events = Events()
    recorder = EventRecorder(cast(KubeClient, events), "kubelet")
    await record(recorder, *["m"] * 40)
    assert (events.counts, events.writes) == ({"m": 25}, 25)
    clock.now += 300
    await record(recorder, "m")
    assert (events.counts, events.writes) == ({"m": 41}, 26)


async def test_an_event_whose_first_occurrence_was_dropped_is_created_with_its_count(clock: Clock) -> None:
    events = Events()
    recorder = EventRecorder(cast(KubeClient, events), "kubelet")
    await record(recorder, *["m"] * 25, "late", "late")
    clock.now += 300
    await record(recorder, "late")
    assert events.counts == {"m": 25, "late": 3}


@pytest.mark.usefixtures("clock")
async def test_the_tenth_similar_event_and_later_ones_are_combined() -> None:
    events = Events()
    recorder = EventRecorder(cast(KubeClient, events), "kubelet")
    await record(recorder, *(f"m{i}" for i in range(12)))
    assert events.counts == {f"m{i}": 1 for i in range(9)} | {f"{COMBINED}m11": 3}


@pytest.mark.usefixtures("clock")
async def test_events_of_a_scheduler_have_no_rate_limit() -> None:
    events = Events()
    await record(EventRecorder(cast(KubeClient, events), "default-scheduler", combine=False), *["m"] * 40)
    assert (events.counts, events.writes) == ({"m": 40}, 40)
