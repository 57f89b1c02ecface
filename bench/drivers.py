"""A driver that does nothing but answer, so that figures are the framework's own."""

from __future__ import annotations

import json
import threading
import time

from dra_kubeletplugin import Claim, Config, ContainerEdits, Device, Driver, Health, PreparedDevice, Taint

TOLD = "bench.json"  # below the kubelet's root
ANSWERED = "bench.answered"  # when the driver had listed its devices, on the clock that all processes share


class _Answers(Driver):
    """Gives a container its devices' names."""

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"DEVICE": d.name})) for d in claim.devices]


class Idle(_Answers):
    """A hundred and twenty-eight devices."""

    name = "idle.example.com"

    async def devices(self) -> list[Device]:
        return [Device(f"d-{i}", {"index": i}) for i in range(128)]


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


class Many(_Answers):
    """As many devices as a node may have, with attributes like those of graphics cards."""

    name = "many.example.com"

    def devices(self) -> list[Device]:
        return [Device(f"d-{i}", {f"attribute{n}": f"value {n} of {i}" for n in range(16)}) for i in range(2048)]


class Told(_Answers):
    """As many devices as a file says, which is looked at every few milliseconds: a vendor's event, from a thread."""

    name = "told.example.com"

    def start(self) -> None:
        self.file = self.settings.kubelet_root / TOLD
        self.last = self.noted = b""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(0.005)
            if self._read() != self.last:
                self.changed()
                time.sleep(0.2)

    def _read(self) -> bytes:
        return self.file.read_bytes() if self.file.exists() else b""

    def devices(self) -> list[Device]:
        self.last = self._read()
        told = json.loads(self.last or b"{}")
        attributes = {f"attribute{n}": f"value {n}" for n in range(8)}
        changed = {told.get("changed"): {"attribute0": "changed"}}
        taints = {told.get("tainted"): [Taint(key="told.example.com/sick")]}
        out = [
            Device(f"d-{i}", {**attributes, "index": i, **changed.get(i, {})}, taints=taints.get(i, ()))
            for i in range(told.get("count", 0))
        ]
        if self.noted != self.last:  # looks without a reason come again and again
            (self.settings.kubelet_root / ANSWERED).write_text(str(time.monotonic()))
            self.noted = self.last
        return out


class ToldOfHealth(Told):
    """The same, and each device may get a taint one day."""

    name = "health.example.com"

    def health(self) -> dict[str, Health]:
        return {}
