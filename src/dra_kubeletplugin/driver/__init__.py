"""The public classes for driver authors, and the functions that load and check a driver class."""

from .attachment import attach
from .bound import BoundClaim, BoundDevice
from .claim import (
    AllocatedDevice,
    Claim,
    PreparedClaim,
    PreparedDevice,
    RecoveredClaim,
    SharedStep,
)
from .class_validation import check, make
from .config.model import Config
from .contract import Driver, Role
from .health import Health
from .loading import load_driver
from .metadata_update import MetadataUpdate
from .options import as_flags, declared, read_options
from .self_checks import Check
from .status import Condition, DeviceStatus, NetworkData

__all__ = [
    "AllocatedDevice",
    "BoundClaim",
    "BoundDevice",
    "Check",
    "Claim",
    "Condition",
    "Config",
    "DeviceStatus",
    "Driver",
    "Health",
    "MetadataUpdate",
    "NetworkData",
    "PreparedClaim",
    "PreparedDevice",
    "RecoveredClaim",
    "Role",
    "SharedStep",
    "as_flags",
    "attach",
    "check",
    "declared",
    "load_driver",
    "make",
    "read_options",
]
