"""Devices that are on a fabric instead of in a node: attached while the scheduler waits (KEP-5007), and slices of several hosts (KEP-4815).

One class in two roles. The controller publishes the pools, which belong to no node, and attaches and detaches devices; the plugin
on the node where a device was attached prepares it for containers. The fabric is simulated by a file: put your fabric
manager's API in the place of :class:`FabricManager`, and nothing else has to change.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
)

NAME = "fabric.dra-kubeletplugin.dev"
ATTACHED, ATTACH_FAILED = f"{NAME}/attached", f"{NAME}/attach-failed"
POOL, TPU_POOL = "fabric", "tpu"
CHIPS = 4  # of one TPU host
_SCHEMA = """
CREATE TABLE IF NOT EXISTS devices (
    name TEXT PRIMARY KEY, model TEXT NOT NULL, broken TEXT NOT NULL DEFAULT '', seconds REAL NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS attachments (
    device TEXT PRIMARY KEY, node TEXT NOT NULL, owner TEXT NOT NULL, slot INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class Attachment:
    """Where a device is now."""

    node: str
    owner: str
    slot: int


class BrokenPortError(Exception):
    """The fabric cannot attach this device until somebody repairs it."""


class FabricManager:
    """Stands in for a fabric manager's API: blocking calls, a truth of its own, faults that somebody else makes.

    Raises ``OSError`` and ``sqlite3.Error`` where it is out of reach, as a real one's client would raise something.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self.path, timeout=5.0, isolation_level=None)
        try:
            db.executescript(_SCHEMA)
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        finally:
            db.close()  # what was not committed did not happen

    def add(self, name: str, model: str, *, broken: str = "", seconds: float = 0) -> None:
        """Plugs a device into the fabric, or changes it: ``broken`` says why it cannot be attached, ``seconds`` how long it takes."""
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO devices VALUES (?, ?, ?, ?)", (name, model, broken, seconds))

    def devices(self) -> list[tuple[str, str]]:
        """Name and model of all."""
        with self._open() as db:
            return list(db.execute("SELECT name, model FROM devices ORDER BY name"))

    def attached(self, device: str) -> Attachment | None:
        with self._open() as db:
            row = db.execute("SELECT node, owner, slot FROM attachments WHERE device = ?", (device,)).fetchone()
        return Attachment(*row) if row else None

    def attach(self, device: str, node: str, owner: str) -> Attachment:
        """Attaches a device for an owner; repeated, it answers what is so already.

        Raises :class:`BrokenPortError`, and ``ValueError`` where another owner has it.
        """
        with self._open() as db:
            row = db.execute("SELECT broken, seconds FROM devices WHERE name = ?", (device,)).fetchone()
        if row is None or row[0]:
            raise BrokenPortError(row[0] if row else f"{device} was unplugged")
        time.sleep(row[1])
        with self._open() as db:
            used = [s for (s,) in db.execute("SELECT slot FROM attachments WHERE node = ?", (node,))]
            slot = next(s for s in range(len(used) + 1) if s not in used)
            db.execute("INSERT OR IGNORE INTO attachments VALUES (?, ?, ?, ?)", (device, node, owner, slot))
            found = Attachment(
                *db.execute("SELECT node, owner, slot FROM attachments WHERE device = ?", (device,)).fetchone()
            )
        if (found.owner, found.node) != (owner, node):
            raise ValueError(f"{device} is attached to {found.node} for {found.owner}")
        return found

    def detach(self, device: str, owner: str) -> None:
        """Detaches what ``owner`` has; nothing where that is not so."""
        with self._open() as db:
            db.execute("DELETE FROM attachments WHERE device = ? AND owner = ?", (device, owner))


class Fabric(Driver):
    """Options: ``FABRIC_STATE``, the simulated fabric's file; ``FABRIC_TPU_HOSTS``, nodes of one TPU pod, in their order."""

    name = NAME

    def start(self) -> None:
        self.fabric = FabricManager(Path(os.environ.get("FABRIC_STATE", "/var/run/fabric.db")))
        self.tpu_hosts = [h for h in os.environ.get("FABRIC_TPU_HOSTS", "").split(",") if h]

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


def tpu_slices(hosts: Sequence[str]) -> list[Device]:
    """The slices of one TPU pod whose hosts have 2x2 chips each: every power of two of neighbouring hosts, largest first.

    As the table in KEP-4815, "Defining multi-host devices": a slice of several hosts selects them all, and takes from each
    host's counter what it uses of it.
    """
    out = []
    size = 1 << (len(hosts).bit_length() - 1)
    while size:
        for number, first in enumerate(range(0, len(hosts) - size + 1, size), 1):
            members = hosts[first : first + size]
            topology = _topology(size)
            out.append(
                Device(
                    f"tpu-{topology}-{number}",
                    attributes={"topology": topology},
                    capacity={"tpus": str(CHIPS * size)},
                    consumes_counters={"tpus": {f"tpus-{m}": str(CHIPS) for m in members}},
                    nodes=Nodes.named(*members),
                )
            )
        size //= 2
    return out


def _topology(hosts: int) -> str:
    """2x2, 2x4, 4x4, 4x8, ..."""
    across, down = 2, 2
    while across * down < CHIPS * hosts:
        across, down = (across * 2, down) if across < down else (across, down * 2)
    return f"{across}x{down}"


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")
