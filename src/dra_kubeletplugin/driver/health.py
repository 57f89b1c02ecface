"""The health of one device, as a driver reports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import DriverError, printable
from ..resourceapi.types import Taint
from ..resourceapi.validation.slices import MAX_TAINTS

INFORMATIONAL = "None"
"""The effect of taints that keep no pod away."""
_MAX_SECONDS = 1e11  # seconds; later times do not fit into the timestamps of Go and of databases


@dataclass(frozen=True)
class Health:
    """The health of one device, as :meth:`Driver.health` reports it.

    Args:
        healthy: True, False, or None for unknown.
        message: shown in the pod's status, also for a healthy device. The kubelet keeps 1,024 bytes of UTF-8; the rest is cut off.
        taints: published with the device, at most 16. Taints with the effect ``"None"`` are informational: they keep no pod away, and
            any device may have them, for example a healthy device after the fault of a program. Only an unhealthy device may have
            other taints: they replace :attr:`Driver.unhealthy_taint`. The effect ``"NoExecute"`` evicts the pods that use the device.
            A permanent taint of a healthy device belongs to :class:`Device`.
        measured: unix time in seconds of the measurement; by default, the time when ``health`` was called. Set it when you report an
            older measurement, such as the last report of a monitor: otherwise a monitor that hangs looks alive.
        timeout: seconds from ``measured`` until the device becomes unknown, unless a new report arrives. It must be longer than
            ``HEALTH_INTERVAL``. By default, it is the longer of 30 s and three times that interval.

    Raises:
        DriverError: ``taints`` is not a list of taints, or keeps pods away although ``healthy`` is not False; or a time is out of range.
    """

    healthy: bool | None
    message: str = ""
    taints: Sequence[Taint] = ()
    measured: float | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("measured", 0.0), ("timeout", 1e-3)):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and least <= value < _MAX_SECONDS):
                raise DriverError(
                    f"Health.{name} is {printable(value)}: it must be in seconds, {'unix time' if not least else 'above 0'}"
                )
        taints = () if isinstance(self.taints, Taint) else tuple(self.taints)
        if isinstance(self.taints, Taint) or not all(isinstance(t, Taint) for t in taints):
            raise DriverError(f"Health.taints is {printable(self.taints)}: it must be a list of Taint")
        if len(taints) > MAX_TAINTS:
            raise DriverError(f"Health has {len(taints)} taints: a device may have at most {MAX_TAINTS}")
        if (self.healthy is None or self.healthy) and any(t.effect != INFORMATIONAL for t in taints):
            raise DriverError(
                "Health has a taint that keeps pods away but is not unhealthy: set healthy=False, use the effect None, or put the "
                "taint on the Device"
            )
        object.__setattr__(self, "taints", taints)
