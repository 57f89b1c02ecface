"""The prepared-claim engine: verify, guard, record, prepare, undo, unprepare, reconcile."""

from .engine import Answer, ClaimRef
from .manager import Claims
from .record import Record, State
from .store.store import Store

__all__ = ["Answer", "ClaimRef", "Claims", "Record", "State", "Store"]
