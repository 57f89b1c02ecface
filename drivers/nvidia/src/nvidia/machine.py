"""Opens the vendor's library on a machine, or its imitation on a described host."""

from __future__ import annotations

from dataclasses import dataclass

from dra_kubeletplugin import Host

from . import nvml, root
from .health import Monitor
from .mig import Partitions
from .options import NvidiaOptions
from .root import DriverRoot
from .sdk import Gpus


@dataclass(frozen=True)
class Machine:
    """What the driver uses of an opened library.

    Attributes:
        root: the files of NVIDIA's driver.
    """

    gpus: Gpus
    root: DriverRoot
    monitor: Monitor
    partitions: Partitions


def open_library(host: Host, options: NvidiaOptions) -> tuple[Gpus, DriverRoot]:
    """Opens NVML, or its imitation on a described host.

    Raises:
        NoLibraryError: NVIDIA's driver is not installed or not loaded.
    """
    if not host.is_real:
        from . import described  # imported here, because a real machine never needs it

        return described.open_library(host)
    found = root.find(options.nvidia_host_root, options.nvidia_driver_root)
    return nvml.Nvml(nvml.load(found.nvml)), found
