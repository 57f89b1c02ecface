"""Passes a GPU through: binds its function to vfio-pci, and back to NVIDIA's kernel driver.

See Documentation/driver-api/vfio.rst of the kernel: all functions of an IOMMU group have the same owner.
"""

from __future__ import annotations

import threading
from pathlib import Path

from dra_kubeletplugin import Host, PciFunction, RetryableError

from .config import Iommu

VFIO = "vfio-pci"
FREE = {None, VFIO, "pci-stub"}
"""Drivers that do not use their function."""
BRIDGE = 0x06
UNBIND_TIMEOUT = 20.0


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


def bind(host: Host, fn: PciFunction) -> None:
    """Binds a function to vfio-pci. Raises :class:`RetryableError` if the kernel does not bind it."""
    host.write(f"bus/pci/devices/{fn.address}/driver_override", VFIO)
    if fn.driver:
        unbind(host, fn.driver, fn.address)
    host.write("bus/pci/drivers_probe", fn.address)
    if (now := bound(host, fn.address)) != VFIO:
        raise RetryableError(f"{fn.address} is bound to {now or 'no driver'} and not to {VFIO}: see dmesg")


def restore(host: Host, address: str, driver: str | None) -> None:
    """Binds a function to its former driver. Idempotent.

    Raises :class:`RetryableError` if the kernel does not bind it.
    """
    host.write(f"bus/pci/devices/{address}/driver_override", "\n")
    now = bound(host, address)
    if now and now != driver:
        unbind(host, now, address)
    if driver and now != driver:
        host.write("bus/pci/drivers_probe", address)
        if (now := bound(host, address)) != driver:
            raise RetryableError(f"{address} is bound to {now or 'no driver'} and not to {driver}: see dmesg")


def unbind(host: Host, driver: str, address: str) -> None:
    """Unbinds a function. The kernel waits until no process has its device node open, so the wait has a limit."""
    errors: list[BaseException] = []

    def write() -> None:
        try:
            host.write(f"bus/pci/drivers/{driver}/unbind", address)
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=write, name="unbind", daemon=True)
    thread.start()
    thread.join(UNBIND_TIMEOUT)
    if thread.is_alive():
        raise RetryableError(
            f"{driver} does not release {address} within {UNBIND_TIMEOUT:g} s: a process has its device node open, "
            "such as nvidia-persistenced or a monitor (fuser -v /dev/nvidia*)"
        )
    if errors:
        raise errors[0]


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
