"""Checks the node's kernel: its release, PCI, IOMMU and VFIO.

VFIO, with an IOMMU, passes devices to virtual machines and user-space drivers.
Sources: Documentation/ABI/testing/sysfs-kernel-iommu_groups, Documentation/driver-api/vfio.rst of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dra_kubeletplugin.base.text import counted
from dra_kubeletplugin.host import Host

from .findings import Finding, denied, ok, unknown, warning

_MIN_KERNEL = (5, 10)  # the oldest kernel of the distributions on which current Kubernetes releases are tested


def look(root: Path, sysfs: Path, dev: Path) -> Iterator[Finding]:
    """Runs the checks. ``root`` is where the host's file system is mounted here."""
    yield from _kernel(root / "proc/sys/kernel/osrelease")
    try:
        yield from _iommu(sysfs, dev)
    except OSError as e:
        yield denied("IOMMU", e)


def _kernel(release: Path) -> Iterator[Finding]:
    try:
        text = release.read_text(errors="replace").strip()
    except OSError:
        yield unknown(
            "kernel", f"{release} cannot be read, so the release is not known", "run `dra doctor` on the node"
        )
        return
    numbers = text.split("-")[0].split(".")[:2]
    if len(numbers) == 2 and all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) < _MIN_KERNEL:
        yield warning(
            "kernel", f"{text} is older than {'.'.join(map(str, _MIN_KERNEL))}", "use a kernel that is still maintained"
        )
    else:
        yield ok("kernel", text)


def _iommu(sysfs: Path, dev: Path) -> Iterator[Finding]:
    functions = list(Host(sysfs, dev).pci()) if (sysfs / "bus/pci/devices").is_dir() else []
    if not functions:
        yield unknown(
            "PCI",
            f"no functions in {sysfs / 'bus/pci/devices'}",
            "check --sysfs-root, and whether the host's /sys is mounted",
        )
        return
    roots = {f.pcie_root for f in functions if f.pcie_root}
    yield ok("PCI", f"{counted(len(functions), 'function')} below {counted(len(roots), 'PCIe root')}")
    groups = sysfs / "kernel/iommu_groups"
    count = sum(1 for _ in groups.iterdir()) if groups.is_dir() else 0
    if not count:
        yield warning(
            "IOMMU",
            "off: containers can get devices, but not through VFIO",
            "if you need VFIO, enable the IOMMU in the firmware and boot with intel_iommu=on or amd_iommu=on",
        )
        return
    yield ok("IOMMU", f"{count} groups")
    bound = [f for f in functions if f.driver == "vfio-pci"]
    if not (sysfs / "module/vfio_pci").is_dir() and not bound:
        yield unknown(
            "VFIO",
            "vfio-pci is not loaded",
            "if you need VFIO, run `modprobe vfio-pci`, or let the driver's pod load the module",
        )
        return
    missing = [
        f.address for f in bound if f.iommu_group is not None and not (dev / "vfio" / str(f.iommu_group)).exists()
    ]
    if missing:
        yield warning(
            "VFIO",
            f"no device node in {dev / 'vfio'} for {', '.join(missing[:4])}",
            "check dmesg, and whether the whole /dev of the host is mounted",
        )
    else:
        yield ok("VFIO", f"vfio-pci is loaded and bound to {counted(len(bound), 'function')}")
