"""``dra run``: one driver, until a signal or a failure."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from ..driver import Driver, load_driver
from ..errors import DraError
from ..host.memory import keep_trimmed
from ..observe.log import configure
from ..plugin import Plugin
from ..settings import Settings, load

log = logging.getLogger(__name__)


def settings_for(driver: type[Driver], options: Mapping[str, Any]) -> Settings:
    """Settings with the driver's own name where none is given."""
    settings = load(options)
    return settings if settings.driver_name else dataclasses.replace(settings, driver_name=driver.name)


def run(target: str | type[Driver], options: Mapping[str, Any]) -> int:
    """Answers only where the plugin could not start; otherwise the process ends here, with 0 after a signal, 1 after a failure.

    Raises :class:`DraError` for what the user has to correct.
    """
    driver = load_driver(target) if isinstance(target, str) else target
    settings = settings_for(driver, options)
    configure(settings.log_format, settings.log_level)
    settings.check()
    code = asyncio.run(_until_signal(Plugin(driver(), settings)))
    # Threads of plain driver methods that still block must not keep the process.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _until_signal(plugin: Plugin) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with plugin.running():
            tidy = asyncio.create_task(_tidy(plugin))
            await stop.wait()
            tidy.cancel()
            log.info("stopping")
    except Exception as e:
        error = _first(e)
        if isinstance(error, DraError) and not plugin.serving:
            raise error from None
        shown = None if isinstance(error, DraError) else error
        log.critical("ended: %s: %s", type(error).__name__, error, exc_info=shown)
        return 1
    log.info("stopped")
    return 0


async def _tidy(plugin: Plugin) -> None:
    """An idle plugin is small: what starting and bursts needed goes back to the machine."""
    await plugin.ready()
    await keep_trimmed()


def _first(error: BaseException) -> BaseException:
    """The exception within groups of one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
