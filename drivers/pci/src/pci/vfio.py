"""Checks whether VFIO can be used for a function, binds the function to vfio-pci, and restores its former driver.

See Documentation/driver-api/vfio.rst of the kernel: all functions of an IOMMU group have the same owner.
"""

from __future__ import annotations

from collections.abc import Collection

from dra_kubeletplugin import Host, PciFunction, RetryableError

VFIO = "vfio-pci"
FREE = {None, VFIO, "pci-stub"}
"""Drivers that do not use their function."""
BRIDGE = 0x06


def obstacle(host: Host, fn: PciFunction, claimed: Collection[str]) -> str:
    """Returns why VFIO cannot be used, or an empty string if it can.

    ``claimed`` are the addresses of the functions that the claim has.
    """
    if fn.iommu_group is None:
        return "the function has no IOMMU group (enable the IOMMU in firmware and kernel)"
    if not (host.sysfs / f"bus/pci/drivers/{VFIO}").is_dir():
        return f"the host has no driver {VFIO} (modprobe vfio-pci)"
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
