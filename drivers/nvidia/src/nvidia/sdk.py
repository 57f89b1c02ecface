"""The interface between the driver and the vendor's library, in the words of this driver.

:mod:`.nvml` implements it with NVIDIA's bindings. The driver knows only this module, so a driver for another vendor
replaces :mod:`.nvml` and the words that its hardware lacks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from dra_kubeletplugin import RetryableError


class LibraryError(RetryableError):
    """The vendor's library returned an error that has no class of its own. ``number`` is the library's error code."""

    number = 0


class NoLibraryError(LibraryError):
    """The vendor's library or the kernel driver is missing, or not loaded yet."""


class LibraryReplacedError(LibraryError):
    """The kernel driver was updated under this process. Only a new process can load the new library."""


class GpuLostError(LibraryError):
    """The GPU does not respond, or it was removed."""


class InUseError(LibraryError):
    """A process still uses the GPU or the instance."""


class OccupiedError(LibraryError):
    """Another instance occupies the place on the GPU."""


@dataclass(frozen=True)
class Gpu:
    """One physical GPU. Values that the GPU or its kernel driver does not know are None.

    Attributes:
        address: the PCI address, as sysfs writes it.
        minor: the number in ``/dev/nvidia<minor>``; it can change when the GPU is bound to its kernel driver again.
        memory: bytes; None for a GPU that uses the memory of the host, such as GB10.
        mig: whether MIG mode is on; None if the GPU has no MIG.
        switches_mig: whether MIG mode can be changed without a reset of the GPU.
        reads_profiles: whether the library returns the profiles while MIG mode is off.
        is_vgpu: whether this is a virtual GPU in a guest, whose partitions are fixed.
        fabric_clique: cluster UUID and clique of the NVLink fabric.
    """

    uuid: str
    address: str
    minor: int
    name: str
    brand: str
    architecture: str
    compute_capability: str
    memory: int | None
    driver_version: str
    cuda_version: str
    mig: bool | None = None
    switches_mig: bool = False
    reads_profiles: bool = False
    is_vgpu: bool = False
    addressing_mode: str | None = None
    ecc: bool | None = None
    pcie_generation: int | None = None
    fabric_clique: str | None = None


@dataclass(frozen=True)
class Profile:
    """One kind of partition of a GPU.

    Attributes:
        id: the library's id of the profile.
        name: such as ``1g.10gb``.
        slices: compute slices.
        instances: how many of them a GPU can have at once.
        starts: the memory slices at which an instance can begin.
        size: the number of memory slices of an instance.
        memory: MiB.
    """

    id: int
    name: str
    slices: int
    instances: int
    starts: tuple[int, ...]
    size: int
    memory: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


@dataclass(frozen=True)
class Instance:
    """A partition that exists: a GPU instance, and its compute instance.

    Attributes:
        profile: the id of the profile.
        start: the first memory slice.
        gpu_instance: the library's id of the GPU instance.
        compute_instances: the library's ids of its compute instances. A complete partition has one.
        uuid: the UUID of the only compute instance; empty if there is none, or more than one.
    """

    profile: int
    start: int
    gpu_instance: int
    compute_instances: tuple[int, ...] = ()
    uuid: str = ""


@dataclass(frozen=True)
class Event:
    """A report of the library about one GPU.

    Attributes:
        gpu: the GPU's UUID; empty if the library does not know it, for example because the GPU is lost.
        xid: the number of the error; 0 for an event of another kind.
        kind: such as ``XID`` or ``fatal poison error``.
        gpu_instance: the instance in which the error occurred; None if it concerns the whole GPU.
    """

    gpu: str
    kind: str
    xid: int = 0
    gpu_instance: int | None = None


@dataclass(frozen=True)
class Recovery:
    """Whether a GPU works again after an error.

    Attributes:
        action: what the kernel driver asks for, such as ``reset the GPU``; empty for nothing; None if it cannot tell.
        rows_failed: whether defective memory rows could not be replaced.
    """

    action: str | None = ""
    rows_failed: bool = False


@dataclass(frozen=True)
class User:
    """A process that computes on a GPU, with the memory that it uses there. ``memory`` is None if it is not known."""

    pid: int
    memory: int | None


class Gpus(Protocol):
    """The vendor's library. Every method may raise :class:`LibraryError`, and may be called in any thread."""

    def gpus(self) -> list[Gpu]:
        """Returns the GPUs that respond."""

    def profiles(self, uuid: str) -> list[Profile]:
        """Returns the profiles of a GPU, with at least one start each."""

    def instances(self, uuid: str) -> list[Instance]:
        """Returns the instances of a GPU that exist, also incomplete instances."""

    def create(self, uuid: str, profile: Profile, start: int) -> Instance:
        """Creates a GPU instance with one compute instance of the same size.

        Raises:
            OccupiedError: the place is not free.
        """

    def destroy(self, uuid: str, profile: int, start: int) -> bool:
        """Destroys the instance of a profile at a place, also an incomplete one. Returns False if there is none.

        Raises:
            InUseError: a process still uses the instance.
        """

    def set_mig(self, uuid: str, *, on: bool) -> None:
        """Changes MIG mode, and returns when it is active.

        Raises:
            InUseError: a process still uses the GPU.
            LibraryError: the mode becomes active only after a reset.
        """

    def wait(self, seconds: float) -> Event | None:
        """Waits for the next event of any GPU. Returns None if there is none in time.

        Raises:
            GpuLostError: a GPU was lost; the library does not return which.
        """

    def unmonitored(self) -> dict[str, str]:
        """Returns why :meth:`wait` receives no events of a GPU, by UUID; without the GPUs whose events it receives."""

    def recovery(self, uuid: str) -> Recovery:
        """Returns what the kernel driver asks for to make a GPU work again."""

    def is_persistent(self, uuid: str) -> bool:
        """Whether a GPU stays initialised without users: then NVIDIA's persistence daemon has it open."""

    def set_persistent(self, uuid: str, *, on: bool) -> None:
        """Changes persistence mode. Its kernel driver can be unbound only while the mode is off."""

    def users(self, uuid: str) -> list[User]:
        """Returns the processes that compute on a GPU, with the process ids of the host."""

    def closed(self) -> AbstractContextManager[None]:
        """Closes the library within the block, because an open library uses all GPUs."""

    def close(self) -> None:
        """Closes the library for good. Waits for the end of a call of :meth:`wait`."""
