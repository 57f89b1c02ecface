"""The record of a claim: enough for any process to report the claim as prepared, or to roll it back. Also its file format.

A file has two lines of JSON, each with a CRC-32 of its text. The first line, the head, says which claim it is, its state, and the devices
that it holds. The second, the body, has what a rollback and a repeated response need. So devices stay held if the body is damaged or is of
a newer version. Fields that this version does not know are kept.
"""

from __future__ import annotations

import enum
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..base.json_types import JSON
from ..cdi import ContainerEdits
from ..cdi.spec import check_shape
from ..driver import AllocatedDevice, PreparedClaim, PreparedDevice
from ..errors import InvalidSpecError, clip, printable
from .capacity import Hold, encoded

VERSION = 1
_NO_EDITS = ContainerEdits()
_MOST = 1e12  # seconds, or attempts: no recorded number is larger
_BLANKS = str.maketrans("\n\t", "\ufffd\ufffd")


class State(enum.StrEnum):
    PREPARING = "Preparing"
    PREPARED = "Prepared"
    UNPREPARING = "Unpreparing"


_STATES = {str(state): state for state in State}


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
        complete: whether the driver's prepare has returned.
        recovered: whether the driver's ``recover()`` reported the claim, so that its CDI edits are not known.
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
    boot_id: str
    owner: str = ""
    devices: list[JSON] = []
    undo: list[JSON] = []
    shared: list[JSON] = []
    shared_unknown: bool = False
    cdi: JSON | None = None
    metadata: JSON | None = None
    operation: str = ""
    complete: bool = False
    recovered: bool = False
    superseded: bool = False
    undone: bool = False
    error: str = ""
    attempts: int = 0
    retry_at: float | None = None
    created: float = msgspec.field(default_factory=time.time)
    updated: float = msgspec.field(default_factory=time.time)

    @property
    def partial(self) -> bool:
        """Whether only the devices are known, and not the CDI edits that a container gets with them."""
        return self.recovered and not self.complete

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
    state: State


class UnreadableRecord(msgspec.Struct, frozen=True):
    """A record that this version cannot read. It stays as it is, and its devices stay held. ``raw`` is what can be read of it."""

    uid: str
    reason: str
    raw: Mapping[str, object]

    @property
    def shown(self) -> str:
        namespace, name = (clip(self.raw.get(key) or "?", 253) for key in ("namespace", "name"))
        return f"{namespace}/{name} (UID {self.uid})"


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


def request_names(requests: Sequence[str]) -> list[str]:
    """Returns request names in the kubelet's form: the base of ``request/subrequest``. An empty list means all requests."""
    return sorted({r.partition("/")[0] for r in requests if r})


def shown_key(raw: object) -> str:
    """Returns a recorded UID as messages and commands show it."""
    return printable(raw).translate(_BLANKS)


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
    def fence(self) -> Fence | None:
        """None if only a newer version knows the state."""
        return Fence(self.uid, self.owner, _STATES[self.state]) if self.state in _STATES else None

    @property
    def holds(self) -> tuple[Hold, ...]:
        takes = (bytes(d.takes).decode() for d in self.devices)
        return tuple(
            Hold(d.pool, d.device, d.share, "" if t == "null" else t, self.uid)
            for d, t in zip(self.devices, takes, strict=True)
        )


_BODY = {
    "devices": "devices", "undo": "undo", "shared": "shared", "shared_unknown": "sharedUnknown", "cdi": "cdi", "metadata": "metadata",
    "operation": "operation", "complete": "complete", "recovered": "recovered", "superseded": "superseded", "undone": "undone",
    "error": "error", "attempts": "attempts", "retry_at": "retryAt", "updated": "updated",
}  # fmt: skip
"""The fields of a record that are in the body, with their names there. Empty fields are left out."""

_SUM = "crc"
_heads = msgspec.json.Decoder(Head)
_objects = msgspec.json.Decoder(dict[str, Any])
_raw_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])


def details(record: Record) -> JSON:
    """Returns the body of a record's file."""
    body = {key: value for name, key in _BODY.items() if (value := getattr(record, name))}
    return body | ({"error": printable(record.error)} if record.error else {})


def encode_record(record: Record, holds: Sequence[Hold], before: bytes = b"") -> bytes:
    """Returns the file of a record. ``before`` is the file that it replaces: fields of a newer version are taken from there."""
    head = {
        "version": VERSION, "uid": record.uid, "namespace": record.namespace, "name": record.name, "state": record.state,
        "owner": record.owner, "bootID": record.boot_id, "created": record.created,
        "devices": [
            _HeldDevice(h.pool, h.device, h.share, msgspec.Raw(h.takes.encode() or b"null")) for h in holds
        ],
    }  # fmt: skip
    body = details(record)
    for line, fields, known in zip(before.split(b"\n"), (head, body), (head, _BODY.values()), strict=False):
        if text := checked_text(line):
            fields |= {key: value for key, value in _raw_objects.decode(text).items() if key not in {*known, _SUM}}
    return checked_line(head) + checked_line(body)


