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
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from types import MethodType
from typing import Any, TypeVar, cast

from ..base.json_types import JSONValue
from ..base.text import did_you_mean
from ..driver import Driver, PreparedClaim
from ..driver.attachment import overrides
from ..driver.calls import Calls
from ..driver.data import plain_json
from ..driver.diagnostics.author_errors import calling_place
from ..driver.hardware_lock import check_key
from ..driver.process import ProcessSpec
from ..errors import DraError, DriverError, DriverFailedError, StoppingError, kind_of, printable, shown
from .inflight import as_dra_error
from .processes import STEP as PROCESS
from .processes import RecordUndoStep
from .record import Record

log = logging.getLogger(__name__)
T = TypeVar("T")
_SETUP = "setup_"
Share = Callable[[str, str, Mapping[str, Any]], Awaitable[None]]  # step, key, data
StartProcess = Callable[[ProcessSpec, RecordUndoStep], Awaitable[None]]


class CallOnLoop(Awaitable[T]):
    """Work for a driver on the plugin's event loop. It continues without ``await``, but only ``await`` ensures that it has ended.

    It can be created and awaited on any thread. ``call`` is the driver's call in messages. A call that is never awaited is logged with its
    line, unless :meth:`missing_await` was read.
    """

    def __init__(self, call: str, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.awaited = False
        self.place = calling_place(sys._getframe(1))
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

    def missing_await(self) -> str:
        """Returns what to do about a missing ``await``; empty if the work was awaited."""
        missing, self.awaited = not self.awaited, True
        where = f" ({self.place})" if self.place else ""
        return f"{self.call} was not awaited: write `await` before it{where}" if missing else ""

    def __del__(self) -> None:
        if hasattr(self, "future") and (missing := self.missing_await()):
            log.error("a call in an async method: %s", missing)

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


class UndoRecorder:
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

    def register(self, method: Callable[..., object], data: Mapping[str, Any]) -> Awaitable[None]:
        entry = undo_entry(self._driver, method, data)
        return self._begin(f"claim.on_undo(self.{entry['step']})", lambda: self._save(entry))

    def share(self, setup: Callable[..., object], key: str, data: Mapping[str, Any]) -> Awaitable[None]:
        entry = shared_entry(self._driver, setup, key, data)
        call = f"claim.shared_step(self.{setup_name(entry['step'])})"
        return self._begin(call, lambda: self._share(entry["step"], entry["key"], entry["data"]))

    def start(self, process: ProcessSpec) -> Awaitable[None]:
        if any(call.call == process.call for call in self._calls):
            raise DriverError(f"{process.call}: the claim has a process of this name")
        return self._begin(process.call, lambda: self._start(process, self._save))

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
            if missing := call.missing_await():
                raise DriverError(missing)


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
        if fault := mismatch(driver, name, "claim", data):
            raise DriverError(f"an undo step of an older version of the driver cannot be run: {fault}")
        await calls(getattr(driver, name), claim, **data)

    jobs = [(f"undo step {printable(s['step'])}", functools.partial(undo, s)) for s in reversed(steps)]
    if overrides(driver, "unprepare"):  # the default method does nothing, and would take a thread
        jobs = [("unprepare", functools.partial(calls, driver.unprepare, claim)), *jobs]
    await run_all(jobs)


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


def undo_entry(driver: Driver, method: Callable[..., object], data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an undo step as it is recorded. Raises :class:`DriverError` for a step that could not be run or stored."""
    step = _method_name(driver, "on_undo()", method)
    return {"step": step, "data": _stored(driver, f"on_undo(self.{step})", (step,), "claim", data)}


def shared_entry(driver: Driver, setup: Callable[..., object], key: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a shared step as it is recorded, like :func:`undo_entry`."""
    name = _method_name(driver, "shared_step()", setup)
    step = name.removeprefix(_SETUP)
    if not step or step == name:
        raise DriverError(
            f"shared_step(self.{name}): name the method setup_{name}, and its reversal teardown_{name}: records contain the name {name}"
        )
    call = f"shared_step(self.{name})"
    return {
        "step": step,
        "key": check_key(key),
        "data": _stored(driver, call, (name, teardown_name(step)), "key", data),
    }


def setup_name(step: str) -> str:
    """Returns the name of the method that sets a shared step up."""
    return f"{_SETUP}{step}"


def teardown_name(step: str) -> str:
    """Returns the name of the method that tears a shared step down."""
    return f"teardown_{step}"


def _method_name(driver: Driver, call: str, method: object) -> str:
    """Returns the name that leads a later process to the same method. Raises :class:`DriverError` if no name does."""
    name = getattr(method, "__name__", "")
    if not (isinstance(method, MethodType) and method.__self__ is driver and getattr(driver, name, None) == method):
        given = shown(method) if isinstance(method, str) else getattr(method, "__qualname__", type(method).__name__)
        raise DriverError(
            f"{call} got {printable(given)}: pass a method of the driver, such as self.unload, because a later process finds it by name"
        )
    return name


def _stored(
    driver: Driver, call: str, methods: Sequence[str], first: str, data: Mapping[str, Any]
) -> Mapping[str, JSONValue]:
    """Returns the data as JSON. Raises :class:`DriverError` if it is none, or if a method does not accept it."""
    for method in methods:
        if fault := mismatch(driver, method, first, data):
            raise DriverError(f"{call}: {fault}")
    try:
        return cast("Mapping[str, JSONValue]", plain_json(dict(data)))
    except ValueError as e:
        raise DriverError(f"{call}: {e}") from None


def mismatch(driver: Driver, name: str, first: str, data: Mapping[str, Any]) -> str:
    """Returns why the driver's method ``<name>(first, **data)`` cannot be called; empty if it can."""
    cls = kind_of(driver)
    method = getattr(driver, name, None)
    if not callable(method):
        near = did_you_mean(name, [n for n in dir(type(driver)) if n not in dir(Driver)])
        return f"{cls} has no method {printable(name)}({first}, **data){near}"
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        return f"{cls}.{name} is a generator: remove `yield`"
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
