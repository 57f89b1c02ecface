"""Reversal of steps: registered as data before they are taken, run newest first, by whichever process is there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any

from ..base.text import did_you_mean
from ..driver import Driver, PreparedClaim
from ..driver.calls import Calls
from ..driver.claim import UndoRegistrar
from ..driver.data import plain_json
from ..errors import DraError, DriverError, DriverFailedError, RecordsError, StoppingError, describe, printable

log = logging.getLogger(__name__)
Step = Mapping[str, Any]  # as it is on record: {"step": name, "data": {...}}
_MOST = 1_000  # steps of one claim; its record is written with each
_SAVE_WAIT = 60.0  # seconds that a plain prepare waits for its step; the store gives up long before


class UndoRecorder(UndoRegistrar):
    """Puts the steps of one prepare on record. Made on the thread of ``loop``; registered with from any thread.

    ``save`` is called on the loop after each registration, at once, with all steps so far in the order of registration: also one
    whose ``await`` is forgotten is on record and will be run. It returns when they are on disk, in bounded time, and raises
    :class:`DraError` where they are not, or where the record is no longer ours. Calls of it may overlap.

    When prepare has ended, however it did, :meth:`settle` must be called, and :meth:`check` before its answer counts.
    """

    def __init__(
        self, driver: Driver, loop: asyncio.AbstractEventLoop, save: Callable[[list[dict[str, Any]]], Awaitable[None]]
    ) -> None:
        self._driver = driver
        self._loop = loop
        self._save = save
        self._loop_thread = threading.get_ident()
        self._lock = threading.Lock()
        self._steps: list[dict[str, Any]] = []
        self._registrations: list[_Registration] = []
        self._closed = False

    def register(self, step: str, data: Mapping[str, Any]) -> Awaitable[None]:
        entry = self._entry(step, data)
        with self._lock:
            if self._closed:
                raise DriverError(
                    f"on_undo({step!r}) came after prepare had ended: register a reversal before the step that it reverses"
                )
            if len(self._registrations) >= _MOST:
                raise DriverError(f"on_undo({step!r}) is more than the {_MOST:,} reversals that a claim may have")
            self._steps.append(entry)
            registration = _Registration(step, self._begin(step))
            self._registrations.append(registration)
        if threading.get_ident() != self._loop_thread:
            registration.wait()  # on disk when this returns; the loop's own thread must never wait for the loop
        return registration

    def _entry(self, step: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Raises :class:`DriverError` for what could not be run or kept."""
        shown = f"on_undo({step!r})"
        if not isinstance(step, str):
            raise DriverError(f"{shown}: the step is named by a text")
        step = str.__str__(step)  # of a class derived from str it could not be kept
        fault = _misfit(self._driver, step, data)
        if fault:
            raise DriverError(f"{shown}: {fault}")
        try:
            return {"step": step, "data": plain_json(dict(data))}
        except ValueError as e:
            raise DriverError(f"{shown}: {e}") from None

    def _begin(self, step: str) -> concurrent.futures.Future[None]:
        async def save() -> None:
            # Not this step alone: which task the loop begins first is the loop's.
            await self._save(list(self._steps))

        saving = save()
        try:
            return asyncio.run_coroutine_threadsafe(saving, self._loop)
        except RuntimeError:
            saving.close()
            raise StoppingError(f"on_undo({step!r}): the plugin has stopped") from None

    async def settle(self) -> None:
        """No more registrations; returns when each step is on disk or could not be saved. Says which were not awaited."""
        with self._lock:
            self._closed = True
        saving = [asyncio.wrap_future(r.saving) for r in self._registrations if not r.saving.done()]
        for future in saving:
            future.add_done_callback(lambda f: f.cancelled() or f.exception())  # check() raises it
        if saving:
            await asyncio.wait(saving)
        for registration in self._registrations:
            if not registration.awaited:
                log.warning("%s", registration.forgotten())

    def check(self) -> None:
        """After :meth:`settle`. Raises :class:`DraError` where a step is not on disk, though the driver may have ignored that,
        and :class:`DriverError` where an await was forgotten: the step was taken before its reversal was on disk."""
        for registration in self._registrations:
            registration.raise_failure()
        for registration in self._registrations:
            if not registration.awaited:
                raise DriverError(registration.forgotten())


