"""The prepared-claim engine: verify, guard, record, prepare, undo, unprepare, reconcile."""

from .engine import Answer, ClaimIdentity
from .manager import ClaimManager
from .record import Record, State
from .store.store import RecordStore

__all__ = ["Answer", "ClaimIdentity", "ClaimManager", "Record", "RecordStore", "State"]
