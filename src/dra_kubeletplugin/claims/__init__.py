"""Claim manager: prepares and unprepares claims, rolls back failures, and reconciles records with the API server."""

from .context import PluginContext
from .engine import Answer, ClaimIdentity
from .manager import ClaimManager
from .record import Record, State
from .store.store import RecordStore

__all__ = ["Answer", "ClaimIdentity", "ClaimManager", "PluginContext", "Record", "RecordStore", "State"]
