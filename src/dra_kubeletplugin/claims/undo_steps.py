"""Records undo steps before the driver takes the steps that they reverse, and runs the recorded undo steps, newest first.

The steps may run in a later process than the process that recorded them. :mod:`.shared_steps` sets up and tears down shared steps.
"""

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
from ..driver.hardware_lock import check_key
from ..driver.process import ProcessSpec
from ..errors import DraError, DriverError, DriverFailedError, RecordsError, StoppingError, describe, printable
from .inflight import as_dra_error
from .processes import STEP as PROCESS
from .record import Record

log = logging.getLogger(__name__)
Step = Mapping[str, Any]  # as it is recorded: {"step": name, "data": {...}}
_MAX_STEPS = 1_000  # steps of one claim; each step writes the claim's record
_SAVE_WAIT = 60.0  # seconds that a synchronous prepare waits for its step; the store fails long before
Save = Callable[[list[dict[str, Any]]], Awaitable[None]]
Share = Callable[[str, str, Mapping[str, Any]], Awaitable[None]]  # step, key, data
AddStep = Callable[[dict[str, Any]], Awaitable[None]]
StartProcess = Callable[[ProcessSpec, AddStep], Awaitable[None]]
EndProcess = Callable[[Mapping[str, Any]], Awaitable[None]]  # data of the recorded step


class UndoRecorder(UndoRegistrar):
    """Records the undo steps of one prepare, sets up its shared steps, and starts its processes.

    Create it on the thread of ``loop``; steps can be registered from any thread. ``share`` sets up a shared step on the loop; it ends
    when the method of the driver has ended. ``start`` starts a process, and calls its second argument before the program runs.

    ``save`` runs on the loop after each registration, with all steps so far in order, so a step without ``await`` is also recorded.
    ``save`` must return only when the steps are on disk, and must end within a bounded time. ``save`` raises :class:`DraError` if
    the steps cannot be saved, or if another process owns the record now. Calls of ``save`` may overlap.

    Call :meth:`settle` when prepare has returned or raised. Call :meth:`check` before you use the result of prepare.
    """

    def __init__(
        self, driver: Driver, loop: asyncio.AbstractEventLoop, save: Save, share: Share, start: StartProcess
    ) -> None:
        self._driver = driver
        self._loop = loop
        self._save = save
        self._share = share
        self._start = start
        self._processes: set[str] = set()
        self._loop_thread = threading.get_ident()
        self._lock = threading.Lock()
        self._steps: list[dict[str, Any]] = []
        self._registrations: list[_Registration] = []
        self._closed = False

    def register(self, step: str, data: Mapping[str, Any]) -> Awaitable[None]:
        call = f"on_undo({step!r})"
        entry = self._entry(call, step, data, ("undo",))

        async def save() -> None:
            # All steps, not only this one: the loop may run the tasks in another order.
            await self._save(list(self._steps))

        return self._begin(_Registration(call, _SAVE_WAIT), save, entry)

    def share(self, step: str, key: str, data: Mapping[str, Any]) -> Awaitable[None]:
        call = f"shared_step({step!r})"
        entry = self._entry(call, step, data, ("setup", "teardown"))
        key = check_key(key)
        return self._begin(_Registration(call), lambda: self._share(entry["step"], key, entry["data"]))

    def start(self, process: ProcessSpec) -> Awaitable[None]:
        async def add(step: dict[str, Any]) -> None:
            with self._lock:
                self._steps.append(step)
            await self._save(list(self._steps))

        with self._lock:
            if process.name in self._processes:
                raise DriverError(f"{process.call}: the claim has a process of this name")
            self._processes.add(process.name)
        return self._begin(_Registration(process.call), lambda: self._start(process, add))

    def _entry(self, call: str, step: str, data: Mapping[str, Any], methods: Sequence[str]) -> dict[str, Any]:
        """Returns the step as it is recorded. Raises :class:`DriverError` for a step that could not be run or stored."""
        if not isinstance(step, str):
            raise DriverError(f"{call}: the step's name must be text")
        step = str.__str__(step)  # an instance of a subclass of str could not be stored
        for method in methods:
            if fault := mismatch(self._driver, method, step, data):
                raise DriverError(f"{call}: {fault}")
        try:
            return {"step": step, "data": plain_json(dict(data))}
        except ValueError as e:
            raise DriverError(f"{call}: {e}") from None

    def _begin(
        self, registration: _Registration, work: Callable[[], Awaitable[None]], undo: dict[str, Any] | None = None
    ) -> Awaitable[None]:
        """Starts ``work`` on the loop. Outside the loop's thread, waits for its end."""
        with self._lock:
            if self._closed:
                raise DriverError(
                    f"{registration.call} came after prepare had ended: register a step before you take it"
                )
            if len(self._registrations) >= _MAX_STEPS:
                raise DriverError(f"{registration.call} is more than the {_MAX_STEPS:,} steps that a claim may have")
            if undo:
                self._steps.append(undo)
            registration.saving = self._submit(registration.call, work)
            self._registrations.append(registration)
        if threading.get_ident() != self._loop_thread:
            registration.wait()  # done when this returns; the loop's own thread must not wait for the loop
        return registration

    def _submit(self, call: str, work: Callable[[], Awaitable[None]]) -> concurrent.futures.Future[None]:
        async def run() -> None:
            await work()

        running = run()
        try:
            return asyncio.run_coroutine_threadsafe(running, self._loop)
        except RuntimeError:
            running.close()
            raise StoppingError(f"{call}: the plugin has stopped") from None

    def cancel(self) -> None:
        """Cancels the steps that are being saved or set up. Call it if prepare was cancelled, before :meth:`settle`."""
        for registration in self._registrations:
            registration.saving.cancel()

    async def settle(self) -> None:
        """Accepts no more steps. Returns when each step is on disk or has failed; logs the steps that were not awaited."""
        with self._lock:
            self._closed = True
        saving = [asyncio.wrap_future(r.saving) for r in self._registrations if not r.saving.done()]
        for future in saving:
            # Retrieved here, so that asyncio does not log the exception: check() raises it.
            future.add_done_callback(lambda f: f.cancelled() or f.exception())
        if saving:
            await asyncio.wait(saving)
        for registration in self._registrations:
            if not registration.awaited:
                log.warning("the driver did not await an undo step: %s", registration.missing_await())

    def check(self) -> None:
        """Raises the failures of registered steps. Call it after :meth:`settle`.

        Raises :class:`DraError` if a step is not on disk, also if the driver caught that error. Raises :class:`DriverError` if an ``await``
        was forgotten: the driver may have taken the step before its undo step was on disk.
        """
        for registration in self._registrations:
            registration.raise_failure()
        for registration in self._registrations:
            if not registration.awaited:
                raise DriverError(registration.missing_await())


