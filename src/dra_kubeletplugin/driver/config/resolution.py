"""Resolves the parameters of claims without blocking the event loop: small ones at once, larger ones in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import DraError
from ...resourceapi.types import Device
from ..checks import ParameterChecks
from ..contract import Driver
from ..diagnostics.author_errors import without_frames
from .device_types import Kinds, kinds_of
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

    async def resolve(
        self, config: Sequence[JSON], wanted: Iterable[tuple[str, Device]]
    ) -> Sequence[Resolved | DraError]:
        """Returns the configuration of each device with its source, in order. Stops at the first fault, which is then the last item.

        Args:
            config: ``status.allocation.devices.config`` of the claim.
            wanted: names of requests, ``req`` or ``req/sub``, with the devices that they got.

        Raises:
            DriverFailedError: the driver's checks did not end within 30 s, or no thread is free.
        """
        kinds = self._driver.config_kinds()
        parameters = Parameters(kinds, self._name)
        keys = [(request, kinds_of(device.attributes, kinds)) for request, device in wanted]

        def resolved() -> Sequence[Resolved | DraError]:
            found: dict[tuple[str, Kinds], Resolved | DraError] = {}
            out: list[Resolved | DraError] = []
            for key in keys:
                if key not in found:
                    try:
                        found[key] = parameters.resolve(config, *key)
                    except DraError as e:
                        found[key] = without_frames(e)
                out.append(found[key])
                if isinstance(out[-1], DraError):
                    break
            return out

        if parameters.is_within(config, _INLINE_BYTES):
            return resolved()
        return await self._checks(resolved, _SECONDS)
