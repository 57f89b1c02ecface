"""``caplog`` excludes the log records of a driver method that an earlier test left running."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from dra_kubeletplugin.base.threads import Threads


@pytest.fixture(scope="module")
def hanging_method() -> Iterator[Callable[[], None]]:
    """Starts a thread in which a driver method hangs, as after an earlier test. The value lets the method log and return."""
    ends, ended = threading.Event(), threading.Event()

    def method() -> None:
        ends.wait()
        logging.warning("of the earlier test")
        ended.set()

    def end() -> None:
        ends.set()
        ended.wait()

    Threads(1, "driver").submit(method)
    yield end
    ends.set()


def test_records_of_an_earlier_test_are_left_out(
    hanging_method: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    hanging_method()
    logged = threading.Event()

    def method() -> None:
        logging.warning("of this test")
        logged.set()

    Threads(1, "driver").submit(method)
    logged.wait()
    assert caplog.messages == ["of this test"]
