"""The prepared-claim engine: verify, guard, record, prepare, undo, unprepare, reconcile."""

from .engine import Answer, ClaimRef
from .record import Record, State
from .room import Claims
from .store import Store

__all__ = ["Answer", "ClaimRef", "Claims", "Record", "State", "Store"]
