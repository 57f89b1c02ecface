"""PCI functions of a node, for containers: through VFIO where the function's IOMMU group allows, else for information.

Options, from the environment:

PCI_SELECT     which functions, e.g. ``vendor=10ee,class=12;driver=xclmgmt``: ``;`` between alternatives, ``,`` between
               conditions. Keys: vendor, device, class (2, 4 or 6 hex digits), driver, address. Everything but bridges when empty.
               The driver is the one that a function has while no container does.
PCI_MODE       ``auto``, ``vfio`` (or fail) or ``info``: what a container gets where its claim does not say. On a local
               cluster (``dra dev``, the demo) ``auto`` never touches a real machine's functions.
PCI_UNSAFE     ``1`` publishes also the functions that carry the host's disks, console or network.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from dra_kubeletplugin import (
    AllocatedDevice,
    Claim,
    Config,
    ContainerEdits,
    Device,
    Driver,
    Mount,
    PciFunction,
    PermanentError,
    PreparedClaim,
    PreparedDevice,
    RetryableError,
    run,
)

BRIDGE, NETWORK = 0x06, 0x02
VFIO = "vfio-pci"
FREE = {None, VFIO, "pci-stub"}  # drivers that leave a function to others
Mode = Literal["auto", "vfio", "info"]


class PciConfig(Config):
    """How a container gets the function; see PCI_MODE."""

    KIND = "PciConfig"
    API_VERSION = "pci.dra-kubeletplugin.dev/v1alpha1"
    mode: Mode | None = None


class Pci(Driver):
    """Publishes PCI functions and gives them to containers."""

    name = "pci.dra-kubeletplugin.dev"
    config = PciConfig
    subsystems = (
        "pci",
        "block",
        "net",
    )  # what the host needs is not published, and that changes with its disks and networks

    def start(self) -> None:
        self.selection = parse_selection(os.environ.get("PCI_SELECT", ""))
        self.unsafe = os.environ.get("PCI_UNSAFE", "") == "1"
        self.mode = os.environ.get("PCI_MODE", "auto")
        if self.mode not in {"auto", "vfio", "info"}:
            raise PermanentError(f"PCI_MODE {self.mode!r} is not one of auto, vfio, info")
        self.natives = Natives(self.settings.plugin_dir / "native-drivers", self.host.boot_id())
        self.withheld: dict[str, str] = {}

    def devices(self) -> list[Device]:
        functions = self.host.pci()
        reasons = {} if self.unsafe else dict(essential(self.host.sysfs, functions))
        out = []
        for fn in functions:
            native = self.natives.of(fn)
            if not self._selected(fn, native):
                continue
            if reason := reasons.get(fn.address):
                if self.withheld.get(fn.address) != reason:
                    self.log.info(
                        "%s is kept for the host: it carries %s (PCI_UNSAFE=1 publishes it)", fn.address, reason
                    )
                continue
            # While a container has it the driver is another, and nothing that is published may change with that: each prepare
            # would write a slice, and what PCI_SELECT names by its driver would vanish in use.
            out.append(fn.device(attributes={"driver": native} if native else {}))
        self.withheld = reasons
        return out

    def _selected(self, fn: PciFunction, native: str | None) -> bool:
        if not self.selection:
            return not fn.is_class(BRIDGE)
        return any(matches(fn, native, conditions) for conditions in self.selection)

    # --- a claim --------------------------------------------------------------------------------

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [self._prepare(claim, device) for device in claim.devices]

    def _prepare(self, claim: Claim, device: AllocatedDevice) -> PreparedDevice:
        fn = self._function(device)
        config = device.config
        mode = (config.mode if isinstance(config, PciConfig) else None) or self.mode
        obstacle = self._vfio_obstacle(claim, fn)
        if mode == "vfio" and obstacle:
            raise PermanentError(f"{fn.address} cannot be had through VFIO: {obstacle}")
        if mode == "info" or obstacle or device.admin_access:
            return device.prepared(self._info_edits(fn), data={"mode": "info", "address": fn.address})
        self._bind_vfio(claim, fn)
        edits = ContainerEdits(
            env=environment(fn, "vfio"),
            device_nodes=["/dev/vfio/vfio", f"/dev/vfio/{fn.iommu_group}"],
        )
        return device.prepared(edits, data={"mode": "vfio", "address": fn.address, "group": fn.iommu_group})

    def unprepare(self, claim: PreparedClaim) -> None:
        """Nothing: whatever prepare changed is registered as a step and reversed by ``undo_restore_driver``."""

    def _function(self, device: AllocatedDevice) -> PciFunction:
        address = device.device.data.address if isinstance(device.device.data, PciFunction) else ""
        fn = self.host.function(address)
        if fn is None:
            raise RetryableError(f"PCI function {address} is not there (any more)")
        if not self.unsafe and (reason := dict(essential(self.host.sysfs, [fn])).get(address)):
            raise PermanentError(f"{address} carries {reason} of the host: set PCI_UNSAFE=1 to give it away")
        return fn

    def _info_edits(self, fn: PciFunction) -> ContainerEdits:
        mount = Mount(
            host_path=str(fn.path),
            container_path=f"/run/pci/{fn.address}",
            options=["ro", "bind", "nosuid", "nodev", "noexec"],
        )
        return ContainerEdits(env=environment(fn, "info"), mounts=[mount])

    # --- VFIO: Documentation/driver-api/vfio.rst of the kernel -----------------------------------

    def _vfio_obstacle(self, claim: Claim, fn: PciFunction) -> str:
        """Why VFIO cannot be used; empty where it can. A group goes to one owner, whole."""
        if self.settings.local_cluster and self.host.is_real:
            return "this is a local cluster on somebody's own machine"
        if fn.iommu_group is None:
            return "the function has no IOMMU group (enable the IOMMU in firmware and kernel)"
        if not (self.host.sysfs / f"bus/pci/drivers/{VFIO}").is_dir():
            return f"the host has no driver {VFIO} (modprobe vfio-pci)"
        if any(other.physical_function == fn.address for other in self.host.pci()):
            return "it has virtual functions, which would go with its driver"
        ours = {d.device.data.address for d in claim.devices if isinstance(d.device.data, PciFunction)}
        for member in sorted((self.host.sysfs / f"kernel/iommu_groups/{fn.iommu_group}/devices").iterdir()):
            other = self.host.function(member.name)
            if other is None or other.address in ours or other.is_class(BRIDGE):
                continue
            if other.driver not in FREE:
                return f"{other.address} of the same IOMMU group {fn.iommu_group} is in use by driver {other.driver}"
        return ""

    def _bind_vfio(self, claim: Claim, fn: PciFunction) -> None:
        if fn.driver == VFIO:
            return
        claim.on_undo("restore_driver", address=fn.address, driver=fn.driver)
        self.natives.note(fn.address, fn.driver)
        self.host.write(f"bus/pci/devices/{fn.address}/driver_override", VFIO)
        if fn.driver:
            self.host.write(f"bus/pci/drivers/{fn.driver}/unbind", fn.address)
        self.host.write("bus/pci/drivers_probe", fn.address)
        now = self._bound(fn.address)
        if now != VFIO:
            raise RetryableError(
                f"{fn.address} was to be bound to {VFIO} and is bound to {now or 'nothing'}: see dmesg"
            )

    def undo_restore_driver(self, claim: PreparedClaim, address: str, driver: str | None) -> None:
        """Gives a function back to the driver that it had. Idempotent; a function that has gone needs nothing."""
        folder = self.host.sysfs / "bus/pci/devices" / address
        if not folder.exists() or not claim.same_boot:
            return
        self.host.write(f"bus/pci/devices/{address}/driver_override", "\n")
        now = self._bound(address)
        if now and now != driver:
            self.host.write(f"bus/pci/drivers/{now}/unbind", address)
        if driver and now != driver:
            self.host.write("bus/pci/drivers_probe", address)
            if (now := self._bound(address)) != driver:
                raise RetryableError(
                    f"{address} had driver {driver} and has {now or 'none'} after drivers_probe: see dmesg"
                )
        self.natives.forget(address)

    def _bound(self, address: str) -> str | None:
        link = self.host.sysfs / "bus/pci/devices" / address / "driver"
        return link.resolve().name if link.is_symlink() else None


class Natives:
    """Which drivers functions had before containers got them; in files, because a restart or another instance must know too.

    A note counts for one boot, and while the function has VFIO's driver or, on the way there, none.
    """

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._folder = folder
        self._boot_id = boot_id

    def of(self, fn: PciFunction) -> str | None:
        """The driver that a function has while no container does."""
        if fn.driver not in {None, VFIO}:
            return fn.driver
        try:
            boot_id, _, driver = (self._folder / fn.address).read_text().strip().partition(" ")
        except OSError:
            return fn.driver
        return driver or None if boot_id == self._boot_id else fn.driver

    def note(self, address: str, driver: str | None) -> None:
        """Before the driver is taken away. Written aside and renamed: half a note would be another driver's name."""
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._folder / f".{address}"
        aside.write_text(f"{self._boot_id} {driver or ''}\n")
        aside.replace(self._folder / address)

    def forget(self, address: str) -> None:
        (self._folder / address).unlink(missing_ok=True)


