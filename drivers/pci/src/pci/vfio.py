"""Whether a function can be had through VFIO, and how it is bound and given back.

Documentation/driver-api/vfio.rst of the kernel. A group goes to one owner, whole.
"""

from __future__ import annotations

from collections.abc import Collection

from dra_kubeletplugin import Host, PciFunction, RetryableError

VFIO = "vfio-pci"
FREE = {None, VFIO, "pci-stub"}  # drivers that leave a function to others
BRIDGE = 0x06


def obstacle(host: Host, fn: PciFunction, ours: Collection[str]) -> str:
    """Why VFIO cannot be used; empty where it can. ``ours`` are the addresses that the claim has of the group."""
    if fn.iommu_group is None:
        return "the function has no IOMMU group (enable the IOMMU in firmware and kernel)"
    if not (host.sysfs / f"bus/pci/drivers/{VFIO}").is_dir():
        return f"the host has no driver {VFIO} (modprobe vfio-pci)"
    if any(other.physical_function == fn.address for other in host.pci()):
        return "it has virtual functions, which would go with its driver"
    for member in sorted((host.sysfs / f"kernel/iommu_groups/{fn.iommu_group}/devices").iterdir()):
        other = host.function(member.name)
        if other is None or other.address in ours or other.is_class(BRIDGE):
            continue
        if other.driver not in FREE:
            return f"{other.address} of the same IOMMU group {fn.iommu_group} is in use by driver {other.driver}"
    return ""


def bind(host: Host, fn: PciFunction) -> None:
    """Raises :class:`RetryableError` where the kernel does not do it."""
    host.write(f"bus/pci/devices/{fn.address}/driver_override", VFIO)
    if fn.driver:
        host.write(f"bus/pci/drivers/{fn.driver}/unbind", fn.address)
    host.write("bus/pci/drivers_probe", fn.address)
    now = _bound(host, fn.address)
    if now != VFIO:
        raise RetryableError(f"{fn.address} was to be bound to {VFIO} and is bound to {now or 'nothing'}: see dmesg")


def restore(host: Host, address: str, driver: str | None) -> None:
    """Gives a function back to the driver that it had. Idempotent.

    Raises :class:`RetryableError` where the kernel does not do it.
    """
    host.write(f"bus/pci/devices/{address}/driver_override", "\n")
    now = _bound(host, address)
    if now and now != driver:
        host.write(f"bus/pci/drivers/{now}/unbind", address)
    if driver and now != driver:
        host.write("bus/pci/drivers_probe", address)
        if (now := _bound(host, address)) != driver:
            raise RetryableError(
                f"{address} had driver {driver} and has {now or 'none'} after drivers_probe: see dmesg"
            )


def _bound(host: Host, address: str) -> str | None:
    link = host.sysfs / "bus/pci/devices" / address / "driver"
    return link.resolve().name if link.is_symlink() else None
