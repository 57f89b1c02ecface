"""``caplog`` excludes the log records of a driver method that an earlier test left running."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from dra_kubeletplugin.base.threads import Threads


@pytest.fixture(scope="module")
def hanging_method() -> Iterator[Callable[[], None]]:
    """Starts a thread in which a driver method hangs, as after an earlier test. Yields a function that makes the method
    log and return.
    """
    end_event, ended_event = threading.Event(), threading.Event()

    def method() -> None:
        end_event.wait()
        logging.warning("of the earlier test")
        ended_event.set()

    def end() -> None:
        end_event.set()
        ended_event.wait()

    Threads(1, "driver").submit(method)
    yield end
    end_event.set()


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
