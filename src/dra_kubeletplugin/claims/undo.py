"""Reversal of steps: registered as data before they are taken, run newest first, by whichever process is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..driver import Driver, PreparedClaim
from ..driver.calls import Calls
from ..driver.claim import UndoRegistrar
from ..errors import DraError, DriverError

log = logging.getLogger(__name__)


class RecordUndo(UndoRegistrar):
    def __init__(
        self, driver: Driver, loop: asyncio.AbstractEventLoop, save: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        self.driver = driver
        self.loop = loop
        self.save = save
        self.tasks: list[asyncio.Task[None]] = []

    def register(self, step: str, data: Mapping[str, Any]) -> Awaitable[None]:
        if not callable(getattr(self.driver, f"undo_{step}", None)):
            raise DriverError(
                f"on_undo({step!r}): {type(self.driver).__name__} has no method undo_{step}(claim, **data)"
            )
        entry = {"step": step, "data": msgspec.json.decode(msgspec.json.encode(dict(data)))}
        try:
            on_loop = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            on_loop = False
        if on_loop:
            task = asyncio.ensure_future(self.save(entry))
            self.tasks.append(task)
            return task
        future = asyncio.run_coroutine_threadsafe(self.save(entry), self.loop)
        future.result()
        return asyncio.wrap_future(future, loop=self.loop)

    async def finish(self) -> None:
        if self.tasks:
            await asyncio.gather(*self.tasks)


async def run_undo(
    driver: Driver, calls: Calls, steps: Sequence[Mapping[str, Any]], claim: PreparedClaim, shown: str
) -> None:
    failures: list[Exception] = []
    try:
        if type(driver).unprepare is not Driver.unprepare:
            await calls(driver.unprepare, claim)
    except DraError as e:
        failures.append(e)
    for entry in reversed(steps):
        step = entry["step"]
        method = getattr(driver, f"undo_{step}", None)
        try:
            if method is None:
                raise DriverError(
                    f"{type(driver).__name__} has no method undo_{step} any more: an older version registered it"
                )
            await calls(method, claim, **entry["data"])
        except DraError as e:
            failures.append(e)
    if failures:
        raise failures[0]
