"""The conformance suite: black-box checks for any DRA driver, in any language.

The suite provides a kubelet, an API server and a reader of CDI specs, and starts the unmodified driver with them. A check is one
function in `checks/`. A check uses only the driver's sockets, files and requests, and not the framework with which it was written.
"""

from . import _grpc_log  # noqa: F401 before every import of grpc
from .catalogue import CATALOGUE, ConformanceCheck, Requirement
from .profile import ConformanceProfile, read_profile
from .reports import conformance_report
from .runner import CheckOutcome, ConformanceRun, run_checks, select_checks

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
