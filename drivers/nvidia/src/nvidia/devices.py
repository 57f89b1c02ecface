"""Builds the published devices of a GPU: the whole GPU, its partitions and its form for passthrough.

Names of attributes and capacities are those of NVIDIA's own DRA driver, so users' selectors work unchanged. Device
names are made of the PCI address, because minor numbers change when a GPU is bound to its kernel driver again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dra_kubeletplugin import (
    CounterSet,
    Device,
    Partition,
    Partitioned,
    PciFunction,
    Profile,
    Quantity,
    Version,
    partitions,
)
from dra_kubeletplugin.resourceapi.types import Attribute

from . import sdk

ENGINES = ("multiprocessors", "copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines")
SLOT = "memorySlice"
STANDARD = "resource.kubernetes.io/"
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Place:
    """The place of a MIG instance on a GPU."""

    profile: sdk.Profile
    start: int


@dataclass(frozen=True)
class GpuDevice:
    """The ``data`` of a published device.

    Attributes:
        address: the PCI address of the GPU.
        place: of a partition; None for the whole GPU and for passthrough.
        uuid: of a partition that exists already (static MIG).
        is_passthrough: whether the device is the GPU's form for passthrough.
    """

    address: str
    place: Place | None = None
    uuid: str = ""
    is_passthrough: bool = False


def name_of(address: str) -> str:
    """Returns the name of a GPU, such as ``gpu-0000-17-00-0``."""
    return f"gpu-{address.translate(str.maketrans(':.', '--'))}"


def partition_name(address: str, place: Place) -> str:
    profile = place.profile
    return f"{name_of(address)}-mig-{profile.name.replace('.', '').replace('+', '-')}-{profile.id}-{place.start}"


def common_attributes(gpu: sdk.Gpu, fn: PciFunction) -> dict[str, Attribute]:
    """Returns the attributes of a GPU and of its partitions."""
    values: dict[str, Attribute | None] = {
        **{key: value for key, value in fn.attributes().items() if key.startswith(STANDARD)},
        "productName": gpu.name,
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "cudaComputeCapability": Version.coerce(gpu.compute_capability),
        "driverVersion": Version.coerce(gpu.driver_version),
        "cudaDriverVersion": Version.coerce(gpu.cuda_version),
        "addressingMode": gpu.addressing_mode,
        "eccEnabled": gpu.ecc,
        "fabricCliqueID": gpu.fabric_clique,
        "pcieGeneration": gpu.pcie_generation,
    }
    return {key: value for key, value in values.items() if value is not None}


def whole_attributes(gpu: sdk.Gpu, fn: PciFunction) -> dict[str, Attribute]:
    """Returns the attributes of the whole GPU alone: a MIG instance has as many as the API server accepts."""
    link = {key: value for key, value in fn.attributes().items() if key in {"linkSpeed", "linkWidth"}}
    mig = {} if gpu.mig is None else {"migEnabled": False}  # off when a claim gets the whole GPU; absent without MIG
    return {"type": "gpu", "uuid": gpu.uuid, **mig, **link}


def whole(gpu: sdk.Gpu, fn: PciFunction) -> Device:
    """Returns a GPU without partitions."""
    return Device(
        name_of(gpu.address),
        attributes=common_attributes(gpu, fn) | whole_attributes(gpu, fn),
        capacity=_memory(gpu),
        data=GpuDevice(gpu.address),
    )


def partitioned(gpu: sdk.Gpu, fn: PciFunction, profiles: Sequence[sdk.Profile], *, with_whole: bool) -> Partitioned:
    """Returns all possible partitions of a GPU, and the whole GPU if it can be allocated as a whole."""
    by_name = {p.name: p for p in profiles}

    def place(part: Partition) -> Place | None:
        return Place(by_name[part.profile.name], part.slots.start) if part.profile else None

    def named(part: Partition) -> str:
        at = place(part)
        return partition_name(gpu.address, at) if at else name_of(gpu.address)

    engines = [_engines(p) for p in profiles]
    made = partitions(
        name_of(gpu.address),
        [Profile(name=p.name, takes=_takes(p), slots=p.size, at=p.starts) for p in profiles],
        has=_memory(gpu) | {e: max(each[e] for each in engines) for e in ENGINES},
        slots=max(p.size + max(p.starts) for p in profiles),
        slot=SLOT,
        slot_capacities=False,
        device_name=named,
        counter_set=f"{name_of(gpu.address)}-counter-set",
        attributes=common_attributes(gpu, fn),
        part_attributes={"type": "mig", "parentUUID": gpu.uuid},
        whole_attributes=whole_attributes(gpu, fn),
        whole=with_whole,
    )
    own = [replace(d, data=GpuDevice(gpu.address, place(d.data))) for d in made.devices]
    return Partitioned(tuple(own), made.counter_set)


def existing(gpu: sdk.Gpu, fn: PciFunction, profile: sdk.Profile, instance: sdk.Instance) -> Device:
    """Returns a MIG instance that exists (static MIG)."""
    place = Place(profile, instance.start)
    slots = range(instance.start, instance.start + profile.size)
    attributes = common_attributes(gpu, fn)
    return Device(
        partition_name(gpu.address, place),
        attributes={
            **attributes,
            "type": "mig",
            "uuid": instance.uuid,
            "parentUUID": gpu.uuid,
            "profile": profile.name,
        },
        capacity={
            "memory": _mebibytes(profile.memory),
            **{_capacity(engine): amount for engine, amount in _engines(profile).items()},
            **{f"{SLOT}{i}": 1 for i in slots},
        },
        data=GpuDevice(gpu.address, place, instance.uuid),
    )


def passthrough(fn: PciFunction, uuid: str, counters: CounterSet, *, has_iommufd: bool) -> Device:
    """Returns the form of a GPU for passthrough. It consumes the whole GPU."""
    standard = {key: value for key, value in fn.attributes().items() if key.startswith(STANDARD)}
    attributes = {
        **standard,
        "type": "vfio",
        "uuid": uuid,
        "deviceID": f"0x{fn.device_id:04x}",
        "vendorID": f"0x{fn.vendor:04x}",
        "numa": -1 if fn.numa_node is None else fn.numa_node,
        "productName": fn.device_name or "",
        "iommuFDEnabled": has_iommufd,
    }
    return Device(
        f"{name_of(fn.address)}-vfio",
        attributes={key: value for key, value in attributes.items() if value != ""},
        capacity={"addressableMemory": _mebibytes(_bars(fn) // MEBIBYTE)},
        consumes_counters={counters.name: dict(counters.counters)},
        data=GpuDevice(fn.address, is_passthrough=True),
    )


def _bars(fn: PciFunction) -> int:
    """Returns the size of the function's memory areas together, rounded up to a power of two."""
    total = 0
    for line in (fn.read("resource") or "").splitlines()[:6]:
        first, last, _ = (int(number, 16) for number in line.split())
        total += last - first + 1 if last else 0
    return 1 << (total - 1).bit_length() if total else 0


def _memory(gpu: sdk.Gpu) -> dict[str, Quantity | int]:
    return {} if gpu.memory is None else {"memory": _mebibytes(gpu.memory // MEBIBYTE)}


def _mebibytes(amount: int) -> Quantity:
    return Quantity(f"{amount}Mi")


def _engines(profile: sdk.Profile) -> Mapping[str, int]:
    amounts = (
        profile.multiprocessors,
        profile.copy_engines,
        profile.decoders,
        profile.encoders,
        profile.jpeg_engines,
        profile.ofa_engines,
    )
    return dict(zip(ENGINES, amounts, strict=True))


def _takes(profile: sdk.Profile) -> dict[str, Quantity | int]:
    return {"memory": _mebibytes(profile.memory), **_engines(profile)}


def _capacity(engine: str) -> str:
    first, *rest = engine.split("-")
    return first + "".join(word.capitalize() for word in rest)
