"""The records in memory. Operations read and change them; changes can be undone until they are written.

An operation gets a :class:`Records` object. A fence protects each change from concurrent changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...devices.pool_state import Held
from ..capacity import Hold, shared_supplies
from ..holders import HeldByError
from ..record import Fence, Record, Row, State, UnreadableRecord, decode_record, encode_record, holds_of, shown_key
from .lines import DELETE, META, PUT, Change, Line, encode

_LOST = "its line in the journal is damaged"
RECOVER = "recover"  # meta key: recover() of the driver has still to be called


class Stored(NamedTuple):
    """One claim. ``body`` is JSON as it was last written; it is empty if it was lost. ``fence`` is None if ``body`` has none."""

    body: bytes
    claim: str  # namespace/name
    holds: tuple[Hold, ...]
    fence: Fence | None

    def line(self, uid: str) -> bytes:
        """Returns the claim as a line of the journal."""
        holds = tuple((h.pool, h.device, h.share, h.takes) for h in self.holds)
        return encode(Change(PUT, uid, self.claim, holds), self.body)


class Records:
    """The records of one driver. Reads return copies. Each change can be undone until :meth:`commit`."""

    def __init__(self) -> None:
        self._claims: dict[str, Stored] = {}
        self._holders: dict[tuple[str, str], dict[str, None]] = {}  # UIDs by pool and device
        self._meta: dict[str, str] = {}
        self._undo: list[tuple[Callable[[str, Any], None], str, Any]] = []

    # --- transactions ---------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """The number of changes since the last commit; an argument for :meth:`undo`."""
        return len(self._undo)

    def undo(self, to: int = 0) -> None:
        """Undoes the changes after the first ``to``."""
        while len(self._undo) > to:
            restore, key, old = self._undo.pop()
            restore(key, old)

    def commit(self) -> None:
        """Ends the transaction: its changes cannot be undone any more."""
        self._undo.clear()

    def changed_lines(self) -> bytes:
        """Returns the lines that describe all changes since the last commit."""
        before: dict[tuple[bool, str], Any] = {}
        for restore, key, old in self._undo:
            before.setdefault((restore == self._set_claim, key), old)
        out = []
        for (is_claim, key), old in before.items():
            if not is_claim:
                out.append(encode(Change(META, key=key, value=self._meta.get(key))))
            elif new := self._claims.get(key):
                out.append(new.line(key))
            elif old:
                out.append(encode(Change(DELETE, key)))
        return b"".join(out)

    def all_lines(self) -> bytes:
        """Returns the lines that describe all records and metadata."""
        meta = [encode(Change(META, key=key, value=value)) for key, value in self._meta.items()]
        return b"".join([*meta, *(stored.line(uid) for uid, stored in self._claims.items())])

    def apply(self, line: Line) -> None:
        """Applies a line of the journal. Lines of unknown changes have no effect."""
        change = line.change
        if change is None:
            self._apply_body(line.body)
        elif change.op == PUT:
            holds = tuple(Hold(*hold, change.uid) for hold in change.holds)
            self._set_claim(change.uid, Stored(line.body, change.claim, holds, _fence_of(line.body)))
        elif change.op == DELETE:
            self._set_claim(change.uid, None)
        elif change.op == META:
            self._set_meta(change.key, change.value)

    def _apply_body(self, body: bytes) -> None:
        """Applies the body of a damaged line. The head of the same line was applied before, unless it is damaged."""
        row = decode_record(body)
        if not row.uid:
            return
        old = self._claims.get(row.uid)
        holds = old.holds if old and not old.body else holds_of(row) or (old.holds if old else ())
        self._set_claim(row.uid, Stored(body, row.shown.partition(" ")[0], holds, _fence_of(body)))

    def _change(self, set_to: Callable[[str, Any], None], table: Mapping[str, Any], key: str, new: Any) -> None:
        self._undo.append((set_to, key, table.get(key)))
        set_to(key, new)

    def _set_claim(self, uid: str, new: Stored | None) -> None:
        old = self._claims.get(uid)
        if old and (new is None or old.holds is not new.holds):
            for hold in old.holds:
                if holders := self._holders.get((hold.pool, hold.device)):
                    holders.pop(uid, None)
                    if not holders:
                        del self._holders[hold.pool, hold.device]
        if new is None:
            self._claims.pop(uid, None)
            return
        self._claims[uid] = new
        if old is None or old.holds is not new.holds:
            for hold in new.holds:
                self._holders.setdefault((hold.pool, hold.device), {})[uid] = None

    def _set_meta(self, key: str, value: str | None) -> None:
        if value is None:
            self._meta.pop(key, None)
        else:
            self._meta[key] = value

    # --- reads ----------------------------------------------------------------------------------

    def read(self, uid: str) -> Row | None:
        stored = self._claims.get(uid)
        return None if stored is None else _row(uid, stored)

    def read_all(self) -> list[Row]:
        """Returns every record, readable or not, oldest first."""
        found = [_row(uid, stored) for uid, stored in self._claims.items()]
        return sorted(found, key=lambda r: (r.created if isinstance(r, Record) else 0.0, r.uid))

    def uids(self) -> set[str]:
        """Returns the UIDs of all claims that have a record."""
        return set(self._claims)

    def count_prepared(self) -> int:
        return sum(s.fence is not None and s.fence.state is State.PREPARED for s in self._claims.values())

    def held_devices(self) -> Held:
        """Returns each device that some claim has, including admin access, with its published description if that is known."""
        held: dict[tuple[str, str], Mapping[str, Any]] = {key: {} for key in self._holders}
        for row in self.read_all():
            for d in row.devices if isinstance(row, Record) else ():
                held[d["pool"], d["device"]] = d.get("published") or held.get((d["pool"], d["device"])) or {}
        return held

    def holder(self, uid: str) -> Row:
        """Returns the record of a claim that holds something."""
        return self.read(uid) or UnreadableRecord(uid, "its record cannot be found", {})

    def holders(self, hold: Hold) -> list[str]:
        """Returns other claims whose hold conflicts: shares of a device can coexist, a whole device excludes every other hold."""
        found = []
        for uid in self._holders.get((hold.pool, hold.device), ()):
            for other in self._claims[uid].holds if uid != hold.uid else ():
                same = (other.pool, other.device) == (hold.pool, hold.device)
                if same and (not other.share or not hold.share or other.share == hold.share):
                    found.append(uid)
                    break
        return found

    def check_free(self, record: Record) -> None:
        """Raises :class:`HeldByError` with all other claims that hold a device of ``record``."""
        found: dict[str, Row] = {}
        first = ""
        for hold in record.holds():
            for uid in self.holders(hold):
                first = first or hold.device
                found.setdefault(uid, self.holder(uid))
        if found:
            raise HeldByError(first, list(found.values()))

    def other_holds(self, wanted: Sequence[Hold], uid: str) -> list[Hold]:
        """Returns the holds of other claims than ``uid`` on the counter sets and devices from which ``wanted`` takes something."""
        supplies = set(shared_supplies(wanted))
        if not supplies:
            return []
        return [
            hold
            for other, stored in self._claims.items()
            for hold in (stored.holds if other != uid else ())
            if hold.takes != "{}" and ((hold.pool, None) in supplies or (hold.pool, hold.device) in supplies)
        ]

    # --- changes --------------------------------------------------------------------------------

    def insert(self, record: Record, *, shared: bool = False) -> None:
        """Inserts a record with its holds. With ``shared``, a device that another claim holds is then held by both.

        Raises :class:`HeldByError` with all holders, and ``ValueError`` if the claim has a record.
        """
        if not shared:
            self.check_free(record)
        if record.uid in self._claims:
            raise ValueError(f"claim {record.uid} has a record")
        self._put(record, tuple(record.holds()), {})

    def add_missing(self, other: Records, ended: Container[str]) -> None:
        """Adds the claims of ``other`` that are missing here and have not ended, with their holds. A device may then have two holders."""
        for uid, stored in other._claims.items():
            if uid not in self._claims and uid not in ended:
                self._change(self._set_claim, self._claims, uid, stored)

    def update(self, record: Record, fence: Fence) -> bool:
        """Updates a record; fields of a newer version stay. Returns False, without effect, if the fence does not match."""
        stored = self._claims.get(fence.uid)
        if stored is None or stored.fence != fence:
            return False
        raw = _raw_fields.decode(stored.body)
        self._put(record, stored.holds, {k: v for k, v in raw.items() if k not in Record.__struct_fields__})
        return True

    def _put(self, record: Record, holds: tuple[Hold, ...], newer: dict[str, msgspec.Raw]) -> None:
        record.updated = time.time()
        new = Stored(encode_record(record, newer), f"{record.namespace}/{record.name}", holds, record.fence)
        self._change(self._set_claim, self._claims, record.uid, new)

    def delete(self, fence: Fence) -> bool:
        """Deletes a record with its holds. Returns False, without effect, if the fence does not match."""
        stored = self._claims.get(fence.uid)
        if stored is None or stored.fence != fence:
            return False
        self.forget(fence.uid)
        return True

    def forget(self, uid: str) -> None:
        """Deletes a record and its holds in any state; for operators, and for records that cannot be read."""
        for key in [uid] if uid in self._claims else [key for key in self._claims if shown_key(key) == uid]:
            self._change(self._set_claim, self._claims, key, None)

    # --- metadata -------------------------------------------------------------------------------

    def get_meta(self, prefix: str) -> dict[str, str]:
        """Returns the metadata of the records for a key prefix, by the rest of the key."""
        return {key[len(prefix) :]: value for key, value in self._meta.items() if key.startswith(prefix)}

    def has_meta(self, key: str) -> bool:
        return key in self._meta

    def set_meta(self, key: str, value: str) -> None:
        if self._meta.get(key) != value:
            self._change(self._set_meta, self._meta, key, value)

    def clear_meta(self, prefix: str) -> None:
        for key in [key for key in self._meta if key.startswith(prefix)]:
            self._change(self._set_meta, self._meta, key, None)


# --- encoding -----------------------------------------------------------------------------------


_fences = msgspec.json.Decoder(Fence)
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _fence_of(body: bytes) -> Fence | None:
    try:
        return _fences.decode(body)
    except (ValueError, RecursionError):
        return None


def _row(uid: str, stored: Stored) -> Row:
    row = decode_record(stored.body)
    if isinstance(row, Record):
        return row
    namespace, _, name = stored.claim.partition("/")
    head = {"uid": uid, "namespace": namespace, "name": name}
    return UnreadableRecord(shown_key(uid), row.reason if stored.body else _LOST, {**head, **row.raw})