def environment(fn: PciFunction, mode: str) -> dict[str, str]:
    """``PCI_DEVICE_<address with underscores>=<address>``, one variable a function, because a container may have several."""
    key = fn.address.upper().replace(":", "_").replace(".", "_")
    return {f"PCI_DEVICE_{key}": fn.address, f"PCI_DEVICE_{key}_MODE": mode}


def parse_selection(text: str) -> list[Mapping[str, str]]:
    """PCI_SELECT as alternatives of conditions.

    Raises :class:`PermanentError` for what cannot be read.
    """
    out = []
    for alternative in filter(None, (a.strip() for a in text.split(";"))):
        conditions = {}
        for part in alternative.split(","):
            key, equals, value = part.strip().partition("=")
            if not equals or key not in {"vendor", "device", "class", "driver", "address"} or not value:
                raise PermanentError(f"PCI_SELECT has {part!r}: write it like vendor=10ee,class=12;driver=xclmgmt")
            conditions[key] = value.lower().removeprefix("0x") if key != "driver" else value
        out.append(conditions)
    return out


def matches(fn: PciFunction, native: str | None, conditions: Mapping[str, str]) -> bool:
    have = {
        "vendor": f"{fn.vendor:04x}",
        "device": f"{fn.device_id:04x}",
        "class": f"{fn.class_code:06x}",
        "driver": native or "",
        "address": fn.address,
    }
    return all(have[k].startswith(v) if k == "class" else have[k] == v for k, v in conditions.items())


