"""Types of results that only commands use. ``-o json|yaml`` prints their fields; docs/commands.md lists the types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JSON = Mapping[str, Any]


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
    are RFC 3339, empty if they cannot be read. ``record`` is the whole stored record.
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
    rebuilt: bool
    record: JSON
    next_attempt: str = ""


@dataclass(frozen=True)
class ClaimFile:
    """A claim for which the node has a CDI file of this driver, or a note: a copy of the claim's record beside the CDI file.

    The claim may have no record in the journal.
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
class Function:
    """A PCI function. Ids are hexadecimal. ``published`` has the names of its published devices, ``faults`` has the reasons
    why other devices are not published."""

    address: str
    vendor: str
    device: str
    class_code: str
    vendor_name: str | None
    device_name: str | None
    class_name: str | None
    driver: str | None
    numa_node: int | None
    iommu_group: int | None
    pcie_root: str | None
    physical_function: str | None
    published: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class InspectedHealth:
    """A device's health; ``healthy`` is null if it is unknown. ``message`` is the driver's reason."""

    healthy: bool | None
    message: str


@dataclass(frozen=True)
class InspectedPool:
    """A pool; ``nodes``, ``counter_sets`` and ``devices`` are as in a ResourceSlice's spec. ``health`` maps each device to its health; null
    if the driver reports none.
    """

    name: str
    nodes: JSON
    counter_sets: tuple[JSON, ...]
    devices: tuple[JSON, ...]
    health: Mapping[str, InspectedHealth] | None


@dataclass(frozen=True)
class Inspection:
    """The result of `dra inspect`. ``rejected`` maps each device, pool and counter set that is not published to the reason. ``faults``
    are errors of the driver's ``health()``.
    """

    pools: tuple[InspectedPool, ...]
    rejected: Mapping[str, str]
    functions: tuple[Function, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """A message, and the file, line and field to which it refers."""

    place: str
    message: str


@dataclass(frozen=True)
class ValidatedObject:
    """A validated object. ``object`` is its kind, namespace and name, as far as they are known."""

    place: str
    object: str
    faults: tuple[Remark, ...]
    warnings: tuple[Remark, ...]


@dataclass(frozen=True)
class Validation:
    """``unreadable`` are documents that are not YAML or JSON, and files that cannot be read."""

    objects: tuple[ValidatedObject, ...]
    unreadable: tuple[str, ...]


@dataclass(frozen=True)
class Removed:
    """The result of `dra cleanup`: the numbers of removed objects and files, and the removed folder."""

    resource_slices: int
    sockets: int
    cdi_files: int
    folder: Path


@dataclass(frozen=True)
class Made:
    """The package that `dra new` created. ``vendor_id`` and ``device_id`` are empty unless ``kind`` is pci."""

    folder: Path
    kind: str
    name: str
    driver: str
    vendor_id: str
    device_id: str
