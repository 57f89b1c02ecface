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
_INLINE_BYTES = (
    4096  # of JSON: the worst text of this size takes a few milliseconds, a switch to a thread about a tenth of one
)
_THREADS = 2
_SECONDS = 30.0  # for the parameters of one claim, including the wait for a thread


class Resolver:
    """Resolves parameters for one driver; used from one event loop."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name
        self._checks = ParameterChecks(_THREADS)

    def stuck(self) -> str:
        """Why larger parameters cannot be resolved any more; empty where they can."""
        return self._checks.stuck()

    async def resolve(self, config: Sequence[JSON], requests: Iterable[str]) -> dict[str, Resolved | DraError]:
        """Returns the configuration of each request with its source, up to the first request with a fault, which has its error instead.

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
