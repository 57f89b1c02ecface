"""``dra run``: one driver, until a signal or a failure.

Exit codes: 0 after a signal, 1 after a failure, 2 for what the user has to correct before a start, 3 where a stop hung and was
cut, or a second signal came.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from ..driver import Driver, load_driver
from ..errors import DraError, DriverError, describe
from ..host.memory import keep_trimmed
from ..observe.log import configure
from ..plugin import Plugin
from ..settings import Settings, load
from .stopping import STOPPED, Stop

log = logging.getLogger(__name__)
T = TypeVar("T")
FAILED, WRONG = 1, 2  # exit codes


def settings_for(driver: type[Driver], options: Mapping[str, Any]) -> Settings:
    """Settings with the driver's own name where none is given."""
    settings = load(options)
    return settings if settings.driver_name else dataclasses.replace(settings, driver_name=driver.name)


def run(target: str | type[Driver], options: Mapping[str, Any]) -> NoReturn:
    """Ends the process.

    Raises :class:`DraError` for what the user has to correct, before anything is started.
    """
    stop = Stop()
    stop.handle()
    driver = _not_ended_by(target, lambda: load_driver(target)) if isinstance(target, str) else target
    settings = settings_for(driver, options)
    configure(settings.log_format, settings.log_level)
    settings.check()
    stop.grace = settings.stop_grace
    plugin = Plugin(_not_ended_by(driver.__name__, driver), settings)
    try:
        code = asyncio.run(_until_signal(plugin, stop))
    except (SystemExit, KeyboardInterrupt) as e:
        log.critical("ended by %s: only a signal ends a plugin", describe(e))
        code = FAILED
    if settings.kubeconfig:
        from ..kube.kubeconfig import remove_files  # where none is given, it is never needed

        remove_files()
    # Threads of plain driver methods that still block must not keep the process.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _not_ended_by(what: str, made: Callable[[], T]) -> T:
    """What an author's code makes, which must not end the process as if all were well. Raises :class:`DriverError`."""
    try:
        return made()
    except SystemExit as e:
        raise DriverError(
            f"{what} raised {describe(e)} before it could be started: only a signal ends a plugin"
        ) from None


async def _until_signal(plugin: Plugin, stop: Stop) -> int:
    """The exit code."""
    stop.attach()
    serving, leave = asyncio.Event(), asyncio.Event()
    body = asyncio.create_task(_serve(plugin, stop, serving, leave), name="plugin")
    asked = asyncio.create_task(stop.wait(body), name="signals")
    await asyncio.wait({body, asked}, return_when=asyncio.FIRST_COMPLETED)
    leave.set()
    if not serving.is_set() and not body.done():
        log.info("stopped while it starts")
        body.cancel()  # what was started is stopped in reverse
    await asyncio.wait({body})
    asked.cancel()
    code = _code(body, serving=serving.is_set(), asked=stop.asked)
    stop.cut_ending(code)  # asyncio.run waits for whatever is left, threads too
    return code


async def _serve(plugin: Plugin, stop: Stop, serving: asyncio.Event, leave: asyncio.Event) -> None:
    async with plugin.running():
        serving.set()
        tidy = asyncio.create_task(_tidy(plugin))
        try:
            await leave.wait()
            log.info("stopping")
        finally:
            stop.leave()
            tidy.cancel()


def _code(body: asyncio.Task[None], *, serving: bool, asked: bool) -> int:
    error = asyncio.CancelledError() if body.cancelled() else body.exception()
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if error is None or (asked and isinstance(error, asyncio.CancelledError)):
        log.info("stopped")
        return STOPPED
    if isinstance(error, DraError) and not serving:
        _report(error)
        return WRONG
    log.critical("ended: %s", describe(error), exc_info=None if isinstance(error, DraError) else error)
    return FAILED


def _report(e: DraError) -> None:
    from . import report  # the command line imports this module when it is needed

    report(e)


async def _tidy(plugin: Plugin) -> None:
    """An idle plugin is small: what starting and bursts needed goes back to the machine."""
    await plugin.ready()
    await keep_trimmed()
