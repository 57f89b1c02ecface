"""Resolves the parameters of claims without blocking the event loop: small ones at once, larger ones in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...base.json_types import ReadOnlyJSON
from ...errors import ConfigError, DraError, clip
from ...resourceapi.types import Device
from ..attachment import config_kinds
from ..checks import ParameterChecks
from ..contract import Driver
from ..diagnostics.author_errors import without_frames
from ..diagnostics.config_errors import refusal
from .kinds import Kinds, described, kinds_of
from .model import Config
from .parameters import Parameters, Resolved

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
        self, config: Sequence[ReadOnlyJSON], wanted: Iterable[tuple[str, Device]], *, of_whole_claim: bool = True
    ) -> Sequence[Resolved | DraError]:
        """Returns the configuration of each device with its source, in order. Stops at the first fault, which is then the last item.

        Args:
            config: ``status.allocation.devices.config`` of the claim.
            wanted: names of requests, ``req`` or ``req/sub``, with the devices that they got.
            of_whole_claim: whether ``wanted`` has all devices of the claim. Only then, it is a fault if no entry without
                request names is for one of these devices.

        Raises:
            DriverFailedError: the driver's checks did not end within 30 s, or no thread is free.
        """
        kinds = config_kinds(self._driver)
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
                    return out
            if out and of_whole_claim and (unused := _unused_entry(parameters, config, keys)):
                out[-1] = unused
            return out

        if parameters.is_within(config, _INLINE_BYTES):
            return resolved()
        return await self._checks(resolved, _SECONDS)


def _unused_entry(
    parameters: Parameters, config: Sequence[ReadOnlyJSON], devices: Sequence[tuple[str, Kinds]]
) -> ConfigError | None:
    """Returns an error if the claim has entries without request names, and none of them is for a device of the claim; else None.

    It is enough that one entry is for a device of the claim, because a request may get one of several types of device. A claim with
    alternatives is not checked: its entries may be for an alternative that was not chosen.
    """
    fitting = frozenset[type[Config]]().union(*(kinds for _, kinds in devices))
    unused: ConfigError | None = None
    for where, kind in parameters.kinds_for_all_requests(config):
        if kind in fitting or any("/" in request for request, _ in devices):
            return None
        unused = unused or refusal(
            f"parameters.kind: {clip(kind.KIND or kind.__name__)} is for devices with {described(kind)}, and the claim has none: use "
            "the kind for the claim's devices, or remove this entry",
            at=where,
        )
    return unused
