"""A driver for the PCI functions of a node. Containers get them through VFIO if the IOMMU group allows it."""

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
from .native_drivers import NativeDrivers
from .selection import matches, parse_selection

Mode = Literal["auto", "vfio", "info"]


class PciConfig(Config):
    """Sets how containers get the function; see :attr:`PciOptions.pci_mode`."""

    KIND = "PciConfig"
    API_VERSION = "pci.dra-kubeletplugin.dev/v1alpha1"
    mode: Mode | None = None


@dataclass(frozen=True)
class PciOptions:
    """Options of this driver; ``dra run --help`` and the README list them."""

    pci_select: Annotated[
        str,
        "functions to publish, e.g. vendor=10ee,class=12;driver=xclmgmt: `;` between alternatives, `,` between "
        "conditions. Keys: vendor, device, class (2, 4 or 6 hex digits), driver, address. If empty, all functions "
        "except bridges. "
        "`driver` is the kernel driver of the function while no container has it",
    ] = ""
    pci_mode: Annotated[
        Mode,
        "what a container gets if its claim does not set it: vfio (or an error), info, or auto (vfio if possible). A "
        "local cluster (`dra dev`, the demo) never changes the functions of the real machine",
    ] = "auto"
    pci_iommu: Annotated[
        vfio.Iommu,
        "device nodes of VFIO: legacy (/dev/vfio/vfio and the node of the IOMMU group) or iommufd (/dev/iommu and the "
        "function's own node)",
    ] = "legacy"
    pci_unsafe: Annotated[bool, "also publishes functions that the host needs for its disks, console or network"] = (
        False
    )

    def __post_init__(self) -> None:
        parse_selection(self.pci_select)


class Pci(Driver):
    """Publishes PCI functions and prepares them for containers."""

    name = "pci.dra-kubeletplugin.dev"
    config = PciConfig
    options = PciOptions()
    metadata = True  # KubeVirt reads the function's address from the metadata file
    privileged = True  # binds functions to vfio-pci through sysfs
    # Events of disks and networks matter, because the functions that the host needs depend on them.
    subsystems = ("pci", "block", "net")

    def start(self) -> None:
        self.selection = parse_selection(self.options.pci_select)
        self.native_drivers = NativeDrivers(self.settings.plugin_dir / "native-drivers", self.host.boot_id())
        self.withheld: dict[str, str] = {}

    def devices(self) -> list[Device]:
        functions = self.host.pci()
        reasons = {} if self.options.pci_unsafe else dict(essential(self.host.sysfs, functions))
        out = []
        for fn in functions:
            native_driver = self.native_drivers.of(fn)
            if not self._selected(fn, native_driver):
                continue
            if reason := reasons.get(fn.address):
                if self.withheld.get(fn.address) != reason:
                    self.log.info(
                        "%s is kept for the host: it carries %s (PCI_UNSAFE=1 publishes it)", fn.address, reason
                    )
                continue
            # fn.driver is vfio-pci while a container has the function. With it as attribute, each prepare would change
            # the slice, and a function that PCI_SELECT selects by its driver would disappear while it is in use.
            out.append(fn.device(attributes={"driver": native_driver} if native_driver else {}))
        self.withheld = reasons
        return out

    def _selected(self, fn: PciFunction, native_driver: str | None) -> bool:
        if not self.selection:
            return not fn.is_class(vfio.BRIDGE)
        return any(matches(fn, native_driver, conditions) for conditions in self.selection)

    # --- claims ---------------------------------------------------------------------------------

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [self._prepare(claim, device) for device in claim.devices]

    def _prepare(self, claim: Claim, device: AllocatedDevice) -> PreparedDevice:
        fn = self._function(device)
        config = device.config
        mode = (config.mode if isinstance(config, PciConfig) else None) or self.options.pci_mode
        obstacle = self._vfio_obstacle(claim, fn)
        if mode == "vfio" and obstacle:
            raise PermanentError(f"{fn.address} cannot be prepared with VFIO: {obstacle}")
        if mode == "info" or obstacle or device.admin_access:
            return device.prepared(self._info_edits(fn), data={"mode": "info", "address": fn.address})
        # The functions of a group cannot be isolated from each other. The claim's UID makes this step exclusive.
        claim.shared_step(self.setup_group, f"iommu-group-{fn.iommu_group}", claim=claim.uid)
        self._bind_vfio(claim, fn)
        edits = ContainerEdits(
            env=environment(fn, "vfio"),
            device_nodes=vfio.device_nodes(self.host, fn, self.options.pci_iommu),
        )
        return device.prepared(edits, data={"mode": "vfio", "address": fn.address, "group": fn.iommu_group})

    def unprepare(self, claim: PreparedClaim) -> None:
        """Does nothing: the framework calls ``restore_driver`` for each function that prepare changed."""

    def _function(self, device: AllocatedDevice) -> PciFunction:
        address = device.data.address if isinstance(device.data, PciFunction) else ""
        fn = self.host.function(address)
        if fn is None:
            raise RetryableError(f"this node has no PCI function {address} (any more)")
        if not self.options.pci_unsafe and (reason := dict(essential(self.host.sysfs, [fn])).get(address)):
            raise PermanentError(f"the host needs {address} for {reason}; PCI_UNSAFE=1 gives it to containers")
        return fn

    def _info_edits(self, fn: PciFunction) -> ContainerEdits:
        mount = Mount(
            host_path=str(fn.path),
            container_path=f"/run/pci/{fn.address}",
            options=["ro", "bind", "nosuid", "nodev", "noexec"],
        )
        return ContainerEdits(env=environment(fn, "info"), mounts=[mount])

    def _vfio_obstacle(self, claim: Claim, fn: PciFunction) -> str:
        """Returns why VFIO cannot be used, or an empty string if it can."""
        if self.settings.local_cluster and self.host.is_real:
            return "a local cluster does not change the functions of a real machine"
        claimed = {d.data.address for d in claim.devices if isinstance(d.data, PciFunction)}
        return vfio.obstacle(self.host, fn, claimed, self.options.pci_iommu)

    def _bind_vfio(self, claim: Claim, fn: PciFunction) -> None:
        if fn.driver == vfio.VFIO:
            return
        claim.on_undo(self.restore_driver, address=fn.address, driver=fn.driver)  # on disk before the next line
        self.native_drivers.save(fn.address, fn.driver)
        vfio.bind(self.host, fn)

    def setup_group(self, group: str, claim: str) -> None:
        """Does nothing: the record of the claim keeps other claims from the group."""

    def teardown_group(self, group: str, claim: str) -> None:
        """Does nothing, like :meth:`setup_group`."""

    def restore_driver(self, claim: PreparedClaim, address: str, driver: str | None) -> None:
        """Binds a function to its former driver. Idempotent.

        Does nothing after a reboot, or if the function was removed.
        """
        if (self.host.sysfs / "bus/pci/devices" / address).exists() and claim.same_boot:
            vfio.restore(self.host, address, driver)
            self.native_drivers.delete(address)


def environment(fn: PciFunction, mode: str) -> dict[str, str]:
    """Returns ``PCI_DEVICE_<address with underscores>=<address>``: each function has its own variable."""
    key = fn.address.upper().replace(":", "_").replace(".", "_")
    return {f"PCI_DEVICE_{key}": fn.address, f"PCI_DEVICE_{key}_MODE": mode}


if __name__ == "__main__":
    run(Pci)
