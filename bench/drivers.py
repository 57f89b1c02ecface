"""A driver that does nothing but answer, so that figures are the framework's own."""

from __future__ import annotations

from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, PreparedDevice


class Idle(Driver):
    """A hundred and twenty-eight devices."""

    name = "idle.example.com"

    async def devices(self) -> list[Device]:
        return [Device(f"d-{i}", {"index": i}) for i in range(128)]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"DEVICE": d.name})) for d in claim.devices]


class Many(Driver):
    """As many devices as a node may have, with attributes like those of graphics cards."""

    name = "many.example.com"

    def devices(self) -> list[Device]:
        return [Device(f"d-{i}", {f"attribute{n}": f"value {n} of {i}" for n in range(16)}) for i in range(2048)]
