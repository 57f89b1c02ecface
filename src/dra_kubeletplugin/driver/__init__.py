"""What an author writes and is given."""

from .claim import AllocatedDevice, Claim, PreparedClaim, PreparedDevice, RecoveredClaim
from .config import Config
from .contract import Driver, Health, Role
from .loading import load_driver

__all__ = [
    "AllocatedDevice",
    "Claim",
    "Config",
    "Driver",
    "Health",
    "PreparedClaim",
    "PreparedDevice",
    "RecoveredClaim",
    "Role",
    "load_driver",
]
