"""Runs a server process until a signal or a failure, for ``dra run``, ``dra controller`` and ``dra webhook``.

Exit codes: 0 after a signal, 1 after a failure, 2 for a user's mistake before the start, 3 after a second signal or if a stop
exceeded its time limit.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from asyncio.sslproto import SSLProtocol
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import fields, replace
from typing import NoReturn, Protocol, TypeVar

from ..base.settings import Settings
from ..base.telemetry.logs import configure
from ..base.text import did_you_mean
from ..base.threads import LoopExecutor
from ..driver import Driver, Role, load_driver, make
from ..driver.diagnostics.unhandled import listen
from ..errors import DraError, describe, printable
from .shell.driver_options import given_own, load_options, variables
from .shell.exit_codes import Exit
from .shell.exit_handling import report
from .shell.loop_watchdog import watch
from .shell.open_files import need_files
from .shell.options import given
from .shell.signals import MARGIN, StopSignal

log = logging.getLogger(__name__)
# Bytes. asyncio allocates this buffer for each TLS connection, and one more for each read: 256 KiB by default. A TLS record has 16 KiB.
_TLS_BUFFER = 64 * 1024


class Process(Protocol):
    """A server that runs once: a plugin, a controller or a webhook."""

    def running(self) -> AbstractAsyncContextManager[object]: ...


P = TypeVar("P", bound=Process)
S = TypeVar("S", bound=Settings)


def run_driver(
    driver: type[Driver] | None,
    args: argparse.Namespace,
    kind: type[S],
    role: Role,
    build: Callable[[Driver, S], P],
    beside: Callable[[P, StopSignal], Awaitable[object]],
) -> NoReturn:
    """Runs a driver's plugin or controller and exits the process.

    Args:
        driver: a driver class; None for the driver that the command line names.
        args: the settings, and the options that the driver defines.
        kind: the settings class of the role.
        build: creates the server.
        beside: runs while the server serves.

    Raises :class:`DraError` for a user's mistake, before anything is started.
    """
    stop = StopSignal()
    stop.handle()
    driver = driver or args.loaded.get(args.driver) or load_driver(args.driver)
    settings, options = load_options(lambda: kind.load(given(args, kind)), driver, given_own(args, driver))
    if not settings.driver_name:
        settings = replace(settings, driver_name=driver.name)
    serve(lambda: build(make(driver, role, options), settings), settings, stop, beside, variables([driver]))


def serve(
    build: Callable[[], P],
    settings: Settings,
    stop: StopSignal,
    beside: Callable[[P, StopSignal], Awaitable[object]],
    own: Iterable[str] = (),
) -> NoReturn:
    """Runs the server, and then exits the process with the exit code.

    Args:
        build: creates the server.
        settings: the settings of the process.
        stop: handles the signals.
        beside: an additional coroutine that runs while the server serves.
        own: names of environment variables that the driver reads.

    Raises :class:`DraError` for a user's mistake, before anything is started.
    """
    process_fields = {"driver": settings.driver_name, "node": settings.node_name}
    configure(settings.log_format, settings.log_level, process_fields)
    for note in misspelt(settings, os.environ, own):
        log.warning("an environment variable is ignored: %s", note)
    settings.check()
    need_files()
    SSLProtocol.max_size = _TLS_BUFFER
    stop.grace = settings.shutdown_grace_period
    process = build()
    try:
        code = asyncio.run(_until_signal(process, stop, beside))
    except (SystemExit, KeyboardInterrupt) as e:
        log.critical("the driver tried to end the process: %s; only a signal may end it", describe(e))
        code = Exit.NEGATIVE
    # A thread of a plain driver method may still block; os._exit does not wait for it.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def misspelt(settings: Settings, environment: Iterable[str], own: Iterable[str] = ()) -> list[str]:
    """Returns a warning for each environment variable whose name resembles the variable of an option, because it has no effect."""
    known = [*(f.metadata["env"] for f in fields(settings)), *own]
    out = []
    for name in environment:
        alike = [k for k in known if k[:3] == name[:3] and abs(len(k) - len(name)) < 3]
        if alike and name not in known and (hint := did_you_mean(name, alike, 0.85)):
            out.append(f"the environment variable {printable(name)} matches no option{hint}")
    return out


async def _until_signal(process: P, stop: StopSignal, beside: Callable[[P, StopSignal], Awaitable[object]]) -> int:
    """Runs until a signal or a failure, and returns the exit code."""
    stop.attach()
    asyncio.get_running_loop().set_default_executor(LoopExecutor())
    listen(asyncio.get_running_loop())
    watch(asyncio.get_running_loop())
    serving, leave = asyncio.Event(), asyncio.Event()
    body = asyncio.create_task(_serve(process, stop, serving, leave, beside), name="plugin")
    stopping = asyncio.create_task(stop.wait(body), name="signals")
    await asyncio.wait({body, stopping}, return_when=asyncio.FIRST_COMPLETED)
    leave.set()
    if not serving.is_set() and not body.done():
        log.info("stopping during the start")
        body.cancel()  # its context managers stop the started parts in reverse order
    await asyncio.wait({body})
    stopping.cancel()
    code = _code(body, serving=serving.is_set(), stopping=stop.requested)
    stop.exit_after(MARGIN, code)  # a time limit, because asyncio.run waits for remaining tasks and threads
    return code


async def _serve(
    process: P,
    stop: StopSignal,
    serving: asyncio.Event,
    leave: asyncio.Event,
    beside: Callable[[P, StopSignal], Awaitable[object]],
) -> None:
    async with process.running():
        serving.set()
        companion = asyncio.ensure_future(beside(process, stop))
        try:
            await leave.wait()
            log.info("stopping")
        finally:
            stop.leave()
            companion.cancel()


def _code(body: asyncio.Task[None], *, serving: bool, stopping: bool) -> int:
    error = asyncio.CancelledError() if body.cancelled() else body.exception()
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if error is None or (stopping and isinstance(error, asyncio.CancelledError)):
        log.info("stopped")
        return Exit.SUCCESS
    if isinstance(error, DraError) and not serving:
        report(error)
        return Exit.USAGE
    log.critical(
        "the process ends after a failure: %s", describe(error), exc_info=None if isinstance(error, DraError) else error
    )
    return Exit.NEGATIVE
