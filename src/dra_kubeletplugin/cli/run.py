"""``dra run``: one driver as a node's plugin, until a signal or a failure. Exit codes are in :mod:`.serving`."""

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
from .shell.driver_options import given_own, together, variables
from .shell.options import given
from .shell.signals import StopSignal


def settings_for(driver: type[Driver], options: Mapping[str, Any]) -> Settings:
    """Settings with the driver's own name where none is given."""
    settings = load(options)
    return settings if settings.driver_name else dataclasses.replace(settings, driver_name=driver.name)


async def tidy(plugin: Plugin, stop: StopSignal) -> None:
    """An idle plugin is small: what starting and bursts needed goes back to the machine."""
    await plugin.ready()
    await keep_trimmed()


def run(
    target: str | type[Driver],
    args: argparse.Namespace,
    beside: Callable[[Plugin, StopSignal], Awaitable[object]] = tidy,
) -> NoReturn:
    """Ends the process. ``args`` have settings and the driver's own options; ``beside`` runs while the plugin serves.

    Raises :class:`DraError` for what the user has to correct, before anything is started.
    """
    stop = StopSignal()
    stop.handle()
    driver = load_driver(target) if isinstance(target, str) else target
    settings, options = together(lambda: settings_for(driver, given(args)), driver, given_own(args, driver))
    serve(lambda: Plugin(make(driver, options=options), settings), settings, stop, beside, variables([driver]))