class _Registration(Awaitable[None]):
    """One step on its way to the disk. Nothing is lost where it is not awaited, but nothing is certain before it was."""

    def __init__(self, step: str, saving: concurrent.futures.Future[None]) -> None:
        self.step = step
        self.saving = saving
        self.awaited = False

    def __await__(self) -> Generator[Any, None, None]:
        self.awaited = True
        if not self.saving.done():
            # raise_failure says it in our words; a cancellation is the caller's.
            with contextlib.suppress(Exception):
                yield from asyncio.shield(asyncio.wrap_future(self.saving)).__await__()
        self.raise_failure()

    def wait(self) -> None:
        """Blocks until the step is on disk."""
        self.awaited = True
        concurrent.futures.wait([self.saving], _SAVE_WAIT)
        if not self.saving.done():
            raise RecordsError(f"on_undo({self.step!r}) was not on disk within {_SAVE_WAIT:g} s: see the disk")
        self.raise_failure()

    def raise_failure(self) -> None:
        try:
            self.saving.result(0)
        except DraError:
            raise
        except concurrent.futures.CancelledError:
            raise StoppingError(f"on_undo({self.step!r}): the plugin stopped before it was on disk") from None
        except Exception as e:
            raise RecordsError(f"on_undo({self.step!r}) is not on disk: {describe(e)}") from e

    def forgotten(self) -> str:
        return (
            f"claim.on_undo({self.step!r}, ...) was not awaited: write `await claim.on_undo(...)`, or the step may be taken "
            "before its reversal is on disk"
        )


def has_undo(driver: Driver, steps: Sequence[Step]) -> bool:
    """Whether :func:`run_undo` would call the driver at all."""
    return bool(steps) or type(driver).unprepare is not Driver.unprepare


def _log(text: str, error: BaseException | None) -> None:
    log.error("%s", text, exc_info=error)


async def run_undo(
    driver: Driver,
    calls: Calls,
    steps: Sequence[Step],
    claim: PreparedClaim,
    shown: str,
    report: Callable[[str, BaseException | None], None] = _log,
) -> None:
    """``unprepare``, then every step on record, newest first. All are tried.

    Args:
        shown: how messages name the claim.
        report: logs a failure, with its traceback where one is given.

    Raises the first :class:`DraError` at the end.
    """
    jobs: list[tuple[str, Callable[[], Awaitable[object]]]] = []
    if type(driver).unprepare is not Driver.unprepare:  # the base's does nothing: no thread for it
        jobs.append(("unprepare", functools.partial(calls, driver.unprepare, claim)))
    jobs += [(_named(s), functools.partial(_run_step, driver, calls, s, claim)) for s in reversed(steps)]
    failures: list[DraError] = []
    for name, job in jobs:
        try:
            await job()
        except DraError as e:
            report(f"{name} of claim {shown} failed: {printable(e)}", None)
            failures.append(e)
        except Exception as e:
            report(f"{name} of claim {shown} failed: {describe(e)}", e)
            failures.append(DriverFailedError(f"{name} failed: {describe(e)}"))
    if failures:
        raise failures[0]


def _named(step: Step) -> str:
    return f"undo step {printable(step.get('step')) if isinstance(step, Mapping) else '?'}"


async def _run_step(driver: Driver, calls: Calls, step: Step, claim: PreparedClaim) -> None:
    name, data = (step.get("step"), step.get("data")) if isinstance(step, Mapping) else (None, None)
    if not isinstance(name, str) or not isinstance(data, Mapping):
        raise RecordsError(f"an undo step on record cannot be read: {printable(step)}")
    fault = _misfit(driver, name, data)
    if fault:
        raise DriverError(f"a step that an older version of the driver registered cannot be undone: {fault}")
    await calls(getattr(driver, f"undo_{name}"), claim, **data)


def _misfit(driver: Driver, step: str, data: Mapping[str, Any]) -> str:
    """Why ``undo_<step>(claim, **data)`` cannot be called; empty where it can."""
    name, cls = f"undo_{step}", printable(type(driver).__name__)
    method = getattr(driver, name, None)
    if not callable(method):
        known = [n.removeprefix("undo_") for n in dir(type(driver)) if n.startswith("undo_")]
        return f"{cls} has no method {printable(name)}(claim, **data)" + did_you_mean(step, known)
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return ""  # not written in Python: its parameters cannot be known
    try:
        signature.bind(None, **data)
    except TypeError as e:
        parameters = list(signature.parameters)
        any_name = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        for given in data:
            if given not in parameters and not any_name:
                return f"{cls}.{printable(name)} has no parameter {given!r}" + (
                    did_you_mean(given, parameters[1:]) or f": its parameters are {', '.join(parameters[1:]) or 'none'}"
                )
        return f"{cls}.{printable(name)} cannot be called with these parameters: {printable(e)}"
    return ""


__all__ = ["UndoRecorder", "has_undo", "run_undo"]
