"""A driver's reports of health, and what others say besides: in tests, and by the verbs of ``dra dev``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..driver.calls import Calls
from ..driver.contract import Driver, Health

D = TypeVar("D", bound=Driver)


def told_besides(driver: type[D], told: Callable[[D], Mapping[str, Health]]) -> type[D]:
    """The driver, whose reports have in them what is ``told``; one that reports nothing stays as it is."""
    if driver.health is Driver.health:
        return driver
    calls = Calls()

    @functools.wraps(driver.health)  # where it is written is told where its answer is none
    async def health(self: D) -> Any:
        own: Callable[[], Any] = getattr(super(made, self), "health")  # noqa: B009 - of any kind of method
        reported = await calls(own)
        return {**reported, **told(self)} if isinstance(reported, Mapping) else reported

    names = {"health": health, "__module__": driver.__module__, "__qualname__": driver.__qualname__}
    made: type[D] = type(driver.__name__, (driver,), names)
    return made
