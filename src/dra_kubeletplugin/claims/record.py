"""The record of a claim: enough for any process to report the claim as prepared, or to roll it back. Also its file format.

A file has two lines of JSON, each with a CRC-32 of its text. The first line, the head, says which claim it is, its state, and the devices
that it holds. The second, the body, has what a rollback and a repeated response need. So devices stay held if the body is damaged or is of
a newer version. Fields that this version does not know are kept. A change of what known fields contain needs a new ``VERSION``.
"""

from __future__ import annotations

import enum
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from ..base.json_types import JSON
from ..cdi import ContainerEdits
from ..driver import AllocatedDevice, PreparedClaim, PreparedDevice
from ..errors import printable
from .capacity import Hold, encoded

VERSION = 1
_NO_EDITS = ContainerEdits()
_Attempts = Annotated[int, msgspec.Meta(gt=-(10**12), lt=10**12)]
_Seconds = Annotated[float, msgspec.Meta(gt=-1e12, lt=1e12)]


class State(enum.StrEnum):
    PREPARING = "Preparing"
    PREPARED = "Prepared"
    UNPREPARING = "Unpreparing"


class Record(msgspec.Struct):
    """The record of one claim. Its lists and objects are replaced, and never changed in place.

    Args:
        owner: the process that works on the claim; empty if none does.
        devices: the claim's devices: ``request``, ``pool``, ``device``, ``shareID``, ``adminAccess``; ``takes``, the amounts of
            counters and capacity, missing if they are not known; ``published``, the device as this driver published it with its counter
            sets, which is used if the device vanishes while in use; ``cdi``, its CDI device ids; ``data``, the driver's data.
        undo: the registered undo steps, oldest first: ``step``, ``data``.
        shared: the shared steps that the claim uses, oldest first: ``step``, ``key``, ``data``, and ``ready`` if the state is set up.
        shared_unknown: whether the claim may use more shared steps.
        cdi: the claim's CDI spec.
        metadata: the content of its metadata files.
        operation: the id of the operation that prepared it, as in the log.
        complete: whether the claim was committed as prepared.
        recovered: whether the record is incomplete or may be old: the driver's ``recover()`` reported the claim, or the record was lost
            while another instance could change it. No repeated prepare gets its response.
        superseded: whether another claim has a device of the claim: the driver is not called to undo the claim.
        undone: whether unprepare and all undo steps have succeeded, and only shared steps remain.
        error: why the last rollback failed.
        attempts: how often it failed.
        retry_at: when it is retried, in seconds since 1970.
    """

    uid: str
    namespace: str
    name: str
    state: State
    boot_id: str = msgspec.field(name="bootID")
    owner: str = ""
    devices: list[JSON] = []
    undo: list[JSON] = []
    shared: list[JSON] = []
    shared_unknown: bool = msgspec.field(name="sharedUnknown", default=False)
    cdi: JSON | None = None
    metadata: JSON | None = None
    operation: str = ""
    complete: bool = False
    recovered: bool = False
    superseded: bool = False
    undone: bool = False
    error: str = ""
    attempts: _Attempts = 0
    retry_at: _Seconds | None = msgspec.field(name="retryAt", default=None)
    created: _Seconds = msgspec.field(default_factory=time.time)
    updated: _Seconds = msgspec.field(default_factory=time.time)

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
        """Fills the gaps of a recovered record: the claim's name and its requests."""
        self.namespace, self.name = wanted.namespace, wanted.name
        requests = {identity(d): d.get("request", "") for d in wanted.devices}
        self.devices = [{**d, "request": d.get("request") or requests.get(identity(d), "")} for d in self.devices]

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
            complete=self.complete,
            same_boot=self.boot_id == boot_id,
        )


class Fence(msgspec.Struct, frozen=True):
    """The owner and state of a record when a writer read it. The write takes effect only if both are unchanged."""

    uid: str
    owner: str
    state: str


class UnreadableRecord(msgspec.Struct, frozen=True):
    """A record that this version cannot read. It stays as it is, and its devices stay held. ``raw`` is what can be read of it."""

    uid: str
    reason: str
    raw: Mapping[str, object]

    @property
    def shown(self) -> str:
        return f"{self.raw.get('namespace') or '?'}/{self.raw.get('name') or '?'} (UID {self.uid})"


Row = Record | UnreadableRecord


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


# --- the file -----------------------------------------------------------------------------------


