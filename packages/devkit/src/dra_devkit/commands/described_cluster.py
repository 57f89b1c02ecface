"""Builds a cluster from described hosts: the nodes, and the slices that a driver would publish on each node."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.slices.pack import pack
from dra_kubeletplugin.devices.slices.slice_objects import CommonSliceFields
from dra_kubeletplugin.driver import Driver, Role, attach, make
from dra_kubeletplugin.driver.attachment import overrides
from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.host import Host
from dra_kubeletplugin.resourceapi.quantity import QuantityError, parse

from ..yaml import manifests
from .inspect import host_root, look, without_log

_UNLIMITED = {"cpu": "1M", "memory": "1Pi", "ephemeral-storage": "1Pi", "pods": "110"}
_MAX_NODES = 5000


@dataclass(frozen=True)
class HostKind:
    """A number of nodes with one description; their names begin with ``name``."""

    description: str
    name: str
    count: int


def host_kinds(given: Sequence[str]) -> list[HostKind]:
    """Parses ``DESCRIPTION=COUNT``, or a description alone. Raises :class:`SettingsError` with all faults."""
    out: list[HostKind] = []
    faults = []
    for text in given:
        description, sign, number = text.rpartition("=")
        if not sign:
            description, number = text, "1"
        if not description or not number.isdecimal() or not 0 < int(number) <= _MAX_NODES:
            faults.append(f"--host {text}: write HOST=NUMBER, with a number from 1 to {_MAX_NODES}")
            continue
        stem = Path(description).stem.lower().replace("_", "-").replace(".", "-")
        same = sum(k.name.partition(".")[0] == stem for k in out)
        out.append(HostKind(description, f"{stem}.{same + 1}" if same else stem, int(number)))
    if faults:
        raise SettingsError(*faults)
    return out


def allocatable(text: str) -> dict[str, str]:
    """Parses ``cpu=64,memory=512Gi``. Other amounts are too large to matter, except for 110 pods. Raises :class:`SettingsError`."""
    out = dict(_UNLIMITED)
    for part in filter(None, text.split(",")):
        name, sign, amount = part.partition("=")
        try:
            parse(amount if sign else "")
        except QuantityError as e:
            raise SettingsError(f"--allocatable {part}: write NAME=QUANTITY, as in cpu=64,memory=512Gi: {e}") from None
        out[name.strip()] = amount
    return out


def class_files(target: str) -> list[Path]:
    """Returns the DeviceClass files in the folder ``deploy``, which is beside the driver or beside the folder ``src`` of its package."""
    path = Path(target.partition(":")[0]).absolute()
    folder = path if path.is_dir() else path.parent
    if folder.parent.name == "src":
        folder = folder.parent.parent
    return sorted((folder / "deploy").glob("deviceclass*.yaml"))


def classes_of(target: str) -> list[JSON]:
    """Returns the DeviceClasses in the files of :func:`class_files`."""
    return [m.value for m in manifests.objects(class_files(target)) if m.value["kind"] == "DeviceClass"]


def cluster_of(
    hosts: Sequence[HostKind],
    drivers: Mapping[str, type[Driver]],
    settings: Settings,
    free: Mapping[str, str],
    progress: Callable[[str], None],
) -> tuple[list[JSON], list[str]]:
    """Returns nodes, slices and classes, and sentences about devices that a driver would not publish.

    The keys of ``drivers`` are their names on the command line.

    Raises :class:`DriverError` and :class:`SettingsError`.
    """
    objects = [c for d in drivers for c in classes_of(d)]
    notes: list[str] = []
    number, total = 0, sum(k.count for k in hosts)
    for kind in hosts:
        with host_root(kind.description, settings.sysfs_root) as root:
            for i in range(1, kind.count + 1):
                name = f"{kind.name}-{i}"
                number += 1
                progress(f"devices of node {number} of {total}")
                objects.append(_node(name, free))
                of_node = dataclasses.replace(settings, node_name=name, sysfs_root=root)
                for cls in drivers.values():
                    objects += _slices(cls, of_node, Role.NODE, notes)
    for cls in drivers.values():
        if overrides(cls, "pools"):
            objects += _slices(cls, settings, Role.CONTROLLER, notes)
    return objects, notes


def _node(name: str, free: Mapping[str, str]) -> JSON:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": dict(free)},
    }


def _slices(cls: type[Driver], settings: Settings, role: Role, notes: list[str]) -> Iterator[JSON]:
    """Yields the slices that a plugin's publisher would write into an empty cluster."""
    driver = make(cls, role)
    settings = dataclasses.replace(settings, driver_name=settings.driver_name or cls.name)
    attach(driver, Host.of(settings), settings, role)
    with without_log("dra_kubeletplugin.devices.inventory"):
        inventory: Inventory = asyncio.run(look(driver, settings))
    where = f"on node {settings.node_name}" if role is Role.NODE else "by the controller"
    notes += [f"not published {where}: {name}: {fault}" for name, fault in inventory.rejected.items()]
    for pool in inventory.contents():
        contents = pack(pool.devices, pool.counter_sets, slice_size=inventory.slice_size)
        common = CommonSliceFields(settings.driver_name, pool.name, pool.fields, 1, len(contents))
        for i, content in enumerate(contents):
            name = f"{pool.name}-{settings.driver_name}-{i:05x}"
            spec = common.spec(content, {})
            yield {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": name},
                "spec": spec,
            }
