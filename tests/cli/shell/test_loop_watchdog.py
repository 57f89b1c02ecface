"""A driver's `async def` that blocks is told with its line, and nothing else is."""

from __future__ import annotations

import asyncio
import logging
import threading
from types import FrameType

import pytest

from dra_kubeletplugin.cli.shell import loop_watchdog


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watchdog, "_PAUSE", 0.01)
    monkeypatch.setattr(loop_watchdog, "_CHECK_INTERVAL", 0.01)


class Told(logging.Handler):
    """What is said from the line on that names a method. A busy machine may hold the loop elsewhere before."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.first = threading.Event()
        self._method = method

    def emit(self, record: logging.LogRecord) -> None:
        if self.lines or f" in {self._method}:" in record.getMessage():
            self.lines.append(record.getMessage())
            self.first.set()


@pytest.fixture
def told() -> Told:
    return Told("Card.prepare")


class Card:
    async def prepare(self, wait: threading.Event) -> None:
        assert wait.wait(60)


def test_a_method_that_blocks_is_named_with_its_line_and_when_it_goes_on(told: Told) -> None:
    async def main() -> None:
        loop_watchdog.watch(asyncio.get_running_loop())
        await asyncio.create_task(Card().prepare(told.first))  # a step of its own: what comes before is another's line
        async with asyncio.timeout(60):
            while len(told.lines) < 2:
                await asyncio.sleep(0.01)

    loop_watchdog.log.addHandler(told)
    try:
        asyncio.run(main())
    finally:
        loop_watchdog.log.removeHandler(told)
    line = Card.prepare.__code__.co_firstlineno + 1
    assert f"blocked by shell/test_loop_watchdog.py:{line} in Card.prepare: calls of the kubelet, " in told.lines[0]
    assert told.lines[1].startswith("the event loop runs again")


def test_a_method_that_blocks_is_named_also_where_something_else_blocked_first(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one step of the loop: the first looks see a library's code, which is no line of the author's."""
    found, looks = loop_watchdog.running_line, 0

    def running_line(frame: FrameType | None) -> str:
        nonlocal looks
        looks += 1
        return found(frame) if looks > 3 else ""

    monkeypatch.setattr(loop_watchdog, "running_line", running_line)

    async def main() -> None:
        loop_watchdog.watch(asyncio.get_running_loop())
        await asyncio.create_task(Card().prepare(told.first))

    loop_watchdog.log.addHandler(told)
    try:
        asyncio.run(main())
    finally:
        loop_watchdog.log.removeHandler(told)
    assert " in Card.prepare: " in told.lines[0]


def test_the_watch_ends_with_its_loop() -> None:
    async def main() -> None:
        loop_watchdog.watch(asyncio.get_running_loop())

    before = set(threading.enumerate())
    asyncio.run(main())
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
