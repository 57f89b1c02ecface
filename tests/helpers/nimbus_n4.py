"""An example driver: its accelerators are allocated in halves, and the card needs firmware."""

from __future__ import annotations

from typing import Any

from dra_kubeletplugin import (
    AllocatedDevice,
    Claim,
    ContainerEdits,
    Driver,
    Partition,
    Partitioned,
    PciFunction,
    Pool,
    PreparedClaim,
    PreparedDevice,
    Profile,
    RetryableError,
    partitions,
)

VENDOR, DEVICE = 0x1D94, 0x0401
FIRST, SECOND = "0000:17:00.0", "0000:98:00.0"
PROFILES = [
    Profile(name="quarter", takes={"memory": "16Gi", "cores": 2}, slots=1, at=[3, 2, 1, 0]),
    Profile(name="half", takes={"memory": "32Gi", "cores": 4}, slots=2, at=[2, 0]),
]
WHOLE = '!("profile" in device.attributes["nimbus.example.com"])'
HALF, QUARTER = (f'device.attributes["nimbus.example.com"].?profile.orValue("") == "{p}"' for p in ("half", "quarter"))


def _function(address: str, number: int) -> dict[str, Any]:
    return {
        "address": address,
        "vendor": VENDOR,
        "device": DEVICE,
        "class": 0x120000,
        "driver": "nimbus",
        "classes": {"nimbus": {f"nimbus{number}": {"dev": f"241:{number}"}}},
        "attributes": {"firmware": "0\n", "loads": "0\n"},
    }


HOST = {"functions": [_function(FIRST, 0), _function(SECOND, 1)]}
ONE_CARD = {"functions": [_function(FIRST, 0)]}


class Nimbus(Driver):
    """A container gets the device node of its card. The firmware is loaded while a claim uses a part of the card."""

    name = "nimbus.example.com"
    privileged = True
    firmware = "4.2"

    def pools(self) -> list[Pool]:
        cards = [cut(fn) for fn in self.host.pci(vendor=VENDOR, device=DEVICE)]
        return [Pool(self.settings.node_name, [d for c in cards for d in c.devices], [c.counter_set for c in cards])]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [self._prepare(claim, device) for device in claim.devices]

    def _prepare(self, claim: Claim, device: AllocatedDevice) -> PreparedDevice:
        part = device.data
        assert isinstance(part, Partition)
        address = str(device.attributes["resource.kubernetes.io/pciBusID"])
        fn = self.host.function(address)
        if fn is None:
            raise RetryableError(f"{address} is not there any more")
        claim.shared_step(self.setup_firmware, address, version=self.firmware)
        slots = [part.slots.start, part.slots.stop]
        claim.on_undo(self.cut, address=address, slots=slots)
        return device.prepared(ContainerEdits(device_nodes=fn.nodes("nimbus"), env={"NIMBUS_SLOTS": str(slots)}))

    def cut(self, claim: PreparedClaim, address: str, slots: list[int]) -> None:
        """Frees the slots; the firmware does it when the process ends."""

    def setup_firmware(self, address: str, version: str) -> None:
        fn = self.host.function(address)
        if fn is None:
            raise RetryableError(f"{address} is not there any more")
        if (fn.read("firmware") or "").strip() != version:
            self.host.write(f"bus/pci/devices/{address}/loads", str(int(fn.read("loads") or 0) + 1))
            self.host.write(f"bus/pci/devices/{address}/firmware", version)

    def teardown_firmware(self, address: str, version: str) -> None:
        if self.host.function(address) is not None:
            self.host.write(f"bus/pci/devices/{address}/firmware", "0")


def cut(fn: PciFunction) -> Partitioned:
    standard = {k: v for k, v in fn.attributes().items() if k.startswith("resource.kubernetes.io/")}
    name = f"n4-{fn.address.translate(str.maketrans(':.', '--'))}"
    return partitions(name, PROFILES, has={"memory": "64Gi", "cores": 8}, slots=4, attributes=standard)
