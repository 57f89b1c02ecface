"""What commands answer, where nothing else has a type for it. ``-o json|yaml`` writes the fields, docs/commands.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JSON = Mapping[str, Any]


@dataclass(frozen=True)
class RecordedDevice:
    """``share`` is the share's UID of a device that several claims have a part of."""

    request: str
    pool: str
    device: str
    share: str = ""


@dataclass(frozen=True)
class RecordedClaim:
    """A record of this node. ``state`` is Preparing, Prepared, Unpreparing or Unreadable; ``error`` is the last fault, or why it
    cannot be read. ``attempts`` counts rollbacks that failed; the next one is due at ``next_try``, empty where none is. Times are
    RFC 3339, empty where they cannot be read. ``record`` is all that is kept, as this version keeps it.
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
    next_try: str = ""


@dataclass(frozen=True)
class ClaimFile:
    """A claim that has a CDI file of this driver on the node, or the note beside it, whether it is on record or not."""

    driver: str
    uid: str


@dataclass(frozen=True)
class Claims:
    claims: tuple[RecordedClaim, ...]
    files: tuple[ClaimFile, ...]


@dataclass(frozen=True)
class Function:
    """A PCI function. Ids are hexadecimal; ``published`` are the names of its devices, ``faults`` why others are not published."""

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
class InspectedPool:
    """``nodes``, ``counter_sets`` and ``devices`` are as in a ResourceSlice's spec."""

    name: str
    nodes: JSON
    counter_sets: tuple[JSON, ...]
    devices: tuple[JSON, ...]


@dataclass(frozen=True)
class Inspection:
    """``left_out`` are devices, pools and counter sets that would not be published, with the reason; ``faults`` what else is wrong."""

    pools: tuple[InspectedPool, ...]
    left_out: Mapping[str, str]
    functions: tuple[Function, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """A sentence, and the file, line and field that it is about."""

    place: str
    message: str


@dataclass(frozen=True)
class ValidatedObject:
    """``object`` is its kind, namespace and name, as far as they are given."""

    place: str
    object: str
    faults: tuple[Remark, ...]
    warnings: tuple[Remark, ...]


@dataclass(frozen=True)
class Validation:
    """``unreadable`` are documents that are no YAML or JSON, and files that cannot be read."""

    objects: tuple[ValidatedObject, ...]
    unreadable: tuple[str, ...]


@dataclass(frozen=True)
class Removed:
    """What an uninstalled driver had left."""

    resource_slices: int
    sockets: int
    cdi_files: int
    folder: Path


@dataclass(frozen=True)
class Made:
    """A driver's package. ``vendor_id`` is empty but for the kind pci."""

    folder: Path
    kind: str
    name: str
    driver: str
    vendor_id: str
