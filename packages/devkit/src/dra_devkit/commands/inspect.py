"""``dra inspect``: prints the machine's PCI functions as a tree, and the devices that a driver would publish."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dra_kubeletplugin.base import text
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.base.terminal import on_one_line
from dra_kubeletplugin.cli.shell.driver_options import given_own
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.options import given, refuse
from dra_kubeletplugin.cli.shell.output import TEXT, put
from dra_kubeletplugin.devices.discovery import discovery_method, query_devices
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.pool_state import DeviceKey
from dra_kubeletplugin.driver import Check, Driver, Role, load_driver, make
from dra_kubeletplugin.driver.attachment import attach, overrides, reports_health
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.driver.diagnostics.author_errors import definition_place, reading_result
from dra_kubeletplugin.errors import DraError, DriverError, SettingsError
from dra_kubeletplugin.host import Host, PciFunction
from dra_kubeletplugin.host.device_attributes import PCI_BUS_ID
from dra_kubeletplugin.plugin.driver_checks import query_checks
from dra_kubeletplugin.plugin.lifecycle import start_driver

from ..hosts import described, recording, schema
from . import inspect_text
from .output_models import InspectedFunction, InspectedHealth, InspectedPool, Inspection
from .progress import Progress
from .style import Style


@contextlib.contextmanager
def host_root(description: str | None, default: Path) -> Iterator[Path]:
    """Yields the sysfs of a described host in a temporary folder, or ``default`` if there is no description.

    Raises :class:`SettingsError` if the host does not exist or its description is invalid.
    """
    if description is None:
        yield default
        return
    found = schema.load(described.find(description))
    with tempfile.TemporaryDirectory(prefix="dra-host-") as folder:
        yield described.build(Path(folder), found)


def tree(functions: Iterable[PciFunction], notes: Mapping[str, str], style: Style) -> list[str]:
    """Returns a tree as lines: PCIe root, function, and its vendor, class, driver, NUMA node. ``notes`` maps addresses to lines."""
    roots: dict[str, list[PciFunction]] = {}
    for fn in functions:
        roots.setdefault(fn.pcie_root or "(no PCIe root)", []).append(fn)
    lines = []
    for root, members in sorted(roots.items(), key=lambda root: text.natural(root[0])):
        lines.append(style.bold(on_one_line(root)))
        for i, fn in enumerate(members):
            last = i == len(members) - 1
            name = fn.device_name or f"device {fn.device_id:04x}"
            vendor = fn.vendor_name or f"vendor {fn.vendor:04x}"
            named = on_one_line(f"{vendor} · {name}")
            lines.append(f"{'└─' if last else '├─'} {style.cyan(fn.address)} {named}")
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
            lines.append(f"{'  ' if last else '│ '}    {style.dim(on_one_line(', '.join(details)))}")
            if note := notes.get(fn.address):
                lines.append(f"{'  ' if last else '│ '}    {note}")
    return lines


async def look(
    driver: Driver, settings: Settings, health: list[str] | None = None, checks: list[Check] | None = None
) -> Inventory:
    """Returns the devices that a driver would publish in its role.

    Args:
        driver: an attached driver; this function starts and stops it.
        settings: the settings with the time limits.
        health: if not None, the devices' health is queried too, and the cause of a failed query is added to this list.
        checks: if not None, the results of the driver's own checks are added to this list.

    Raises :class:`DriverError` if the driver exceeds a time limit of a plugin.
    """
    calls = Calls()
    node = settings.node_name if driver.role is Role.NODE else ""
    inventory = Inventory(node, role=driver.role)
    async with contextlib.AsyncExitStack() as stack:
        await start_driver(stack, driver, calls, settings.start_timeout)
        if checks is not None and overrides(driver, "checks"):
            checks += await _checks(driver, calls, settings.discovery_timeout)
        try:
            async with asyncio.timeout(settings.discovery_timeout):
                found = await query_devices(driver, calls, inventory.pool)
        except TimeoutError:
            raise DriverError(
                f"{discovery_method(driver)}() of {type(driver).__name__} has not returned within {settings.discovery_timeout:g}s: "
                "see what it waits for, or raise --discovery-timeout (DISCOVERY_TIMEOUT)"
            ) from None
        method = getattr(driver, discovery_method(driver))
        inventory.place = definition_place(method)
        with reading_result(method):
            await inventory.update(found, method=discovery_method(driver))
        if health is not None and (fault := await _health(driver, calls, inventory, settings.discovery_timeout)):
            health.append(fault)
    return inventory


async def _checks(driver: Driver, calls: Calls, timeout: float) -> Sequence[Check]:
    """Runs the driver's own checks. A failure is a result too, because it must not hide the devices."""
    try:
        async with asyncio.timeout(timeout):
            return await query_checks(driver, calls)
    except TimeoutError:
        return [Check("checks", f"checks() has not returned within {timeout:g}s", "see what it waits for")]
    except DraError as e:
        return [Check("checks", e.message, "fix the error in the driver")]


async def _health(driver: Driver, calls: Calls, inventory: Inventory, timeout: float) -> str:
    """Queries the driver's health. Returns why the query failed, or an empty string."""
    if driver.role is not Role.NODE or not reports_health(driver):
        return ""
    try:
        async with asyncio.timeout(timeout):
            report = await calls(driver.health)
        with reading_result(driver.health):
            await inventory.set_health(report, time.monotonic())
    except TimeoutError:
        return f"health() has not returned within {timeout:g}s"
    except DraError as e:
        return e.message
    return ""


