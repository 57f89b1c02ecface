"""Reversal of steps: registered as data before they are taken, run newest first, by whichever process is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any

import msgspec

from ..driver import Driver, PreparedClaim
from ..driver.claim import UndoRegistrar
from ..driver.contract import call
from ..errors import DriverError
from .record import Record
from .store import Store, write

log = logging.getLogger(__name__)


class RecordUndo(UndoRegistrar):
    """Writes steps into the claim's record."""

    def __init__(self, driver: Driver, store: Store, record: Record, loop: asyncio.AbstractEventLoop) -> None:
        self.driver = driver
        self.store = store
        self.record = record
        self.loop = loop
        self.pending: list[_Registration] = []

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
        registration = _Registration(lambda: self._save(entry), step)
        if on_loop:
            self.pending.append(registration)
        else:
            # A plain prepare in its thread: durable when this returns.
            asyncio.run_coroutine_threadsafe(registration.wait(), self.loop).result()
        return registration

    async def _save(self, entry: dict[str, Any]) -> None:
        self.record.doc.setdefault("undo", []).append(entry)
        await self.store.do(lambda db: write(db, self.record))

    def check_awaited(self) -> None:
        """Raises :class:`DriverError` where an async prepare forgot to await."""
        for registration in self.pending:
            if not registration.awaited:
                raise DriverError(
                    f"claim.on_undo({registration.step!r}, ...) was not awaited: its reversal is not on disk"
                )


class _Registration(Awaitable[None]):
    def __init__(self, save: Callable[[], Awaitable[None]], step: str) -> None:
        self._save = save  # called when awaited, so that one that is forgotten is no loose coroutine
        self.step = step
        self.awaited = False

    def __await__(self) -> Generator[Any, None, None]:
        if self.awaited:
            return None
        self.awaited = True
        yield from self._save().__await__()
        return None

    async def wait(self) -> None:
        await self


async def run_undo(driver: Driver, record: Record, claim: PreparedClaim) -> None:
    """``unprepare``, then every registered step, newest first. All are tried; the first exception is raised at the end."""
    failures: list[Exception] = []
    try:
        await call(driver.unprepare, claim)
    except Exception as e:
        log.exception("unprepare of claim %s failed", record.shown)
        failures.append(e)
    for entry in reversed(record.doc.get("undo") or []):
        step = entry["step"]
        method = getattr(driver, f"undo_{step}", None)
        try:
            if method is None:
                raise DriverError(
                    f"{type(driver).__name__} has no method undo_{step} any more: an older version registered it"
                )
            await call(method, claim, **entry["data"])
        except Exception as e:
            log.exception("undo step %s of claim %s failed", step, record.shown)
            failures.append(e)
    if failures:
        raise failures[0]
