"""Checks whether VFIO can be used for a function, binds the function to vfio-pci, and restores its former driver.

See Documentation/driver-api/vfio.rst of the kernel: all functions of an IOMMU group have the same owner.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from dra_kubeletplugin import Host, PciFunction, PermanentError, RetryableError

Iommu = Literal["legacy", "iommufd"]

VFIO = "vfio-pci"
FREE = {None, VFIO, "pci-stub"}
"""Drivers that do not use their function."""
BRIDGE = 0x06


def obstacle(host: Host, fn: PciFunction, claimed: Collection[str], iommu: Iommu) -> str:
    """Returns why VFIO cannot be used, or an empty string if it can.

    ``claimed`` are the addresses of the functions that the claim has.
    """
    if fn.iommu_group is None:
        return "the function has no IOMMU group (enable the IOMMU in firmware and kernel)"
    if not (host.sysfs / f"bus/pci/drivers/{VFIO}").is_dir():
        return f"the host has no driver {VFIO} (modprobe vfio-pci)"
    if iommu == "iommufd" and not (host.dev / "iommu").exists():
        return "the host has no /dev/iommu (modprobe iommufd, Linux 6.6 or newer; or set PCI_IOMMU=legacy)"
    if any(other.physical_function == fn.address for other in host.pci()):
        return "it has virtual functions, which the kernel removes together with its driver"
    for member in sorted((host.sysfs / f"kernel/iommu_groups/{fn.iommu_group}/devices").iterdir()):
        other = host.function(member.name)
        if other is None or other.address in claimed or other.is_class(BRIDGE):
            continue
        if other.driver not in FREE:
            return f"driver {other.driver} uses {other.address} of the same IOMMU group {fn.iommu_group}"
    return ""


def bind(host: Host, fn: PciFunction) -> None:
    """Binds a function to vfio-pci. Raises :class:`RetryableError` if the kernel does not bind it."""
    host.write(f"bus/pci/devices/{fn.address}/driver_override", VFIO)
    if fn.driver:
        host.write(f"bus/pci/drivers/{fn.driver}/unbind", fn.address)
    host.write("bus/pci/drivers_probe", fn.address)
    now = _bound(host, fn.address)
    if now != VFIO:
        raise RetryableError(f"{fn.address} is bound to {now or 'no driver'} and not to {VFIO}: see dmesg")


def device_nodes(host: Host, fn: PciFunction, iommu: Iommu) -> list[str]:
    """Returns the device nodes with which a program gets a function that is bound to vfio-pci.

    With iommufd, raises :class:`PermanentError` if the kernel has no device node for each function.
    """
    if iommu == "legacy":
        return ["/dev/vfio/vfio", f"/dev/vfio/{fn.iommu_group}"]
    for device in (fn.path / "vfio-dev").glob("vfio*"):
        if (host.dev / "vfio/devices" / device.name).exists():
            return ["/dev/iommu", f"/dev/vfio/devices/{device.name}"]
    raise PermanentError(
        f"the kernel has no device node below /dev/vfio/devices for {fn.address}: iommufd needs Linux 6.6 with "
        "CONFIG_VFIO_DEVICE_CDEV; or set PCI_IOMMU=legacy"
    )


def restore(host: Host, address: str, driver: str | None) -> None:
    """Binds a function to its former driver. Idempotent.

    Raises :class:`RetryableError` if the kernel does not bind it.
    """
    host.write(f"bus/pci/devices/{address}/driver_override", "\n")
    now = _bound(host, address)
    if now and now != driver:
        host.write(f"bus/pci/drivers/{now}/unbind", address)
    if driver and now != driver:
        host.write("bus/pci/drivers_probe", address)
        if (now := _bound(host, address)) != driver:
            raise RetryableError(f"{address} is bound to {now or 'no driver'} and not to {driver}: see dmesg")


def _bound(host: Host, address: str) -> str | None:
    link = host.sysfs / "bus/pci/devices" / address / "driver"
    return link.resolve().name if link.is_symlink() else None