def inspect(args: argparse.Namespace) -> int:
    _check(args)
    settings = Settings.load(given(args))
    style = Style.of(sys.stdout)
    with host_root(args.host, settings.sysfs_root) as root:
        host = Host.of(dataclasses.replace(settings, sysfs_root=root))
        if args.describe_host:
            machine = recording.record(host, args.describe_file)
            print(recording.text(machine, "Recorded with `dra inspect --describe-host`."), end="")
            return Exit.SUCCESS
        if not args.driver:
            functions = host.pci()
            put(Inspection((), {}, _functions(functions, {}), ()), args.output, lambda _: tree(functions, {}, style))
            return Exit.SUCCESS
        # The log is suppressed, because the command prints each fault beside its device.
        with (
            Progress() as progress,
            without_log("dra_kubeletplugin.devices"),
        ):
            progress(f"querying the devices of {args.driver}")
            inventory, node, faults = _query(args, settings, host, root)
        functions, devices = host.pci(), _by_function(inventory)
        pools = _pools(inventory, node, reported=inventory.health_age() is not None, failed=bool(faults))
        faults += inventory.health_notes
        found = Inspection(pools, inventory.rejected, _functions(functions, devices), tuple(faults))

        def lines(printable: Inspection) -> Iterator[str]:
            yield from inspect_text.text(printable, style)
            notes = {address: of_function.note(style) for address, of_function in devices.items()}
            if notes or not any(True for _ in inventory):  # no tree for a driver whose devices are not PCI functions
                yield from tree(functions, notes, style)

        put(found, args.output, lines)
    return Exit.SUCCESS


def _check(args: argparse.Namespace) -> None:
    """Raises :class:`SettingsError` for options that cannot be combined."""
    if not args.driver:
        of_driver = {"controller": "--controller", "driver_name": "--driver-name", "node_name": "--node-name"}
        refuse(args, of_driver, "needs a DRIVER")
    if not args.describe_host:
        refuse(args, {"describe_file": "--describe-file"}, "needs --describe-host")
    if args.describe_host:
        refuse(
            args,
            {"driver": "DRIVER", "controller": "--controller"},
            "cannot be combined with --describe-host, which describes the machine",
        )
        if args.output != TEXT:
            raise SettingsError(f"--output {args.output}: --describe-host always prints YAML: remove --output")


def _query(args: argparse.Namespace, settings: Settings, host: Host, root: Path) -> tuple[Inventory, str, list[str]]:
    """Queries the driver. Returns the inventory, the node's name, and the faults of the health query."""
    cls = args.loaded.get(args.driver) or load_driver(args.driver)
    role = Role.CONTROLLER if args.controller else Role.NODE
    driver = make(cls, role, given_own(args, cls))
    name, node = settings.driver_name or cls.name, settings.node_name or "node"
    settings = dataclasses.replace(settings, driver_name=name, node_name=node, sysfs_root=root)
    attach(driver, host, settings, role)
    faults: list[str] = []
    return asyncio.run(look(driver, settings, faults)), node, faults


def _pools(inventory: Inventory, node: str, *, reported: bool, failed: bool) -> tuple[InspectedPool, ...]:
    """Returns the pools. ``reported``: whether the driver reported the devices' health. ``failed``: whether this query failed."""
    health = {
        key: InspectedHealth(known.healthy, "health() failed, see the error below" if failed else known.message)
        for key, known in inventory.health()
    }
    return tuple(
        InspectedPool(
            pool.name,
            pool.nodes.of_slice(node),
            tuple(pool.counter_sets),
            tuple(json.loads(d.encoded) for d in pool.devices),
            {d.name: health[DeviceKey(pool.name, d.name)] for d in pool.devices} if reported or failed else None,
        )
        for pool in inventory.contents()
    )


@dataclass
class _Devices:
    """The devices of a PCI function: the names of its published devices, and why its other devices are not published."""

    published: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def note(self, style: Style) -> str:
        parts = [style.green(on_one_line(f"published as {text.join_names(self.published)}"))] if self.published else []
        return "; ".join([*parts, *(style.red(on_one_line(f"not published: {fault}")) for fault in self.faults)])


def _by_function(inventory: Inventory) -> dict[str, _Devices]:
    """Returns devices by PCI address: the address of a :class:`PciFunction` in ``data``, or else the attribute ``pciBusID``."""
    out: dict[str, _Devices] = {}
    for key, device in inventory.items():
        attributes = device.converted()[0].get("attributes", {})
        of = (
            device.data.address
            if isinstance(device.data, PciFunction)
            else attributes.get(PCI_BUS_ID, {}).get("string")
        )
        if not isinstance(of, str):
            continue
        found, name = out.setdefault(of, _Devices()), inventory.shown(*key)
        if fault := inventory.rejected.get(name):
            found.faults += [fault] if fault not in found.faults else []
        else:
            found.published.append(name)
    return out


def _functions(functions: Iterable[PciFunction], devices: Mapping[str, _Devices]) -> tuple[InspectedFunction, ...]:
    out = []
    for fn in functions:
        of = devices.get(fn.address, _Devices())
        out.append(
            InspectedFunction(
                fn.address,
                f"{fn.vendor:04x}",
                f"{fn.device_id:04x}",
                f"{fn.class_code:06x}",
                fn.vendor_name,
                fn.device_name,
                fn.class_name,
                fn.driver,
                fn.numa_node,
                fn.iommu_group,
                fn.pcie_root,
                fn.physical_function,
                tuple(of.published),
                tuple(of.faults),
            )
        )
    return tuple(out)


@contextlib.contextmanager
def without_log(*names: str) -> Iterator[None]:
    """Suppresses the log lines of these loggers and their children inside the block."""
    handler = logging.NullHandler()
    loggers = [(logger, logger.propagate) for logger in map(logging.getLogger, names)]
    for logger, _ in loggers:
        logger.propagate = False
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, before in loggers:
            logger.removeHandler(handler)
            logger.propagate = before
