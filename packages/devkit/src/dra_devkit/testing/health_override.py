"""Adds injected health reports to the reports of a driver, for tests and for ``dra dev set-health``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dra_kubeletplugin.driver.attachment import overrides
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.driver.contract import Driver
from dra_kubeletplugin.driver.health import Health

D = TypeVar("D", bound=Driver)


def with_health_overrides(driver: type[D], injected: Callable[[D], Mapping[str, Health]]) -> type[D]:
    """Returns a subclass of the driver whose ``health()`` also returns the reports of ``injected``.

    They replace the driver's reports about the same devices.

    A driver without ``health()`` is returned unchanged.
    """
    if not overrides(driver, "health"):
        return driver
    calls = Calls()

    @functools.wraps(driver.health)  # keeps the source location for errors about a wrong return value
    async def health(self: D) -> Any:
        own_health: Callable[[], Any] = getattr(super(subclass, self), "health")  # noqa: B009 - the method may be plain or async
        reported = await calls(own_health)
        return {**reported, **injected(self)} if isinstance(reported, Mapping) else reported

    names = {"health": health, "__module__": driver.__module__, "__qualname__": driver.__qualname__}
    subclass: type[D] = type(driver.__name__, (driver,), names)
    return subclass
