"""Unhandled exceptions in threads and tasks of the driver's author are logged in one sentence."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from dra_kubeletplugin.driver.diagnostics.unhandled import listen


@pytest.fixture
def excepthook() -> Iterator[None]:
    before = threading.excepthook
    yield
    threading.excepthook = before


def fails() -> None:
    raise OSError("the card does not respond")


async def fails_later() -> None:
    fails()


LINE = fails.__code__.co_firstlineno + 1


def sentences(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.usefixtures("excepthook")
async def test_an_exception_in_a_thread_of_the_author_is_one_sentence_with_its_line(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    listen(asyncio.get_running_loop())
    thread = threading.Thread(target=fails, name="poller")
    thread.start()
    await asyncio.to_thread(thread.join)
    [line] = sentences(caplog)
    assert line.startswith("unhandled exception in thread poller: OSError: the card does not respond")
    assert f"test_unhandled.py:{LINE}" in line
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("excepthook")
async def test_exceptions_in_a_task_and_a_callback_of_the_author_are_sentences_with_their_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    listen(loop)
    task = loop.create_task(fails_later(), name="refresh")
    await asyncio.wait([task])
    del task  # asyncio reports the exception when no code can await the task.
    loop.call_soon(fails)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    lines = sentences(caplog)
    places = [s.partition("unhandled exception in ")[2].partition(": ")[0] for s in lines]
    assert places == ["task refresh", "a callback of the event loop"]
    assert all(f"test_unhandled.py:{LINE}" in s for s in lines)


@pytest.mark.usefixtures("excepthook")
async def test_an_exception_without_a_line_of_the_author_is_logged_by_asyncio(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    listen(loop)
    loop.call_soon(int, "x")
    await asyncio.sleep(0)
    [record] = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert record.name == "asyncio"
