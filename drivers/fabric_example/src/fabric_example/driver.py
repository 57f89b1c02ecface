"""Devices on a fabric, attached while the scheduler waits (KEP-5007), and slices of several hosts (KEP-4815).

One class in two roles. The controller publishes the pools, which belong to no node, and attaches and detaches devices;
the plugin on the node where a device was attached prepares it for containers. What stands in for the fabric manager is
:mod:`.sdk`: put your own client there, and nothing else has to change.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

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


class Fabric(Driver):
    """Options, from the environment:

    FABRIC_STATE       the simulated fabric's file; of the controller.
    FABRIC_DEVICES     what is plugged into it when it is new: ``gpu-0=a100,gpu-1=a100``.
    FABRIC_TPU_HOSTS   nodes of one TPU pod, neighbours beside each other; no pool of slices when empty.
    """

    name = NAME

    def start(self) -> None:
        self.fabric = FabricManager(Path(os.environ.get("FABRIC_STATE", "/var/run/fabric.db")))
        self.tpu_hosts = [h for h in os.environ.get("FABRIC_TPU_HOSTS", "").split(",") if h]
        if self.role is Role.CONTROLLER:
            for name, model in _models(os.environ.get("FABRIC_DEVICES", "")):
                self.fabric.plug(name, model)

    # --- both roles: what there is --------------------------------------------------------------

    def pools(self) -> list[Pool]:
        if self.role is Role.NODE:
            return []  # nothing is of a node until it is attached, and then it stays a device of the fabric
        devices = [self._device(name, model) for name, model in self.fabric.devices()]
        pools = [Pool(POOL, devices, nodes=Nodes.all())]
        if self.tpu_hosts:
            counters = {f"tpus-{h}": CHIPS for h in self.tpu_hosts}
            pools.append(Pool(TPU_POOL, tpu_slices(self.tpu_hosts), [CounterSet("tpus", counters)], Nodes.all()))
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
            # In the claim before its condition is true: the plugin on the node reads it there.
            if not claim.report(device, DeviceStatus(data={"slot": slot})).wait():
                raise RetryableError(f"the slot of {device.name} cannot be told to the plugin: the API server is away")

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
        for told in claim.object["status"].get("devices") or []:
            of_it = (told["driver"], told["pool"], told["device"]) == (NAME, device.pool, device.name)
            if of_it and (slot := (told.get("data") or {}).get("slot")) is not None:
                return device.prepared(ContainerEdits(env={f"FABRIC_{_variable(device.name)}": f"slot-{slot}"}))
        raise RetryableError(f"{device.name} is allocated, and the claim does not tell where it is attached")

    def _tpu(self, device: AllocatedDevice) -> PreparedDevice:
        hosts = sorted(c.removeprefix("tpus-") for c in device.device.consumes_counters["tpus"])
        env = {
            "TPU_TOPOLOGY": str(device.attributes["topology"]),
            "TPU_WORKER_HOSTNAMES": ",".join(hosts),
            "TPU_WORKER_ID": str(hosts.index(self.settings.node_name)),
        }
        return device.prepared(ContainerEdits(env=env))


def _models(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, text.split(",")):
        name, equals, model = part.partition("=")
        if not (name and equals and model):
            raise PermanentError(f"FABRIC_DEVICES has {part!r}: write it like gpu-0=a100,gpu-1=a100")
        yield name, model


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


if __name__ == "__main__":
    run(Fabric)
