"""The conformance suite: black-box checks for any DRA driver, in any language.

The suite is a kubelet, an API server and a reader of CDI specs around an unmodified driver process. A check is one function in
`checks/`. It uses the driver's sockets, files and requests only, never the framework of the driver.
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
