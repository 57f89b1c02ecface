"""The records in memory. Operations read and change them; changes can be undone until they are written.

An operation gets a :class:`Records` object. A fence protects each change from concurrent changes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...devices.pool_state import Held
from ...errors import ClaimTakenError, DeviceHeldError
from ..capacity import Hold, shared_supplies
from ..record import (
    VERSION,
    Fence,
    Head,
    Record,
    Row,
    State,
    UnreadableRecord,
    checked_line,
    checked_text,
    decode_record,
    encode_record,
    is_intact,
    read_head,
)

RECOVER = "recover"  # meta key: recover() of the driver has still to be called
SUFFIX = ".json"
NODE_FILE = "_node.json"  # the node file, with the meta keys; no UID has an underscore


class _NodeFile(msgspec.Struct):
    meta: dict[str, str]


class Stored(NamedTuple):
    """One claim: its file, and what the file's head says."""

    data: bytes
    head: Head
    holds: tuple[Hold, ...]

    @property
    def is_damaged(self) -> bool:
        """Whether the head is damaged, so that the claim's devices are not known."""
        return not self.head.state

    @property
    def is_intact(self) -> bool:
        return not self.is_damaged and is_intact(self.data)


def stored_of(data: bytes, name: str) -> Stored:
    """Returns the claim in a file. Only its UID is known if the file's head is damaged, or belongs to another claim."""
    head = read_head(data)
    if head is None or file_name(head.uid) != name:
        head = Head(VERSION, uid_of(name), "", "", "", "", "", 0.0, ())
    return Stored(data, head, head.holds)


def meta_of(data: bytes) -> Mapping[str, str] | None:
    """Returns the meta keys in a node file; None if it is damaged."""
    try:
        return msgspec.json.decode(checked_text(data.removesuffix(b"\n")) or b"", type=_NodeFile).meta
    except (ValueError, RecursionError):
        return None


class HeldByError(DeviceHeldError):
    """Another claim holds a device; ``holders`` are the records of the claims that hold it."""

    def __init__(self, device: str, holders: Sequence[Row]) -> None:
        self.device = device
        self.holders = holders
        first = holders[0]
        if isinstance(first, UnreadableRecord):
            rest = f"whose record cannot be read ({first.reason}): see `dra claims`"
        else:
            rest = f"which is {first.state}: the device is free when that claim's pod has stopped"
        super().__init__(f"device {device} is still held by claim {first.shown}, {rest}")


