"""Claim manager: prepares and unprepares claims, rolls back failures, and reconciles records with the API server."""

from .claim_fields import ClaimIdentity
from .context import PluginContext
from .engine import ClaimOutcome
from .manager import ClaimManager
from .record import Record, State
from .store.store import RecordStore
from .summary import ClaimSnapshot, ClaimSummary

__all__ = [
    "ClaimIdentity",
    "ClaimManager",
    "ClaimOutcome",
    "ClaimSnapshot",
    "ClaimSummary",
    "PluginContext",
    "Record",
    "RecordStore",
    "State",
]
