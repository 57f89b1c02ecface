"""Runs a function that processes many devices in a thread, so that it does not block the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..base.threads import in_own_thread

_FEW = 64  # up to this number, devices are processed on the event loop, because starting a thread would take longer
T = TypeVar("T")


async def compute(devices: int, work: Callable[[], T]) -> T:
    """Calls ``work`` and returns its result. No task may change the data of ``work`` during the call.

    Args:
        devices: the number of devices that ``work`` processes.
    """
    return work() if devices <= _FEW else await in_own_thread(work)
