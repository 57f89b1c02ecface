"""Records undo steps before the driver takes the steps that they reverse, and runs the recorded undo steps, newest first.

The steps may run in a later process than the process that recorded them. :mod:`.shared_steps` sets up and tears down shared steps.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, TypeVar

from ..base.text import did_you_mean
from ..driver import Driver, PreparedClaim
from ..driver.attachment import overrides
from ..driver.calls import Calls
from ..driver.claim import UndoRegistrar
from ..driver.data import plain_json
from ..driver.hardware_lock import check_key
from ..driver.process import ProcessSpec
from ..errors import DraError, DriverError, DriverFailedError, StoppingError, printable
from .inflight import as_dra_error
from .processes import STEP as PROCESS
from .processes import RecordUndoStep
from .record import Record

T = TypeVar("T")
Share = Callable[[str, str, Mapping[str, Any]], Awaitable[None]]  # step, key, data
StartProcess = Callable[[ProcessSpec, RecordUndoStep], Awaitable[None]]


class CallOnLoop(Awaitable[T]):
    """Work for a driver on the plugin's event loop. It continues without ``await``, but only ``await`` ensures that it has ended.

    It can be created and awaited on any thread. ``call`` is the driver's call in messages.
    """

    def __init__(self, call: str, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.awaited = False
        try:
            self.future = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:
            work.close()
            raise StoppingError(f"{call}: the plugin has stopped") from None

    def __await__(self) -> Generator[Any, None, T]:
        self.awaited = True
        if not self.future.done():
            # result() converts the error; a cancellation belongs to the caller.
            with contextlib.suppress(Exception):
                yield from asyncio.shield(asyncio.wrap_future(self.future)).__await__()
        return self.result()

    def wait(self, seconds: float | None = None) -> None:
        """Blocks until the work has ended. Raises as :meth:`result`. The loop's own thread must not call it."""
        self.awaited = True
        concurrent.futures.wait([self.future], seconds)
        self.result()

    def result(self) -> T:
        """Returns the result of work that has ended. Raises its exception; :class:`StoppingError` if it was cancelled or has not ended."""
        try:
            return self.future.result(0)
        except (concurrent.futures.CancelledError, concurrent.futures.TimeoutError):
            raise StoppingError(f"{self.call}: the plugin stopped before it was complete") from None


class UndoRecorder(UndoRegistrar):
    """Records the undo steps of one prepare, sets up its shared steps, and starts its processes.

    Create it on the thread of ``loop``; steps can be registered from any thread. ``share`` sets up a shared step on the loop; it ends
    when the method of the driver has ended. ``start`` starts a process, and calls its second argument before the program runs.

    ``save`` runs on the loop and adds a step to the record. It must return only when the step is on disk, and must end within a bounded
    time. It raises :class:`DraError` if the step cannot be saved, or if another process owns the record now. Calls of ``save`` may overlap.

    Call :meth:`settle` when prepare has returned or raised. Call :meth:`check` before you use the result of prepare.
    """

    def __init__(
        self, driver: Driver, loop: asyncio.AbstractEventLoop, save: RecordUndoStep, share: Share, start: StartProcess
    ) -> None:
        self._driver = driver
        self._loop = loop
        self._save = save
        self._share = share
        self._start = start
        self._loop_thread = threading.get_ident()
        self._lock = threading.Lock()
        self._calls: list[CallOnLoop[None]] = []
        self._closed = False

    def register(self, step: str, data: Mapping[str, Any]) -> Awaitable[None]:
        call = f"on_undo({step!r})"
        entry = self._entry(call, step, data, ("undo",))
        return self._begin(call, lambda: self._save(entry))

    def share(self, step: str, key: str, data: Mapping[str, Any]) -> Awaitable[None]:
        call = f"shared_step({step!r})"
        entry = self._entry(call, step, data, ("setup", "teardown"))
        key = check_key(key)
        return self._begin(call, lambda: self._share(entry["step"], key, entry["data"]))

    def start(self, process: ProcessSpec) -> Awaitable[None]:
        if any(call.call == process.call for call in self._calls):
            raise DriverError(f"{process.call}: the claim has a process of this name")
        return self._begin(process.call, lambda: self._start(process, self._save))

    def _entry(self, call: str, step: str, data: Mapping[str, Any], methods: Sequence[str]) -> dict[str, Any]:
        """Returns the step as it is recorded. Raises :class:`DriverError` for a step that could not be run or stored."""
        # An instance of a subclass of str, such as an Enum, could not be stored.
        step = str.__str__(step) if isinstance(step, str) else str(step)
        for method in methods:
            if fault := mismatch(self._driver, method, step, data):
                raise DriverError(f"{call}: {fault}")
        try:
            return {"step": step, "data": plain_json(dict(data))}
        except ValueError as e:
            raise DriverError(f"{call}: {e}") from None

    def _begin(self, call: str, work: Callable[[], Awaitable[None]]) -> Awaitable[None]:
        """Starts ``work`` on the loop. Outside the loop's thread, waits for its end."""

        async def run() -> None:
            try:
                await work()
            except DraError:
                raise
            except Exception as e:
                raise as_dra_error(e) from e

        # The loop starts the calls in the order in which they are created, so the steps keep their order.
        with self._lock:
            if self._closed:
                raise DriverError(f"{call} came after prepare had ended: register a step before you take it")
            pending = CallOnLoop(call, run(), self._loop)
            self._calls.append(pending)
        if threading.get_ident() != self._loop_thread:
            pending.wait()  # done when this returns; the loop's own thread must not wait for the loop
        return pending

    def cancel(self) -> None:
        """Cancels the steps that are being saved or set up. Call it if prepare was cancelled, before :meth:`settle`."""
        for call in self._calls:
            call.future.cancel()

    async def settle(self) -> None:
        """Accepts no more steps. Returns when each step is on disk or has failed."""
        with self._lock:
            self._closed = True
        pending = [asyncio.wrap_future(call.future) for call in self._calls if not call.future.done()]
        await asyncio.gather(*pending, return_exceptions=True)  # check() raises the exceptions

    def check(self) -> None:
        """Raises the failures of registered steps. Call it after :meth:`settle`.

        Raises :class:`DraError` if a step is not on disk, also if the driver caught that error. Raises :class:`DriverError` if an ``await``
        was forgotten: the driver may have taken the step before its undo step was on disk.
        """
        for call in self._calls:
            call.result()
        for call in self._calls:
            if not call.awaited:
                raise DriverError(
                    f"claim.{call.call} was not awaited: write `await` before it, or the hardware may be changed before the step is on disk"
                )


