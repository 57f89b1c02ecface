"""A driver of FPGAs and its host, for tests of ``dra dev``."""

from __future__ import annotations

DRIVER = """
from dra_kubeletplugin import AllocatedDevice, Claim, ContainerEdits, Device, Driver, Health, PreparedDevice


class Fpga(Driver):
    name = "fpga.example.com"

    def devices(self):
        return [fn.device(attributes={"version": "one"}) for fn in self.host.pci(vendor=0x10EE)]

    def prepare(self, claim: Claim):
        return [d.prepared(ContainerEdits(device_nodes=d.data.nodes("fpga"))) for d in claim.devices]

    def health(self):
        return {}
"""


HOST = """
functions:
- {address: "0000:17:00.0", vendor: 0x10ee, device: 0x5000, class: 0x120000, driver: xcl, classes: {fpga: {fpga0: {dev: "240:0"}}}}
- {address: "0000:18:00.0", vendor: 0x10ee, device: 0x5000, class: 0x120000, driver: xcl, classes: {fpga: {fpga1: {dev: "240:1"}}}}
"""


NEW = {"address": "0000:19:00.0", "vendor": 0x10EE, "device": 0x5000, "class": 0x120000, "driver": "xcl"}
