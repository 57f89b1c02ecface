"""``dra inspect``: the machine's PCI functions as a tree, and what a driver would publish of them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..driver import Driver, load_driver
from ..driver.calls import Calls
from ..host import Host, PciFunction, described, recording
from ..inventory import Inventory
from ..scanning import ask, asked
from ..settings import load
from .options import given
from .style import Style


@contextlib.contextmanager
def host_root(description: str | None, default: Path) -> Iterator[Path]:
    """The sysfs of a described host, made for as long as needed, or ``default``.

    Raises :class:`SettingsError` where there is no such host, or it is described wrongly.
    """
    if description is None:
        yield default
        return
    found = described.load(described.find(description))
    with tempfile.TemporaryDirectory(prefix="dra-host-") as folder:
        yield described.build(Path(folder), found)


def tree(functions: Iterable[PciFunction], notes: Mapping[str, str], style: Style) -> list[str]:
    """PCIe root → function → vendor, class, driver, NUMA. ``notes``, by address, end a function's line."""
    roots: dict[str, list[PciFunction]] = {}
    for fn in functions:
        roots.setdefault(fn.pcie_root or "(no PCIe root)", []).append(fn)
    lines = []
    for root, members in sorted(roots.items()):
        lines.append(style.bold(root))
        for i, fn in enumerate(members):
            last = i == len(members) - 1
            name = fn.device_name or f"device {fn.device_id:04x}"
            vendor = fn.vendor_name or f"vendor {fn.vendor:04x}"
            lines.append(f"{'└─' if last else '├─'} {style.cyan(fn.address)} {vendor} · {name}")
            numa = "-" if fn.numa_node is None else str(fn.numa_node)
            details = [
                f"[{fn.vendor:04x}:{fn.device_id:04x}]",
                f"class {fn.class_code:06x} {fn.class_name or ''}".rstrip(),
                f"driver {fn.driver or '-'}",
                f"NUMA {numa}",
            ]
            if fn.iommu_group is not None:
                details.append(f"IOMMU group {fn.iommu_group}")
            if fn.is_vf:
                details.append(f"VF {fn.vf_index} of {fn.physical_function}")
            lines.append(f"{'  ' if last else '│ '}    {style.dim(', '.join(details))}")
            if note := notes.get(fn.address):
                lines.append(f"{'  ' if last else '│ '}    {note}")
    return lines


async def _look(driver: Driver) -> Inventory:
    """What the plugin would publish of a driver's devices."""
    calls = Calls()
    inventory = Inventory(driver.settings.node_name)
    await calls(driver.start)
    try:
        await inventory.update(await ask(driver, calls, inventory.pool), method=asked(driver))
    finally:
        await calls(driver.stop)
    return inventory


def inspect(args: argparse.Namespace) -> int:
    settings = load(given(args))
    style = Style.of(sys.stdout)
    with host_root(args.host, settings.sysfs_root) as root:
        host = Host(root, settings.dev_root, lists=settings.list_attributes)
        if args.record:
            print(recording.text(recording.record(host), "Recorded with `dra inspect --record`."), end="")
            return 0
        notes: dict[str, str] = {}
        if args.driver:
            cls = load_driver(args.driver)
            driver = cls()
            name, node = settings.driver_name or cls.name, settings.node_name or "node"
            driver.attach(host, dataclasses.replace(settings, driver_name=name, node_name=node, sysfs_root=root))
            inventory = asyncio.run(_look(driver))
            for device in inventory:
                fault = inventory.left_out.get(device.name)
                shown = style.red(f"not published: {fault}") if fault else style.green(f"published as {device.name}")
                if isinstance(device.data, PciFunction):
                    notes[device.data.address] = shown
                else:
                    print(device.name, shown if fault else device.json())
        print("\n".join(tree(host.pci(), notes, style)))
    return 0
