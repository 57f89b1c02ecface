"""What the framework knows of a driver object: the process that it runs in, and which methods its class overrides."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..base.settings import Settings
from ..host import Host
from .config.model import Config
from .contract import NO_PROCESS, Driver, DriverProcess, Role


def attach(
    driver: Driver, host: Host, settings: Settings, role: Role = Role.NODE, process: DriverProcess = NO_PROCESS
) -> None:
    """Connects a driver to this process, once, after ``__init__`` and before any other method.

    Args:
        driver: the driver.
        host: the machine.
        settings: the options of this process.
        role: what the process does for the driver.
        process: does what the driver requests of the process. Safe from any thread.
    """
    driver.host = host
    if not driver.privileged:
        host.forbid_writes(type(driver).__name__)
    driver.settings = settings
    driver.role = role
    driver.log = logging.getLogger(f"driver.{type(driver).__name__}")
    driver._dra_process = process


def overrides(driver: Driver | type[Driver], method: str) -> bool:
    """Whether the driver's class overrides a method of :class:`Driver`."""
    cls = driver if isinstance(driver, type) else type(driver)
    return getattr(cls, method) is not getattr(Driver, method)


def reports_health(driver: Driver) -> bool:
    """Whether devices may become unhealthy: the driver overrides :meth:`Driver.health` or starts processes."""
    return overrides(driver, "health") or driver.processes


def config_kinds(driver: Driver | type[Driver]) -> Sequence[type[Config]]:
    """Returns ``config`` as a sequence."""
    if driver.config is None:
        return ()
    return (driver.config,) if isinstance(driver.config, type) else tuple(driver.config)
