"""The watchdog reports an `async def` of a driver that blocks the event loop, with its source line."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from dra_kubeletplugin.cli.shell import loop_watchdog


class MessagesFromMethod(logging.Handler):
    """Collects messages from the first one that names the method. On a busy machine, other code may block the loop earlier."""

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
def messages() -> MessagesFromMethod:
    return MessagesFromMethod("Card.prepare")


class Card:
    async def prepare(self, wait: threading.Event) -> None:
        assert wait.wait(60)


def test_the_watchdog_reports_a_blocking_method_with_its_line_and_its_end(messages: MessagesFromMethod) -> None:
    async def main() -> None:
        loop_watchdog.watch(asyncio.get_running_loop(), 0.01, 0.01)
        await asyncio.create_task(
            Card().prepare(messages.first)
        )  # a separate task, so that earlier steps are not reported as this method
        async with asyncio.timeout(60):
            while len(messages.lines) < 2:
                await asyncio.sleep(0.01)

    loop_watchdog.log.addHandler(messages)
    try:
        asyncio.run(main())
    finally:
        loop_watchdog.log.removeHandler(messages)
    line = Card.prepare.__code__.co_firstlineno + 1
    assert f"blocked by shell/test_loop_watchdog.py:{line} in Card.prepare: calls of the kubelet, " in messages.lines[0]
    assert messages.lines[1].startswith("the event loop runs again")


def test_the_watchdog_thread_ends_with_its_loop() -> None:
    async def main() -> None:
        loop_watchdog.watch(asyncio.get_running_loop(), 0.01, 0.01)

    before = set(threading.enumerate())
    asyncio.run(main())
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