class Records:
    """The records of one driver. Reads return copies. Each change can be undone until :meth:`commit`."""

    def __init__(self) -> None:
        self._claims: dict[str, Stored] = {}
        self._holds: defaultdict[tuple[str, str], list[Hold]] = defaultdict(list)  # by pool and device
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

    def changed_files(self) -> dict[str, bytes | None]:
        """Returns the content of each file that has changed since the last commit, by its name; None for a file to remove."""
        out: dict[str, bytes | None] = {}
        for restore, key, _ in self._undo:
            if restore == self._set_meta:
                out[NODE_FILE] = checked_line({"version": VERSION, "meta": self._meta})
            else:
                stored = self._claims.get(key)
                out[file_name(key)] = stored.data if stored else None
        return out

    # --- files ----------------------------------------------------------------------------------

    def load_meta(self, meta: Mapping[str, str]) -> None:
        """Takes the meta keys from the node file."""
        self._meta = dict(meta)

    def load(self, stored: Stored) -> None:
        """Takes a claim from its file."""
        self._set_claim(stored.head.uid, stored)

    def unload(self, uid: str) -> None:
        """Removes a claim whose file is gone."""
        self._set_claim(uid, None)

    def restore(self, stored: Stored) -> None:
        """Adds a claim whose file is to be written again."""
        self._change(self._set_claim, self._claims, stored.head.uid, stored)

    def stored(self) -> Mapping[str, Stored]:
        """Returns the claims by UID."""
        return self._claims

    def conflicts(self, rank: Callable[[Stored], Any]) -> list[tuple[str, str]]:
        """Returns pairs of claims that hold one device: the claim with the higher rank, and the claim that keeps the device."""
        kept, found = set[str](), []
        uids = set[str]()
        for holds in self._holds.values():
            shares = [hold.share for hold in holds]
            if len(holds) > 1 and (not all(shares) or len(set(shares)) < len(shares)):
                uids |= {hold.uid for hold in holds}
        for uid in sorted(uids, key=lambda uid: rank(self._claims[uid])):
            others = (other for hold in self._claims[uid].holds for other in self.holders(hold))
            if other := next((other for other in others if other in kept), None):
                found.append((uid, other))
            else:
                kept.add(uid)
        return found

    def _change(self, set_to: Callable[[str, Any], None], table: Mapping[str, Any], key: str, new: Any) -> None:
        self._undo.append((set_to, key, table.get(key)))
        set_to(key, new)

    def _set_claim(self, uid: str, new: Stored | None) -> None:
        old = self._claims.pop(uid, None)
        for hold in old.holds if old else ():
            self._holds[hold.pool, hold.device].remove(hold)
        if new:
            self._claims[uid] = new
            for hold in new.holds:
                self._holds[hold.pool, hold.device].append(hold)

    def _set_meta(self, key: str, value: str | None) -> None:
        if value is None:
            self._meta.pop(key, None)
        else:
            self._meta[key] = value

    # --- reads ----------------------------------------------------------------------------------

    def read(self, uid: str) -> Row | None:
        stored = self._claims.get(uid)
        return decode_record(stored.head, stored.data) if stored else None

    def read_all(self) -> list[Row]:
        """Returns every record, readable or not, oldest first."""
        rows = (decode_record(stored.head, stored.data) for stored in self._claims.values())
        return sorted(rows, key=lambda r: (r.created if isinstance(r, Record) else 0.0, r.uid))

    def damaged(self) -> list[str]:
        """Returns the UIDs of claims whose devices are not known, because the head of their file is damaged."""
        return sorted(uid for uid, stored in self._claims.items() if stored.is_damaged)

    def uids(self) -> set[str]:
        """Returns the UIDs of all claims that have a record."""
        return set(self._claims)

    def count_prepared(self) -> int:
        return sum(s.head.state == State.PREPARED for s in self._claims.values())

    def held_devices(self) -> Held:
        """Returns each device that some claim has, including admin access, with its published description if that is known."""
        held: dict[tuple[str, str], Mapping[str, Any]] = {key: {} for key, holds in self._holds.items() if holds}
        for row in self.read_all():
            for d in row.devices if isinstance(row, Record) else ():
                held[d["pool"], d["device"]] = d.get("published") or held.get((d["pool"], d["device"])) or {}
        return held

    def holders(self, hold: Hold) -> list[str]:
        """Returns other claims whose hold conflicts: shares of a device can coexist, a whole device excludes every other hold."""
        others = (other for other in self._holds.get((hold.pool, hold.device), ()) if other.uid != hold.uid)
        found = (o.uid for o in others if not o.share or not hold.share or o.share == hold.share)
        return list(dict.fromkeys(found))

    def check_free(self, record: Record) -> None:
        """Raises :class:`HeldByError` with all other claims that hold a device of ``record``."""
        held = [(hold.device, uid) for hold in record.holds() for uid in self.holders(hold)]
        if held:
            rows = [row for uid in dict.fromkeys(uid for _, uid in held) if (row := self.read(uid))]
            raise HeldByError(held[0][0], rows)

    def other_holds(self, wanted: Sequence[Hold], uid: str) -> list[Hold]:
        """Returns the holds of other claims than ``uid`` on the counter sets and devices from which ``wanted`` takes something."""
        supplies = shared_supplies(wanted)
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
        self._put(record, tuple(record.holds()))

    def update(self, record: Record, fence: Fence) -> bool:
        """Updates a record; fields of a newer version stay. Returns False, without effect, if the fence does not match."""
        stored = self._claims.get(fence.uid)
        if stored is None or stored.head.fence != fence:
            return False
        self._put(record, stored.holds, stored.data)
        return True

    def update_owned(self, record: Record, fence: Fence) -> None:
        """Updates a record on which this process works. Raises :class:`ClaimTakenError` if the fence does not match."""
        if not self.update(record, fence):
            raise ClaimTakenError(
                f"claim {record.shown} was taken over by another instance of the plugin: this instance stops its work on it"
            )

    def _put(self, record: Record, holds: tuple[Hold, ...], before: bytes = b"") -> None:
        record.updated = time.time()
        data = encode_record(record, holds, before)
        head = read_head(data)
        assert head
        self._change(self._set_claim, self._claims, record.uid, Stored(data, head, holds))

    def delete(self, fence: Fence) -> bool:
        """Deletes a record with its holds. Returns False, without effect, if the fence does not match."""
        stored = self._claims.get(fence.uid)
        if stored is None or stored.head.fence != fence:
            return False
        self.forget(fence.uid)
        return True

    def forget(self, uid: str) -> None:
        """Deletes a record and its holds in any state; for operators, and for records that cannot be read."""
        if uid in self._claims:
            self._change(self._set_claim, self._claims, uid, None)

    # --- meta keys ------------------------------------------------------------------------------

    def get_meta(self, prefix: str) -> dict[str, str]:
        """Returns the values of the meta keys with a prefix, by the rest of the key."""
        return {key[len(prefix) :]: value for key, value in self._meta.items() if key.startswith(prefix)}

    def has_meta(self, key: str) -> bool:
        return key in self._meta

    def set_meta(self, key: str, value: str) -> None:
        if self._meta.get(key) != value:
            self._change(self._set_meta, self._meta, key, value)

    def clear_meta(self, prefix: str) -> None:
        for key in [key for key in self._meta if key.startswith(prefix)]:
            self._change(self._set_meta, self._meta, key, None)


def uid_of(name: str) -> str:
    """Returns the UID of a claim by the name of its file."""
    return name.removesuffix(SUFFIX)


def file_name(uid: str) -> str:
    """Returns the name of a claim's file. Its UID may be part of a file name, see :func:`.is_uid`."""
    return uid + SUFFIX
