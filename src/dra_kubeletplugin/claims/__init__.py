"""The prepared-claim engine: verify, guard, record, prepare, undo, unprepare, reconcile."""

from .engine import Answer, ClaimRef, Engine
from .record import Record, State
from .store import Store

__all__ = ["Answer", "ClaimRef", "Engine", "Record", "State", "Store"]
