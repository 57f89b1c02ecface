"""How often and how long the checks call, watch and wait. Tests of the suite use shorter times."""

from __future__ import annotations

from dataclasses import dataclass

from .kubelet_client import CALL_TIMEOUT


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Numbers and seconds. The defaults are those that the texts of the checks name.

    Attributes:
        calls: calls for one claim whose time PRF-001 measures.
        warm_up: cycles of PRF-002 before the first measurement.
        pings: seconds of keep-alives, ten in each second: more than a kubelet sends in an idle hour.
        rejection: seconds until the driver has logged a rejected registration.
        slow: seconds by which the suite delays the read of a claim.
        returned: maximum seconds until deleted slices are published again. Drivers in Go wait 30 s after a change of a slice
            (DefaultSyncDelay in package resourceslice), and up to 60 s more after they created the slice (DefaultMutationCacheTTL).
        watched: seconds in which a driver without changes writes less often than ``writes``.
        writes: maximum number of these writes.
        quiet: seconds to wait until a driver without changes is quiet.
        report: maximum seconds until a driver has reported dropped fields.
        first_health: seconds until the first message of health.
        retry: seconds after which no retry of a call begins; each has the time of a kubelet's call.
        call: seconds for a call that is retried.
    """

    calls: int = 100
    warm_up: int = 50
    pings: float = 5.0
    rejection: float = 10.0
    slow: float = 3.0
    returned: float = 120.0
    watched: float = 5.0
    writes: int = 10
    quiet: float = 10.0
    report: float = 10.0
    first_health: float = 10.0
    retry: float = 15.0
    call: float = CALL_TIMEOUT


DEFAULT = Pace()
