"""Types of results that only commands use. ``-o json|yaml`` prints their fields; docs/commands.md lists the types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..base.json_types import ReadOnlyJSON


@dataclass(frozen=True)
class RecordedDevice:
    """A device in a record. ``share`` is the share id (a UID) if several claims share the device."""

    request: str
    pool: str
    device: str
    share: str = ""


@dataclass(frozen=True)
class RecordedClaim:
    """A record of this node. ``state`` is Preparing, Prepared, Unpreparing or Unreadable. ``error`` is the last fault, or why the record
    cannot be read. ``attempts`` counts failed rollbacks; the next one is due at ``next_attempt``, which is empty if none is due. Times
    are RFC 3339, empty if they cannot be read. ``recovered`` is whether the driver reported the claim after its
    record was lost. ``record`` is the body of the record's file.
    """

    driver: str
    uid: str
    namespace: str
    name: str
    state: str
    devices: tuple[RecordedDevice, ...]
    created: str
    updated: str
    attempts: int
    error: str
    recovered: bool
    record: ReadOnlyJSON
    next_attempt: str = ""


@dataclass(frozen=True)
class ClaimFile:
    """A claim for which the node has a CDI file of this driver, or a note: a copy of the claim's record beside the CDI file.

    The claim may have no record.
    """

    driver: str
    uid: str


@dataclass(frozen=True)
class SharedState:
    """State of a piece of hardware that several claims share, according to the records. ``key`` is the hardware's name. ``ready`` is
    False while the state is being set up or torn down, and after a failure. ``claims`` are the claims that use it, as namespace/name.
    """

    driver: str
    step: str
    key: str
    ready: bool
    claims: tuple[str, ...]


@dataclass(frozen=True)
class Claims:
    claims: tuple[RecordedClaim, ...]
    files: tuple[ClaimFile, ...]
    shared: tuple[SharedState, ...] = ()


@dataclass(frozen=True)
class Removed:
    """The result of `dra cleanup`: the numbers of removed objects and files, and the removed folder."""

    resource_slices: int
    sockets: int
    cdi_files: int
    folder: Path
