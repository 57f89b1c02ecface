"""The conformance suite: black-box checks for any DRA driver, in any language.

The suite provides a kubelet, an API server and a reader of CDI specs, and starts the unmodified driver with them. A check is one
function in `checks/`. A check uses only the driver's sockets, files and requests, and not the framework with which it was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra_kubeletplugin.base.lazy_names import lazy_names

from . import _grpc_log  # noqa: F401 before every import of grpc

if TYPE_CHECKING:
    from .catalogue import CATALOGUE, ConformanceCheck, Requirement
    from .profile import ConformanceProfile, read_profile
    from .reports import conformance_report
    from .runner import CheckOutcome, ConformanceRun, run_checks, select_checks

# `dra --help` loads this package, and shows only the name of its command.
__getattr__ = lazy_names(
    __name__,
    {
        ".catalogue": "CATALOGUE ConformanceCheck Requirement",
        ".profile": "ConformanceProfile read_profile",
        ".reports": "conformance_report",
        ".runner": "CheckOutcome ConformanceRun run_checks select_checks",
    },
)

__all__ = [
    "CATALOGUE",
    "CheckOutcome",
    "ConformanceCheck",
    "ConformanceProfile",
    "ConformanceRun",
    "Requirement",
    "conformance_report",
    "read_profile",
    "run_checks",
    "select_checks",
]
