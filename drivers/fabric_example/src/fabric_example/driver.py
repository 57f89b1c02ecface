"""A driver for a fabric: devices attached while the scheduler waits (KEP-5007), and slices of several hosts (KEP-4815).

The class runs in two roles. The controller publishes the pools, which belong to no node, and attaches and detaches
devices. The plugin on a node prepares the devices that are attached to this node. :mod:`.sdk` simulates the fabric
manager; replace it with your client.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dra_kubeletplugin import (
    AllocatedDevice,
    BoundClaim,
    Claim,
    ContainerEdits,
    CounterSet,
    Device,
    DeviceStatus,
    Driver,
    Nodes,
    PermanentError,
    Pool,
    PreparedDevice,
    RetryableError,
    Role,
    run,
)

from .sdk import BrokenPortError, FabricManager
from .tpu import CHIPS, tpu_slices

NAME = "fabric.dra-kubeletplugin.dev"
ATTACHED, ATTACH_FAILED = f"{NAME}/attached", f"{NAME}/attach-failed"
POOL, TPU_POOL = "fabric", "tpu"


@dataclass(frozen=True)
class FabricOptions:
    """Options of this driver; ``dra run --help`` and the README list them."""

    fabric_state: Annotated[Path, "the file that simulates the fabric; controller only"] = Path("/var/run/fabric.db")
    fabric_devices: Annotated[tuple[str, ...], "the devices of a new fabric: gpu-0=a100,gpu-1=a100"] = ()
    fabric_tpu_hosts: Annotated[
        tuple[str, ...], "the nodes of one TPU pod, in the order of their links; if empty, no slices are published"
    ] = ()

    def __post_init__(self) -> None:
        for part in self.fabric_devices:
            if not all(part.partition("=")):
                raise ValueError(f"fabric_devices has {part!r}: write it like gpu-0=a100,gpu-1=a100")


class Fabric(Driver):
    """Publishes devices of a fabric, attaches them to nodes, and prepares them there."""

    name = NAME
    options = FabricOptions()

    def start(self) -> None:
        self.fabric = FabricManager(self.options.fabric_state)
        if self.role is Role.CONTROLLER:
            for part in self.options.fabric_devices:
                name, _, model = part.partition("=")
                self.fabric.plug(name, model)

    # --- both roles: devices --------------------------------------------------------------------

    def pools(self) -> list[Pool]:
        if self.role is Role.NODE:
            return []  # the controller publishes all devices, also those that are attached to this node
        devices = [self._device(name, model) for name, model in self.fabric.devices()]
        pools = [Pool(POOL, devices, nodes=Nodes.all())]
        if hosts := self.options.fabric_tpu_hosts:
            counters = {f"tpus-{h}": CHIPS for h in hosts}
            pools.append(Pool(TPU_POOL, tpu_slices(hosts), [CounterSet("tpus", counters)], Nodes.all()))
        return pools

    @staticmethod
    def _device(name: str, model: str) -> Device:
        return Device(
            name,
            attributes={"model": model},
            binds_to_node=True,
            binding_conditions=[ATTACHED],
            binding_failure_conditions=[ATTACH_FAILED],
        )

    # --- controller: while the scheduler waits --------------------------------------------------

    def bind(self, claim: Claim) -> None:
        for device in claim.devices:
            slot = self._attach(claim, device)
            # The plugin on the node reads the slot in the claim, so it must be there before the condition is True.
            if not claim.report(device, DeviceStatus(data={"slot": slot})).wait():
                raise RetryableError(
                    f"the slot of {device.name} could not be written to the claim: no connection to the API server"
                )

    def _attach(self, claim: Claim, device: AllocatedDevice) -> int:
        try:
            return self.fabric.attach(device.name, claim.node, claim.uid).slot
        except BrokenPortError as e:
            raise PermanentError(f"{device.name} cannot be attached to {claim.node}: {e}") from None
        except (ValueError, OSError, sqlite3.Error) as e:
            raise RetryableError(f"{device.name} cannot be attached now: {e}") from None

    def unbind(self, claim: BoundClaim) -> None:
        for device in claim.devices:
            self.fabric.detach(device.name, claim.uid)

    # --- plugin: on the node --------------------------------------------------------------------

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [self._tpu(d) if d.pool == TPU_POOL else self._attached(claim, d) for d in claim.devices]

    def _attached(self, claim: Claim, device: AllocatedDevice) -> PreparedDevice:
        for status in claim.object["status"].get("devices") or []:
            same = (status["driver"], status["pool"], status["device"]) == (NAME, device.pool, device.name)
            if same and (slot := (status.get("data") or {}).get("slot")) is not None:
                return device.prepared(ContainerEdits(env={f"FABRIC_{_variable(device.name)}": f"slot-{slot}"}))
        raise RetryableError(f"{device.name} is allocated, but the claim's status does not contain its slot")

    def _tpu(self, device: AllocatedDevice) -> PreparedDevice:
        hosts = sorted(c.removeprefix("tpus-") for c in device.published.consumes_counters["tpus"])
        env = {
            "TPU_TOPOLOGY": str(device.attributes["topology"]),
            "TPU_WORKER_HOSTNAMES": ",".join(hosts),
            "TPU_WORKER_ID": str(hosts.index(self.settings.node_name)),
        }
        return device.prepared(ContainerEdits(env=env))


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


if __name__ == "__main__":
    run(Fabric)
