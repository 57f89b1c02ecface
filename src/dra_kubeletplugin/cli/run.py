"""``dra run``: runs a driver as a node's plugin until a signal or a failure. Exit codes are in :mod:`.serving`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from ..base.settings import Settings, load
from ..driver import Driver, load_driver, make
from ..host.memory import keep_trimmed
from ..plugin.node import Plugin
from .serving import serve
from .shell.driver_options import given_own, load_options, variables
from .shell.options import given
from .shell.signals import StopSignal


def settings_for(driver: type[Driver], options: Mapping[str, Any]) -> Settings:
    """Loads the settings. By default, the driver's name is the name in its class."""
    settings = load(options)
    return settings if settings.driver_name else dataclasses.replace(settings, driver_name=driver.name)


async def trim_memory(plugin: Plugin, stop: StopSignal) -> None:
    """Returns unused memory to the kernel after the start and after peaks of work, so that an idle plugin is small."""
    await plugin.ready()
    await keep_trimmed()


def run_command(args: argparse.Namespace) -> NoReturn:
    run(args.loaded.get(args.driver, args.driver), args)


def run(
    target: str | type[Driver],
    args: argparse.Namespace,
    beside: Callable[[Plugin, StopSignal], Awaitable[object]] = trim_memory,
) -> NoReturn:
    """Runs the plugin and exits the process.

    Args:
        target: a driver class, or a driver in the form of the command line, such as a file.
        args: the settings, and the options that the driver defines.
        beside: runs while the plugin serves.

    Raises :class:`DraError` for a user's mistake, before anything is started.
    """
    stop = StopSignal()
    stop.handle()
    driver = load_driver(target) if isinstance(target, str) else target
    settings, options = load_options(lambda: settings_for(driver, given(args)), driver, given_own(args, driver))
    serve(lambda: Plugin(make(driver, options=options), settings), settings, stop, beside, variables([driver]))
