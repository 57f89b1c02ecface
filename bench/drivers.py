"""Drivers that do no work, so that the figures are those of the framework."""

from __future__ import annotations

import json
import threading
import time

from dra_kubeletplugin import Claim, Config, ContainerEdits, Device, Driver, Health, PreparedDevice, Taint

DEVICES_FILE = "bench.json"  # below the kubelet's root
LISTED_FILE = "bench.listed"  # time when the driver had listed its devices, on the monotonic clock of all processes


class _NoWork(Driver):
    """Prepares a device by setting its name in the container's environment."""

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"DEVICE": d.name})) for d in claim.devices]


class Idle(_NoWork):
    """128 devices."""

    name = "idle.example.com"

    async def devices(self) -> list[Device]:
        return [Device(f"d-{i}", attributes={"index": i}) for i in range(128)]


class Described(Idle):
    """The same devices, with metadata files."""

    name = "described.example.com"
    metadata = True


class TypedConfig(Config):
    """Parameters with a few typed fields."""

    KIND, API_VERSION = "TypedConfig", "typed.example.com/v1"
    image: str = "base"
    clock: int = 0
    lanes: tuple[int, ...] = ()


class Typed(Idle):
    """The same devices, with typed parameters."""

    name = "typed.example.com"
    config = TypedConfig


class Many(_NoWork):
    """2,048 devices, each with 16 attributes."""

    name = "many.example.com"

    def devices(self) -> list[Device]:
        return [
            Device(f"d-{i}", attributes={f"attribute{n}": f"value {n} of {i}" for n in range(16)}) for i in range(2048)
        ]


class FromFile(_NoWork):
    """Reads its number of devices from a file, which a thread checks every few milliseconds, like a vendor's event."""

    name = "file.example.com"

    def start(self) -> None:
        self.file = self.settings.kubelet_root / DEVICES_FILE
        self.last = self.written = b""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(0.005)
            if self._read() != self.last:
                self.rescan()
                time.sleep(0.2)

    def _read(self) -> bytes:
        return self.file.read_bytes() if self.file.exists() else b""

    def devices(self) -> list[Device]:
        self.last = self._read()
        wanted = json.loads(self.last or b"{}")
        attributes = {f"attribute{n}": f"value {n}" for n in range(8)}
        changed = {wanted.get("changed"): {"attribute0": "changed"}}
        taints = {wanted.get("tainted"): [Taint(key="file.example.com/sick")]}
        out = [
            Device(f"d-{i}", attributes={**attributes, "index": i, **changed.get(i, {})}, taints=taints.get(i, ()))
            for i in range(wanted.get("count", 0))
        ]
        if self.written != self.last:  # the framework also calls devices() at regular intervals
            (self.settings.kubelet_root / LISTED_FILE).write_text(str(time.monotonic()))
            self.written = self.last
        return out


class FromFileWithHealth(FromFile):
    """The same, and reports health, so each device can get a taint."""

    name = "health.example.com"

    def health(self) -> dict[str, Health]:
        return {}
