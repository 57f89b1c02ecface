"""Runs work on many devices in a thread, so that the work does not block the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..base.threads import in_own_thread

_FEW = 64  # devices that are processed on the event loop, because a thread would cost more
T = TypeVar("T")


async def compute(devices: int, work: Callable[[], T]) -> T:
    """Calls a function that processes ``devices`` devices, and returns its result. No task may change the function's data meanwhile."""
    return work() if devices <= _FEW else await in_own_thread(work)