class _Registration(Awaitable[None]):
    """A step that is being written or set up. This continues without ``await``, but only ``await`` ensures that it has ended."""

    saving: concurrent.futures.Future[None]

    def __init__(self, call: str, limit: float | None = None) -> None:
        self.call = call
        self.limit = limit  # seconds that a plain method waits; None: as long as it takes
        self.awaited = False

    def __await__(self) -> Generator[Any, None, None]:
        self.awaited = True
        if not self.saving.done():
            # raise_failure() converts the error; a cancellation belongs to the caller.
            with contextlib.suppress(Exception):
                yield from asyncio.shield(asyncio.wrap_future(self.saving)).__await__()
        self.raise_failure()

    def wait(self) -> None:
        """Blocks until the step is on disk or set up."""
        self.awaited = True
        concurrent.futures.wait([self.saving], self.limit)
        if not self.saving.done():
            raise RecordsError(f"{self.call} was not written within {self.limit:g} s: see the node's disk")
        self.raise_failure()

    def raise_failure(self) -> None:
        try:
            self.saving.result(0)
        except DraError:
            raise
        except concurrent.futures.CancelledError:
            raise StoppingError(f"{self.call}: the plugin stopped before the step was done") from None
        except Exception as e:
            raise RecordsError(f"{self.call} could not be written: {describe(e)}") from e

    def missing_await(self) -> str:
        name, _, rest = self.call.partition("(")
        return (
            f"claim.{name}({rest.removesuffix(')')}, ...) was not awaited: write `await claim.{name}(...)`, or the hardware may be "
            "changed before the step is on disk"
        )