class _HeldDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """``takes`` is null if the amounts are not known."""

    pool: str
    device: str
    share: str = msgspec.field(name="shareID", default="")
    takes: msgspec.Raw = msgspec.Raw(b"null")


class Head(msgspec.Struct, frozen=True):
    """The first line of a file. ``devices`` are those that the claim holds exclusively."""

    version: int
    uid: str
    namespace: str
    name: str
    state: str
    owner: str
    boot_id: str = msgspec.field(name="bootID")
    created: float
    devices: tuple[_HeldDevice, ...]

    @property
    def fence(self) -> Fence:
        return Fence(self.uid, self.owner, self.state)

    @property
    def holds(self) -> tuple[Hold, ...]:
        return tuple(
            Hold(d.pool, d.device, d.share, bytes(d.takes).decode().removeprefix("null"), self.uid)
            for d in self.devices
        )


_HEAD = {f.name: f.encode_name for f in msgspec.structs.fields(Head) if f.name not in {"version", "devices"}}
_BODY = {f.name: f.encode_name for f in msgspec.structs.fields(Record) if f.name not in _HEAD}
"""The fields of a record in the head and in the body, with their names there. The body leaves out empty fields."""

_KNOWN = frozenset({*_HEAD.values(), "version", "devices", "crc"}), frozenset({*_BODY.values(), "crc"})
"""All fields of the head and of the body."""

_heads = msgspec.json.Decoder(Head)
_objects = msgspec.json.Decoder(dict[str, Any])
_raw_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])


def details(record: Record) -> JSON:
    """Returns the body of a record's file."""
    body = {key: value for name, key in _BODY.items() if (value := getattr(record, name))}
    return body | ({"error": printable(record.error)} if record.error else {})


def encode_record(record: Record, holds: Sequence[Hold], before: bytes = b"") -> bytes:
    """Returns the file of a record. ``before`` is the file that it replaces: fields of a newer version are taken from there."""
    head = {"version": VERSION} | {key: getattr(record, name) for name, key in _HEAD.items()}
    head["devices"] = [_HeldDevice(h.pool, h.device, h.share, msgspec.Raw(h.takes.encode() or b"null")) for h in holds]
    body = details(record)
    for line, fields, known in zip(before.splitlines(), (head, body), _KNOWN, strict=False):
        if text := checked_text(line):
            fields |= {key: value for key, value in _raw_objects.decode(text).items() if key not in known}
    return checked_line(head) + checked_line(body)


def read_head(data: bytes) -> Head | None:
    """Returns the head of a record's file; None if it is damaged."""
    try:
        head = _heads.decode(checked_text(data.partition(b"\n")[0]) or b"")
    except (ValueError, RecursionError):
        return None
    return head if (head.uid + head.namespace + head.name).isprintable() else None


def is_intact(data: bytes) -> bool:
    """Whether the checksums of a file's two lines match."""
    lines = data.split(b"\n")
    return len(lines) == 3 and not lines[2] and None not in map(checked_text, lines[:2])


def decode_record(head: Head, data: bytes) -> Row:
    """Returns the record in a file with this head. Returns an unreadable record with the reason if the body is not valid."""
    raw: dict[str, Any] = {key: getattr(head, name) for name, key in _HEAD.items()}
    text = checked_text(data.partition(b"\n")[2].removesuffix(b"\n"))
    if not head.state:
        reason = "the first line of its file is damaged: its devices are not known"
    elif head.version > VERSION:
        reason = f"a newer version of the plugin wrote it: format {head.version}, this version knows {VERSION}"
    elif text is None:
        reason = "the second line of its file is damaged"
    else:
        try:
            raw = _objects.decode(text) | raw
            return msgspec.convert(raw, Record)
        except (ValueError, RecursionError) as e:
            reason = f"its file has an unknown shape: {e}"
    return UnreadableRecord(head.uid, printable(reason), raw)


def checked_line(fields: Mapping[str, object]) -> bytes:
    """Returns a line with an object, whose last field is the checksum of the text before it."""
    text = msgspec.json.encode(fields, enc_hook=str.__str__)[:-1]  # a driver's names may be of a subclass of str
    return b'%s,"crc":"%08x"}\n' % (text, zlib.crc32(text))


def checked_text(line: bytes) -> bytes | None:
    """Returns the object in a line as :func:`checked_line` encoded it, without its checksum; None if the line is damaged."""
    text, _, sum = line.rpartition(b',"crc":"')
    return text + b"}" if sum == b'%08x"}' % zlib.crc32(text) else None
