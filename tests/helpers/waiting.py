"""Waits for a condition. Every test waits for the condition itself and never for a time, so the limits are long."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

LIMIT = 30.0  # seconds
_PAUSE = 0.01  # seconds between two checks


async def wait_until(check: Callable[[], Any], condition: str = "", limit: float = LIMIT) -> Any:
    """Returns the result of ``check()`` as soon as the result is true.

    Args:
        check: a function or a coroutine function.
        condition: the name of the condition, for the error.

    Raises ``AssertionError`` after ``limit`` seconds.
    """
    try:
        async with asyncio.timeout(limit):
            while True:
                result = check()
                if inspect.isawaitable(result):
                    result = await result
                if result:
                    return result
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise AssertionError(f"waited {limit:g} s for {condition or 'a condition'}") from None


def block_until(
    check: Callable[[], Any], condition: Callable[[], object] = lambda: "a condition", limit: float = 90
) -> Any:
    """Like :func:`wait_until`, for a test without an event loop. ``condition`` returns the text for the error."""
    deadline = time.monotonic() + limit
    while not (result := check()):
        assert time.monotonic() < deadline, f"waited {limit:g} s for {condition()}"
        time.sleep(_PAUSE)
    return result