def read_head(data: bytes) -> Head | None:
    """Returns the head of a record's file; None if it is damaged."""
    text = checked_text(data.partition(b"\n")[0])
    try:
        head = _heads.decode(text) if text else None
    except (ValueError, RecursionError):
        return None
    return head if head and head.uid and all(map(_is_name, (head.uid, head.namespace, head.name))) else None


def is_intact(data: bytes) -> bool:
    """Whether the checksums of a file's two lines match."""
    lines = data.split(b"\n")
    return len(lines) == 3 and not lines[2] and None not in map(checked_text, lines[:2])


def decode_record(head: Head, data: bytes) -> Row:
    """Returns the record in a file with this head. Returns an unreadable record with the reason if the body is not valid."""
    raw: dict[str, Any] = {"uid": head.uid, "namespace": head.namespace, "name": head.name}
    try:
        if head.version > VERSION:
            raise ValueError(
                f"a newer version of the plugin wrote it: format {head.version}, this version knows {VERSION}"
            )
        text = checked_text(data.partition(b"\n")[2].removesuffix(b"\n"))
        if text is None:
            raise ValueError("the second line of its file is damaged")
        body = _objects.decode(text)
        raw |= body
        return _record(head, body)
    except (ValueError, RecursionError) as e:
        return UnreadableRecord(shown_key(head.uid), printable(e), raw)


def _record(head: Head, body: Mapping[str, Any]) -> Record:
    """Raises ``ValueError`` unless the body has the shape that all readers rely on."""
    values = {name: body[key] for name, key in _BODY.items() if key in body}
    try:
        record = msgspec.convert(
            values | {"uid": head.uid, "namespace": head.namespace, "name": head.name, "state": head.state}
            | {"boot_id": head.boot_id, "owner": head.owner, "created": head.created}, Record
        )  # fmt: skip
    except msgspec.ValidationError as e:
        raise ValueError(f"its file has an unknown shape: {e}") from None
    if not all(map(_is_device, record.devices)):
        raise ValueError("a device has no pool or no name")
    if not all(map(_is_step, record.undo)):
        raise ValueError("an undo step has no name or no data")
    if not all(_is_step(s) and isinstance(s.get("key"), str) for s in record.shared):
        raise ValueError("a shared step has no name, no key or no data")
    if record.metadata is not None and not _is_metadata(record.metadata):
        raise ValueError("the device metadata has an unknown shape")
    if not all(
        abs(number) < _MOST for number in (record.attempts, record.retry_at or 0, record.created, record.updated)
    ):
        raise ValueError("a number is too large")
    try:
        check_shape(record.cdi)
    except InvalidSpecError as e:
        raise ValueError(f"the CDI spec cannot be used: {e}") from None
    return record


def checked_line(fields: Mapping[str, object]) -> bytes:
    """Returns a line with an object, whose last field is the checksum of the text before it."""
    text = msgspec.json.encode(fields)[:-1]
    return b'%s,"crc":"%08x"}\n' % (text, zlib.crc32(text))


def checked_text(line: bytes) -> bytes | None:
    """Returns the object in a line as :func:`checked_line` encoded it, without its checksum; None if the line is damaged."""
    text, _, sum = line.rpartition(b',"crc":"')
    return text + b"}" if sum == b'%08x"}' % zlib.crc32(text) else None


def _is_name(text: str) -> bool:
    """Whether a text can be used in messages, commands and file names."""
    return (text.isascii() and text.isprintable()) or text == shown_key(text)


def _is_device(entry: JSON) -> bool:
    return (
        all(isinstance(entry.get(key), str) for key in ("pool", "device"))
        and isinstance(entry.get("request", ""), str)
        and isinstance(entry.get("shareID") or "", str)
        and isinstance(entry.get("cdi") or [], list)
    )


def _is_step(entry: JSON) -> bool:
    return isinstance(entry.get("step"), str) and isinstance(entry.get("data"), dict)


def _is_metadata(entry: JSON) -> bool:
    if not isinstance(entry.get("requests"), dict):
        return False
    updates = entry.get("updates") or {}
    typed = isinstance(entry.get("generation"), int) and isinstance(entry.get("podClaim"), str)
    typed = typed and isinstance(updates, dict) and all(isinstance(n, int) for n in updates.values())
    return typed and all(isinstance(of, list) and all(map(_is_described, of)) for of in entry["requests"].values())


def _is_described(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(k), str) for k in ("driver", "pool", "name"))