def has_undo(driver: Driver, record: Record) -> bool:
    """Whether a rollback would call the driver at all."""
    return bool(record.undo or record.shared) or type(driver).unprepare is not Driver.unprepare


async def run_undo(
    driver: Driver, calls: Calls, steps: Sequence[Step], claim: PreparedClaim, end_process: EndProcess
) -> None:
    """Runs ``unprepare``, then every recorded step, newest first. After a failure, the remaining steps still run.

    Args:
        driver: the driver that reverses the steps.
        calls: runs the driver's methods.
        steps: the recorded steps, oldest first.
        claim: the claim to roll back.
        end_process: ends a process that a step describes.

    Raises :class:`DraError` at the end: the only failure, or one error with the text of all failures.
    """
    jobs: list[tuple[str, Callable[[], Awaitable[object]]]] = []
    if type(driver).unprepare is not Driver.unprepare:  # the default method does nothing, so it needs no thread
        jobs.append(("unprepare", functools.partial(calls, driver.unprepare, claim)))
    jobs += [(_named(s), functools.partial(_run_step, driver, calls, s, claim, end_process)) for s in reversed(steps)]
    await run_all(jobs)


async def run_all(jobs: Sequence[tuple[str, Callable[[], Awaitable[object]]]]) -> None:
    """Runs all jobs, one after the other, also after a failure.

    Raises :class:`DraError` at the end: the only failure, or one error with the text of all failures.
    """
    failures: list[tuple[str, DraError]] = []
    for name, job in jobs:
        try:
            await job()
        except Exception as e:
            failures.append((name, as_dra_error(e)))
    if len(failures) == 1 or (failures and all(isinstance(error, StoppingError) for _, error in failures)):
        raise failures[0][1]
    if failures:
        raise DriverFailedError("; ".join(f"{name} failed: {error}" for name, error in failures))


def _named(step: Step) -> str:
    return f"undo step {printable(step.get('step')) if isinstance(step, Mapping) else '?'}"


async def _run_step(driver: Driver, calls: Calls, step: Step, claim: PreparedClaim, end_process: EndProcess) -> None:
    name, data = (step.get("step"), step.get("data")) if isinstance(step, Mapping) else (None, None)
    if not isinstance(name, str) or not isinstance(data, Mapping):
        raise RecordsError(f"a recorded undo step cannot be read: {printable(step)}")
    if name == PROCESS:
        await end_process(data)
        return
    fault = mismatch(driver, "undo", name, data)
    if fault:
        raise DriverError(f"an undo step of an older version of the driver cannot be run: {fault}")
    await calls(getattr(driver, f"undo_{name}"), claim, **data)


def mismatch(driver: Driver, kind: str, step: str, data: Mapping[str, Any]) -> str:
    """Returns why ``<kind>_<step>(first, **data)`` cannot be called; empty if it can. ``kind`` is undo, setup or teardown."""
    name, cls = f"{kind}_{step}", printable(type(driver).__name__)
    method = getattr(driver, name, None)
    if not callable(method):
        known = [n.removeprefix(f"{kind}_") for n in dir(type(driver)) if n.startswith(f"{kind}_")]
        first = "claim" if kind == "undo" else "key"
        return f"{cls} has no method {printable(name)}({first}, **data)" + did_you_mean(step, known)
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return ""  # not written in Python: its parameters cannot be known
    try:
        signature.bind(None, **data)
    except TypeError as e:
        parameters = list(signature.parameters)
        any_name = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        for key in data:
            if key not in parameters and not any_name:
                return f"{cls}.{printable(name)} has no parameter {key!r}" + (
                    did_you_mean(key, parameters[1:]) or f": its parameters are {', '.join(parameters[1:]) or 'none'}"
                )
        return f"{cls}.{printable(name)} cannot be called with these parameters: {printable(e)}"
    return ""
