"""``dra webhook``: runs a driver's admission webhook until a signal. Exit codes are those of ``dra run``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import NoReturn

from ..base.settings import WebhookSettings
from ..driver import load_driver, make
from ..driver.config.objects import ConfigReader
from ..errors import SettingsError
from ..host.memory import fix_thresholds, keep_trimmed
from ..plugin.webhook import Webhook
from .serving import serve
from .shell.driver_options import variables
from .shell.options import given
from .shell.signals import StopSignal


async def _trim(process: Webhook, stop: StopSignal) -> None:
    """Returns the memory of large reviews to the kernel."""
    await keep_trimmed()


def webhook(args: argparse.Namespace) -> NoReturn:
    """Runs the webhook and exits the process. Raises :class:`DraError` for a user's mistake, before anything is started."""
    fix_thresholds()
    stop = StopSignal()
    stop.handle()
    settings = WebhookSettings.load(given(args, WebhookSettings))
    if settings.driver_name and len(args.drivers) > 1:
        raise SettingsError("--driver-name (DRIVER_NAME) is for one driver, but several are given")
    drivers = [make(load_driver(t)) for t in args.drivers]
    readers = [ConfigReader.of(d, settings.driver_name) for d in drivers]
    settings = dataclasses.replace(settings, driver_name=readers[0].driver)
    if duplicates := {r.driver for r in readers if [x.driver for x in readers].count(r.driver) > 1}:
        raise SettingsError(f"two drivers are named {', '.join(sorted(duplicates))}")
    # A webhook's pod has the environment variables of the plugin's pod, so serve() must not warn about variables that the drivers read.
    own = variables([type(d) for d in drivers])
    serve(lambda: Webhook(readers, settings), settings, stop, _trim, own)
