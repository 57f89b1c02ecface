"""The record of a claim: enough for any process to report the claim as prepared, or to roll it back."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..cdi import ContainerEdits
from ..cdi.spec import check_shape
from ..driver import AllocatedDevice, PreparedClaim, PreparedDevice
from ..errors import InvalidSpecError, clip, printable
from .capacity import Hold, encoded

JSON = dict[str, Any]
SUPERSEDED = "superseded"  # field of ``doc``
UNDONE = "undone"  # field of ``doc``
UNPROVEN = "unproven"  # field of ``doc``
_NO_EDITS = ContainerEdits()
_MOST = 1e12  # seconds, or attempts: no recorded number is larger
_NAMES = frozenset({"uid", "namespace", "name"})  # used in messages, commands and file names
_BLANKS = str.maketrans("\n\t", "\ufffd\ufffd")


class State(enum.StrEnum):
    PREPARING = "Preparing"
    PREPARED = "Prepared"
    UNPREPARING = "Unpreparing"


class Record(msgspec.Struct):
    """The record of one claim. ``doc`` is JSON; fields that this version does not know are kept.

    Fields of ``doc``: ``devices`` (request, pool, device, shareID, adminAccess, takes, published, cdi, data), ``undo`` (step,
    data), ``shared`` (its shared steps: step, key, data, and whether the state is set up: ready), ``cdi`` (the claim's CDI spec),
    ``metadata`` (content of its metadata files), ``complete``, ``operation``.
    ``retryAt`` is when a failed rollback is retried, in seconds since 1970. ``rebuilt`` is set if no prepare wrote the record.
    ``superseded`` is set if another claim has got a device of the claim since: the driver is not called to undo the claim.
    ``undone`` is set if unprepare and all undo steps have succeeded, and only shared steps remain.
    ``unproven`` is set if the claim may have ended: its record is from a damaged journal, and it has no note.
    ``takes`` has the amounts of counters and capacity that the claim takes; it is missing if they are not known.
    ``published`` is the device as this driver published it, with its counter sets. It is used if the device vanishes while in use.
    """

    uid: str
    namespace: str
    name: str
    state: State
    boot_id: str
    owner: str = ""  # the process that works on the claim; empty if none does
    doc: JSON = msgspec.field(default_factory=dict)
    error: str = ""
    attempts: int = 0
    created: float = msgspec.field(default_factory=time.time)
    updated: float = msgspec.field(default_factory=time.time)

    @property
    def devices(self) -> list[JSON]:
        found: list[JSON] = self.doc.get("devices") or []
        return found

    @property
    def steps(self) -> list[JSON]:
        """The registered undo steps, oldest first."""
        found: list[JSON] = self.doc.get("undo") or []
        return found

    @property
    def shared(self) -> list[JSON]:
        """The shared steps that the claim uses, oldest first."""
        found: list[JSON] = self.doc.get("shared") or []
        return found

    @property
    def retry_at(self) -> float | None:
        """When a failed rollback is retried, in seconds since 1970; None if that is not known."""
        found = self.doc.get("retryAt")
        return float(found) if isinstance(found, int | float) and abs(found) < _MOST else None

    @property
    def partial(self) -> bool:
        """Whether only the devices are known, and not the CDI edits that a container gets with them."""
        return bool(self.doc.get("rebuilt")) and not self.doc.get("complete")

    @property
    def shown(self) -> str:
        """The claim's name in messages."""
        return f"{self.namespace or '?'}/{self.name or '?'} (UID {self.uid})"

    @property
    def fence(self) -> Fence:
        """The fence for a write that is based on this version of the record."""
        return Fence(self.uid, self.owner, self.state)

    def holds(self) -> list[Hold]:
        """Returns the devices that the claim holds exclusively, sorted.

        A device with admin access is not held. A device in two requests is held once.
        """
        found = {identity(d): encoded(d.get("takes")) for d in self.devices if not d.get("adminAccess")}
        return [Hold(*key, takes, self.uid) for key, takes in sorted(found.items())]

    def same_allocation(self, other: Record) -> bool:
        """Whether both records have the same devices."""
        return sorted(map(identity, self.devices)) == sorted(map(identity, other.devices))

    def complete_from(self, wanted: Record) -> None:
        """Fills the gaps of a rebuilt record: the claim's name and its requests."""
        self.namespace, self.name = wanted.namespace, wanted.name
        requests = {identity(d): d.get("request", "") for d in wanted.devices}
        for d in self.devices:
            d["request"] = d.get("request") or requests.get(identity(d), "")

    def prepared_claim(self, boot_id: str) -> PreparedClaim:
        """Returns the argument of :meth:`Driver.unprepare`."""
        devices = [
            PreparedDevice(
                request=d.get("request", ""),
                pool=d["pool"],
                name=d["device"],
                share_id=d.get("shareID"),
                admin_access=bool(d.get("adminAccess")),
                edits=_NO_EDITS,
                data=d.get("data"),
            )
            for d in self.devices
        ]
        return PreparedClaim(
            namespace=self.namespace,
            name=self.name,
            uid=self.uid,
            devices=devices,
            complete=bool(self.doc.get("complete")),
            same_boot=self.boot_id == boot_id,
        )


class Fence(msgspec.Struct, frozen=True):
    """The owner and state of a record when a writer read it. The write takes effect only if both are unchanged."""

    uid: str
    owner: str
    state: State


class UnreadableRecord(msgspec.Struct, frozen=True):
    """A record that this version cannot read. It stays as it is, and its devices stay held."""

    uid: str
    reason: str
    raw: Mapping[str, object]

    @property
    def shown(self) -> str:
        namespace, name = (clip(self.raw.get(key) or "?", 253) for key in ("namespace", "name"))
        return f"{namespace}/{name} (UID {self.uid})"


Row = Record | UnreadableRecord


class InFlightRecords:
    """Records that this process works on, as it last wrote them. They are restored if the journal is lost."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}

    def put(self, record: Record) -> None:
        # Documents are replaced and never changed in place, so a shallow copy is enough.
        self._records[record.uid] = msgspec.structs.replace(record, doc=dict(record.doc))

    def drop(self, uid: str) -> None:
        self._records.pop(uid, None)

    def records(self) -> list[Record]:
        """Returns the records. Can be called from any thread."""
        return list(self._records.values())


def identity(device: Mapping[str, Any]) -> tuple[str, str, str]:
    return (device["pool"], device["device"], device.get("shareID") or "")


def allocated_json(device: AllocatedDevice | PreparedDevice) -> JSON:
    """Returns a device as its record stores it before the device is prepared."""
    out: JSON = {"request": device.request, "pool": device.pool, "device": device.name}
    if device.share_id:
        out["shareID"] = device.share_id
    if device.admin_access:
        out["adminAccess"] = True
    return out


def check_doc(doc: object) -> JSON:
    """Checks that a document's devices and steps have the shape that all readers rely on.

    Raises ``ValueError``.
    """
    if not isinstance(doc, dict):
        raise ValueError("the document is not an object")
    devices, steps, shared = (doc.get(key) or [] for key in ("devices", "undo", "shared"))
    if not isinstance(devices, list) or not all(map(_is_device, devices)):
        raise ValueError("a device has no pool or no name")
    if not isinstance(steps, list) or not all(map(_is_step, steps)):
        raise ValueError("an undo step has no name or no data")
    if not isinstance(shared, list) or not all(_is_step(s) and isinstance(s.get("key"), str) for s in shared):
        raise ValueError("a shared step has no name, no key or no data")
    if (metadata := doc.get("metadata")) is not None and not _is_metadata(metadata):
        raise ValueError("the device metadata has an unknown shape")
    try:
        check_shape(doc.get("cdi"))
    except InvalidSpecError as e:
        raise ValueError(f"the CDI spec cannot be used: {e}") from None
    return doc


def _is_device(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(key), str) for key in ("pool", "device"))
        and isinstance(entry.get("request", ""), str)
        and isinstance(entry.get("shareID") or "", str)
        and isinstance(entry.get("cdi") or [], list)
    )


def _is_metadata(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("requests"), dict):
        return False
    updates = entry.get("updates") or {}
    typed = isinstance(entry.get("generation"), int) and isinstance(entry.get("podClaim"), str)
    typed = typed and isinstance(updates, dict) and all(isinstance(n, int) for n in updates.values())
    return typed and all(isinstance(of, list) and all(map(_is_described, of)) for of in entry["requests"].values())


def _is_described(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(k), str) for k in ("driver", "pool", "name"))


def _is_step(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("step"), str) and isinstance(entry.get("data"), dict)


def request_names(requests: Sequence[str]) -> list[str]:
    """Returns request names in the kubelet's form: the base of ``request/subrequest``. An empty list means all requests."""
    return sorted({r.partition("/")[0] for r in requests if r})


# --- encoding -----------------------------------------------------------------------------------


def encode_record(record: Record, newer: dict[str, msgspec.Raw]) -> bytes:
    """Encodes a record together with ``newer``: fields of a newer version that this version does not know."""
    return msgspec.json.encode(msgspec.structs.asdict(record) | {"error": printable(record.error)} | newer)


def decode_record(body: bytes) -> Row:
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


def holds_of(row: Row) -> tuple[Hold, ...]:
    """Returns the holds of a record. For an unreadable record, returns them only if its devices have the known shape."""
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
    """Returns a recorded UID as messages and commands show it."""
    return printable(raw).translate(_BLANKS)
