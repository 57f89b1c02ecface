"""Passes a GPU through: binds its function to vfio-pci, and back to NVIDIA's kernel driver.

See Documentation/driver-api/vfio.rst of the kernel: all functions of an IOMMU group have the same owner.
"""

from __future__ import annotations

import threading
from pathlib import Path

from dra_kubeletplugin import Host, PciFunction, RetryableError

from .config import Iommu
from .sdk import Gpu, Gpus

VFIO = "vfio-pci"
FREE = {None, VFIO, "pci-stub"}
"""Drivers that do not use their function."""
BRIDGE = 0x06
WRITE_TIMEOUT = 20.0  # seconds


def obstacle(host: Host, fn: PciFunction) -> str:
    """Returns why a GPU cannot be passed through, or an empty string if it can."""
    if fn.iommu_group is None:
        return "it has no IOMMU group (enable the IOMMU in firmware and kernel)"
    if not (host.sysfs / f"bus/pci/drivers/{VFIO}").is_dir():
        return f"the host has no driver {VFIO} (modprobe vfio-pci)"
    if any(other.physical_function == fn.address for other in host.pci()):
        return "it has virtual functions, which the kernel removes together with its driver"
    for member in sorted((host.sysfs / f"kernel/iommu_groups/{fn.iommu_group}/devices").iterdir()):
        other = host.function(member.name)
        if other and other.address != fn.address and not other.is_class(BRIDGE) and other.driver not in FREE:
            return f"driver {other.driver} uses {other.address} of the same IOMMU group {fn.iommu_group}"
    return ""


class Functions:
    """Binds functions to vfio-pci, and back to their former drivers.

    While a process uses a function, the kernel's unbind waits for the process, and each further write for this function
    waits for the unbind. So each write has a time limit, and none begins while an earlier write still waits.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._writes: dict[str, threading.Thread] = {}  # the last write for each function

    def bind(self, fn: PciFunction) -> None:
        """Binds a function to vfio-pci. Raises :class:`RetryableError` if the kernel does not bind it in time."""
        address = fn.address
        self._write(address, f"bus/pci/devices/{address}/driver_override", VFIO)
        if fn.driver:
            self._write(address, f"bus/pci/drivers/{fn.driver}/unbind", address)
        self._write(address, "bus/pci/drivers_probe", address)
        if (now := bound(self._host, address)) != VFIO:
            raise RetryableError(f"{address} is bound to {now or 'no driver'} and not to {VFIO}: see dmesg")

    def restore(self, address: str, driver: str | None) -> None:
        """Binds a function to its former driver. Idempotent.

        The function stays without a driver if its former driver is not loaded, as on a node for virtual machines only.
        Raises :class:`RetryableError` if the kernel does not bind it in time.
        """
        self._write(address, f"bus/pci/devices/{address}/driver_override", "\n")
        now = bound(self._host, address)
        if now and now != driver:
            self._write(address, f"bus/pci/drivers/{now}/unbind", address)
        if driver and now != driver and (self._host.sysfs / f"bus/pci/drivers/{driver}").is_dir():
            self._write(address, "bus/pci/drivers_probe", address)
            if (now := bound(self._host, address)) != driver:
                raise RetryableError(f"{address} is bound to {now or 'no driver'} and not to {driver}: see dmesg")

    def _write(self, address: str, path: str, text: str) -> None:
        errors: list[BaseException] = []

        def write() -> None:
            try:
                self._host.write(path, text)
            except BaseException as e:
                errors.append(e)

        waits = RetryableError(
            f"the kernel does not release {address}, because a process has its device node open, such as "
            "nvidia-persistenced or a monitor: find it with fuser -v /dev/nvidia* /dev/vfio/*"
        )
        if address in self._writes and self._writes[address].is_alive():
            raise waits
        thread = self._writes[address] = threading.Thread(target=write, name="sysfs-write", daemon=True)
        thread.start()
        thread.join(WRITE_TIMEOUT)
        if thread.is_alive():
            raise waits
        if errors:
            raise errors[0]


def check_unused(gpus: Gpus, gpu: Gpu) -> None:
    """Raises :class:`RetryableError` if the kernel driver must not be unbound from a GPU, because something uses it."""
    if users := gpus.users(gpu.uuid):
        pids = ", ".join(str(user.pid) for user in users)
        raise RetryableError(f"{gpu.address} cannot be passed through: the processes {pids} of the host compute on it")
    if gpu.mig and gpus.instances(gpu.uuid):
        raise RetryableError(f"{gpu.address} cannot be passed through: it has MIG instances, destroy them first")


def bound(host: Host, address: str) -> str | None:
    """Returns the kernel driver of a function."""
    link = host.sysfs / "bus/pci/devices" / address / "driver"
    return link.resolve().name if link.is_symlink() else None


def nodes(host: Host, fn: PciFunction, iommu: Iommu) -> list[str]:
    """Returns the device nodes with which a virtual machine gets a function that is bound to vfio-pci.

    The node of the group, or with iommufd the node of the device. The node of the API itself is only added on request,
    because KubeVirt adds it.
    """
    if iommu.backend_policy == "PreferIommuFD" and has_iommufd(host) and (own := _device_node(fn.path)):
        return [own, *(["/dev/iommu"] if iommu.enable_api_device else [])]
    return [f"/dev/vfio/{fn.iommu_group}", *(["/dev/vfio/vfio"] if iommu.enable_api_device else [])]


def has_iommufd(host: Host) -> bool:
    return (host.dev / "iommu").exists()


def _device_node(path: Path) -> str:
    names = sorted(p.name for p in (path / "vfio-dev").glob("vfio*"))
    return f"/dev/vfio/devices/{names[0]}" if names else ""
