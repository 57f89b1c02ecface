"""Waits for a condition. Every test waits for the condition itself and never for a time, so the limits are long."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

LIMIT = 30.0  # seconds
_PAUSE = 0.01  # seconds between two checks


async def wait_until(check: Callable[[], Any], what: str = "", limit: float = LIMIT) -> Any:
    """Returns the result of ``check()`` as soon as the result is true.

    Args:
        check: a function or a coroutine function.
        what: the name of the condition, for the error.

    Raises ``AssertionError`` after ``limit`` seconds.
    """
    try:
        async with asyncio.timeout(limit):
            while True:
                found = check()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise AssertionError(f"waited {limit:g} s for {what or 'a condition'}") from None


def block_until(check: Callable[[], Any], what: Callable[[], object] = lambda: "a condition", limit: float = 90) -> Any:
    """Like :func:`wait_until`, for a test without an event loop. ``what`` returns the text for the error."""
    end = time.monotonic() + limit
    while not (found := check()):
        assert time.monotonic() < end, f"waited {limit:g} s for {what()}"
        time.sleep(_PAUSE)
    return found
