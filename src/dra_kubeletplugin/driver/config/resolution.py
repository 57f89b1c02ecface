"""Resolves the parameters of claims without blocking the event loop: small ones at once, larger ones in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import DraError
from ..checks import ParameterChecks
from ..contract import Driver
from ..diagnostics.author_errors import without_frames
from .parameters import Parameters, Resolved

JSON = Mapping[str, Any]
# Up to this size, JSON is checked on the event loop. The slowest text of this size takes a few milliseconds. A switch to a thread takes
# about 0.1 ms.
_INLINE_BYTES = 4096
_THREADS = 2
_SECONDS = 30.0  # for the parameters of one claim, including the wait for a thread


class Resolver:
    """Resolves parameters for one driver; used from one event loop."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name
        self._checks = ParameterChecks(_THREADS)

    def stuck(self) -> str:
        """Returns why larger parameters can no longer be resolved; empty if they can."""
        return self._checks.stuck()

    async def resolve(self, config: Sequence[JSON], requests: Iterable[str]) -> dict[str, Resolved | DraError]:
        """Returns the configuration of each request with its source. Stops at the first request with a fault, and returns its error.

        Args:
            config: ``status.allocation.devices.config`` of the claim.
            requests: names of requests, ``req`` or ``req/sub``.

        Raises:
            DriverFailedError: the driver's checks did not end within 30 s, or no thread is free.
        """
        parameters = Parameters(self._driver.config_kinds(), self._name)
        names = list(dict.fromkeys(requests))

        def resolved() -> dict[str, Resolved | DraError]:
            out: dict[str, Resolved | DraError] = {}
            for name in names:
                try:
                    out[name] = parameters.resolve(config, name)
                except DraError as e:
                    out[name] = without_frames(e)
                    break
            return out

        if parameters.is_within(config, _INLINE_BYTES):
            return resolved()
        return await self._checks(resolved, _SECONDS)
