"""Types of results that only the devkit's commands use. ``-o json|yaml`` prints their fields; docs/commands.md lists the types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_kubeletplugin.base.json_types import ReadOnlyJSON


@dataclass(frozen=True)
class InspectedFunction:
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
    nodes: ReadOnlyJSON
    counter_sets: tuple[ReadOnlyJSON, ...]
    devices: tuple[ReadOnlyJSON, ...]
    health: Mapping[str, InspectedHealth] | None


@dataclass(frozen=True)
class Inspection:
    """The result of `dra inspect`. ``rejected`` maps each device, pool and counter set that is not published to the reason. ``faults``
    are errors of the driver's ``health()``.
    """

    pools: tuple[InspectedPool, ...]
    rejected: Mapping[str, str]
    functions: tuple[InspectedFunction, ...]
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
class Made:
    """The package that `dra new` created. ``vendor_id`` and ``device_id`` are empty unless ``kind`` is pci.
    ``features`` has the names of `--with`.
    """

    folder: Path
    kind: str
    name: str
    driver: str
    vendor_id: str
    device_id: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class Manifests:
    """The files that `dra deploy` wrote into ``folder``; with `--check`, the files that it would write. ``stale`` has the files that
    differ from the folder with `--check`. ``command`` deploys the driver. Paths are relative to ``folder``.
    """

    folder: Path
    files: tuple[str, ...]
    stale: tuple[str, ...]
    command: str
    warnings: tuple[str, ...]
