"""PCI functions of a node, for containers: by VFIO where the function's IOMMU group allows, else for information."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

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

from . import vfio
from .essential import essential
from .natives import Natives
from .selection import matches, parse_selection

Mode = Literal["auto", "vfio", "info"]


class PciConfig(Config):
    """How a container gets the function; see :attr:`PciOptions.pci_mode`."""

    KIND = "PciConfig"
    API_VERSION = "pci.dra-kubeletplugin.dev/v1alpha1"
    mode: Mode | None = None


@dataclass(frozen=True)
class PciOptions:
    """What this driver is told."""

    pci_select: Annotated[
        str,
        "which functions, e.g. vendor=10ee,class=12;driver=xclmgmt: `;` between alternatives, `,` between conditions. "
        "Keys: vendor, device, class (2, 4 or 6 hex digits), driver, address. Everything but bridges when empty. The "
        "driver is the one that a function has while no container does",
    ] = ""
    pci_mode: Annotated[
        Mode,
        "what a container gets where its claim does not say: vfio or an error, info, or what is possible. On a local "
        "cluster (`dra dev`, the demo) auto never touches a real machine's functions",
    ] = "auto"
    pci_unsafe: Annotated[bool, "publishes also the functions that carry the host's disks, console or network"] = False

    def __post_init__(self) -> None:
        parse_selection(self.pci_select)


class Pci(Driver):
    """Publishes PCI functions and gives them to containers."""

    name = "pci.dra-kubeletplugin.dev"
    config = PciConfig
    options = PciOptions()
    # What the host needs is not published, and that changes with its disks and networks.
    subsystems = ("pci", "block", "net")

    def start(self) -> None:
        self.selection = parse_selection(self.options.pci_select)
        self.natives = Natives(self.settings.plugin_dir / "native-drivers", self.host.boot_id())
        self.withheld: dict[str, str] = {}

    def devices(self) -> list[Device]:
        functions = self.host.pci()
        reasons = {} if self.options.pci_unsafe else dict(essential(self.host.sysfs, functions))
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
            # While a container has it the driver is another, and nothing that is published may change with that: each
            # prepare would write a slice, and what PCI_SELECT names by its driver would vanish in use.
            out.append(fn.device(attributes={"driver": native} if native else {}))
        self.withheld = reasons
        return out

    def _selected(self, fn: PciFunction, native: str | None) -> bool:
        if not self.selection:
            return not fn.is_class(vfio.BRIDGE)
        return any(matches(fn, native, conditions) for conditions in self.selection)

    # --- a claim --------------------------------------------------------------------------------

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [self._prepare(claim, device) for device in claim.devices]

    def _prepare(self, claim: Claim, device: AllocatedDevice) -> PreparedDevice:
        fn = self._function(device)
        config = device.config
        mode = (config.mode if isinstance(config, PciConfig) else None) or self.options.pci_mode
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
        if not self.options.pci_unsafe and (reason := dict(essential(self.host.sysfs, [fn])).get(address)):
            raise PermanentError(f"{address} carries {reason} of the host: set PCI_UNSAFE=1 to give it away")
        return fn

    def _info_edits(self, fn: PciFunction) -> ContainerEdits:
        mount = Mount(
            host_path=str(fn.path),
            container_path=f"/run/pci/{fn.address}",
            options=["ro", "bind", "nosuid", "nodev", "noexec"],
        )
        return ContainerEdits(env=environment(fn, "info"), mounts=[mount])

    def _vfio_obstacle(self, claim: Claim, fn: PciFunction) -> str:
        """Why VFIO cannot be used; empty where it can."""
        if self.settings.local_cluster and self.host.is_real:
            return "this is a local cluster on somebody's own machine"
        ours = {d.device.data.address for d in claim.devices if isinstance(d.device.data, PciFunction)}
        return vfio.obstacle(self.host, fn, ours)

    def _bind_vfio(self, claim: Claim, fn: PciFunction) -> None:
        if fn.driver == vfio.VFIO:
            return
        claim.on_undo("restore_driver", address=fn.address, driver=fn.driver)  # on disk before the next line
        self.natives.note(fn.address, fn.driver)
        vfio.bind(self.host, fn)

    def undo_restore_driver(self, claim: PreparedClaim, address: str, driver: str | None) -> None:
        """Gives a function back to the driver that it had. Idempotent; a function that has gone needs nothing."""
        if (self.host.sysfs / "bus/pci/devices" / address).exists() and claim.same_boot:
            vfio.restore(self.host, address, driver)
            self.natives.forget(address)


def environment(fn: PciFunction, mode: str) -> dict[str, str]:
    """``PCI_DEVICE_<address with underscores>=<address>``: one a function, for a container may have several."""
    key = fn.address.upper().replace(":", "_").replace(".", "_")
    return {f"PCI_DEVICE_{key}": fn.address, f"PCI_DEVICE_{key}_MODE": mode}


if __name__ == "__main__":
    run(Pci)