def has_undo(driver: Driver, record: Record) -> bool:
    """Whether a rollback would call the driver at all."""
    return bool(record.undo or record.shared) or overrides(driver, "unprepare")


async def run_undo(
    driver: Driver,
    calls: Calls,
    steps: Sequence[Mapping[str, Any]],
    claim: PreparedClaim,
    end_process: Callable[[Mapping[str, Any]], Awaitable[None]],
) -> None:
    """Runs ``unprepare``, then every recorded step, newest first. After a failure, the remaining steps still run.

    ``steps`` are oldest first. ``end_process`` ends a process, from the data of its step.

    Raises :class:`DraError` as :func:`run_all`.
    """

    async def undo(step: Mapping[str, Any]) -> None:
        name, data = step["step"], step["data"]
        if name == PROCESS:
            await end_process(data)
            return
        if fault := mismatch(driver, "undo", name, data):
            raise DriverError(f"an undo step of an older version of the driver cannot be run: {fault}")
        await calls(getattr(driver, f"undo_{name}"), claim, **data)

    jobs = [(f"undo step {printable(s['step'])}", functools.partial(undo, s)) for s in reversed(steps)]
    if type(driver).unprepare is Driver.unprepare:  # the default method does nothing, so it needs no thread
        await run_all(jobs)
    else:
        await run_all([("unprepare", functools.partial(calls, driver.unprepare, claim)), *jobs])


async def run_all(jobs: Sequence[tuple[str, Callable[[], Awaitable[object]]]]) -> None:
    """Runs all jobs, each with its name in messages, one after the other, also after a failure.

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


def mismatch(driver: Driver, kind: str, step: str, data: Mapping[str, Any]) -> str:
    """Returns why ``<kind>_<step>(first, **data)`` cannot be called; empty if it can. ``kind`` is undo, setup or teardown."""
    name, cls = f"{kind}_{step}", printable(type(driver).__name__)
    method = getattr(driver, name, None)
    if not callable(method):
        known = [n.removeprefix(f"{kind}_") for n in dir(type(driver)) if n.startswith(f"{kind}_")]
        first = "claim" if kind == "undo" else "key"
        return f"{cls} has no method {printable(name)}({first}, **data)" + did_you_mean(step, known)
    signature = inspect.signature(method)
    try:
        signature.bind(None, **data)
    except TypeError as e:
        known = list(signature.parameters)
        unknown = [key for key in data if key not in known]
        if not unknown or any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
            return f"{cls}.{printable(name)} cannot be called with these parameters: {printable(e)}"
        hint = did_you_mean(unknown[0], known[1:]) or f": its parameters are {', '.join(known[1:]) or 'none'}"
        return f"{cls}.{printable(name)} has no parameter {unknown[0]!r}{hint}"
    return ""