def essential(sysfs: Path, functions: list[PciFunction]) -> Iterator[tuple[str, str]]:
    """Functions that the host cannot spare, with what they carry: a disk, the console, a network.

    A pod without hostNetwork does not see the host's interfaces, so a network card in use by the kernel whose interfaces are not
    seen is kept as well. Virtual functions are made to be given away.
    """
    disks, networks = _carried(sysfs, "block"), _carried(sysfs, "net")
    for fn in functions:
        interfaces = networks.get(fn.folder, ())
        if fn.folder in disks:
            yield fn.address, "a disk"
        elif fn.boot_vga:
            yield fn.address, "the console"
        elif any(_is_up(sysfs / "class/net" / name) for name in interfaces):
            yield fn.address, "a network that is up"
        elif fn.is_class(NETWORK) and not interfaces and not fn.is_vf and fn.driver not in FREE:
            yield fn.address, "a network whose state cannot be seen from here"


def _carried(sysfs: Path, kind: str) -> Mapping[str, list[str]]:
    """The devices of a class by each folder that they hang below: a node may have a thousand of them."""
    out: dict[str, list[str]] = {}
    folder = sysfs / "class" / kind
    for device in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # it went away while we look
            for above in device.resolve().parents:
                out.setdefault(str(above), []).append(device.name)
    return out


def _is_up(interface: Path) -> bool:
    try:
        return (interface / "operstate").read_text().strip() != "down"
    except OSError:
        return False


if __name__ == "__main__":
    run(Pci)
