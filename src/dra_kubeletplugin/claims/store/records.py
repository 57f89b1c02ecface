"""The records in memory: reads and changes by operations, which can be undone until they are written.

An operation gets a :class:`Records` object. A fence protects each change from concurrent changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...base.text import join_names
from ...devices.pool_state import Held
from ...errors import DeviceHeldError, OverdrawnError, printable
from ..capacity import Hold, Shortage, shared_supplies
from ..record import Fence, Record, State, UnreadableRecord, check_doc
from .lines import DELETE, META, PUT, Change, Line, encode

_NAMES = frozenset({"uid", "namespace", "name"})  # used in messages, commands and file names
_MOST = 1e12  # seconds, or attempts: no recorded number is larger
_BLANKS = str.maketrans("\n\t", "\ufffd\ufffd")
_NAMED = 4  # holders that a message lists
_TAKES_UNKNOWN = " (amount unknown)"
_LOST = "its line in the journal is damaged"
Row = Record | UnreadableRecord


class HeldByError(DeviceHeldError):
    """Devices are held; ``holders`` are the records of the claims that hold them."""

    def __init__(self, device: str, holders: Sequence[Row]) -> None:
        self.device = device
        self.holders = holders
        super().__init__(f"device {device} is still held by claim {_shown(holders[0])}")


def _shown(holder: Row) -> str:
    if isinstance(holder, UnreadableRecord):
        return f"{holder.shown}, whose record cannot be read ({holder.reason}): see `dra claims`"
    return f"{holder.shown}, which is {holder.state}: it is free when that claim's pod has stopped"


class OverdrawnByError(OverdrawnError):
    """Counters or capacity do not suffice; ``holders`` are the records of the claims that take them."""

    def __init__(self, shortage: Shortage, holders: Sequence[Row]) -> None:
        self.shortage = shortage
        self.holders = holders
        shown = [f"{h.shown}{_TAKES_UNKNOWN if h.uid in shortage.unknown else ''}" for h in holders]
        by = f" by claim{'s' if len(holders) > 1 else ''} {join_names(shown, _NAMED)}: it is free when their pods have stopped"
        super().__init__(f"device {', '.join(shortage.devices)}: {shortage}{by if holders else ''}")


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
        """Returns the lines that describe everything."""
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
        row = _decode(body)
        if not row.uid:
            return
        old = self._claims.get(row.uid)
        holds = old.holds if old and not old.body else _holds_of(row) or (old.holds if old else ())
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
        fields = msgspec.structs.asdict(record) | {"error": printable(record.error)}
        new = Stored(msgspec.json.encode(fields | newer), f"{record.namespace}/{record.name}", holds, record.fence)
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
    row = _decode(stored.body)
    if isinstance(row, Record):
        return row
    namespace, _, name = stored.claim.partition("/")
    head = {"uid": uid, "namespace": namespace, "name": name}
    return UnreadableRecord(shown_key(uid), row.reason if stored.body else _LOST, {**head, **row.raw})


def _decode(body: bytes) -> Row:
    """Decodes a body. Returns an unreadable record with the reason if it is not valid."""
    raw: dict[str, Any] = {}
    try:
        raw = msgspec.json.decode(body, type=dict[str, Any])
        return Record(
            uid=_text(raw, "uid"),
            namespace=_text(raw, "namespace"),
            name=_text(raw, "name"),
            state=State(_text(raw, "state")),
            boot_id=_text(raw, "boot_id"),
            owner=_text(raw, "owner"),
            doc=check_doc(raw.get("doc")),
            error=_text(raw, "error"),
            attempts=int(_number(raw, "attempts")),
            created=_number(raw, "created"),
            updated=_number(raw, "updated"),
        )
    except (ValueError, RecursionError) as e:
        return UnreadableRecord(shown_key(raw.get("uid", "")), printable(e), raw)


def _holds_of(row: Row) -> tuple[Hold, ...]:
    """Returns what a record holds, also one that this version cannot read, if its devices have the known shape."""
    if isinstance(row, UnreadableRecord):
        try:
            row = Record(row.uid, "", "", State.PREPARED, "", doc=check_doc(row.raw.get("doc")))
        except ValueError:
            return ()
    return tuple(row.holds())


def _text(raw: Mapping[str, object], column: str) -> str:
    value = raw.get(column)
    if (
        not isinstance(value, str)
        or (column in _NAMES and not (value.isascii() and value.isprintable()) and value != shown_key(value))
        or (column == "uid" and not value)
    ):
        raise ValueError(f"field {column} is not a valid text")
    return value


def _number(raw: Mapping[str, object], column: str) -> float:
    value = raw.get(column)
    if not isinstance(value, int | float) or not abs(value) < _MOST:
        raise ValueError(f"field {column} is not a valid number")
    return value


def shown_key(raw: object) -> str:
    """Returns a UID of the journal as messages and commands show it."""
    return printable(raw).translate(_BLANKS)
