"""Claim manager: prepares and unprepares claims, rolls back failures, and reconciles records with the API server."""

from .claim_fields import ClaimIdentity
from .engine import ClaimOutcome
from .manager import ClaimManager
from .record import Record, Row, State
from .rollback import PluginContext
from .store.store import RecordStore

__all__ = [
    "ClaimIdentity",
    "ClaimManager",
    "ClaimOutcome",
    "PluginContext",
    "Record",
    "RecordStore",
    "Row",
    "State",
]
