"""Any order of prepare, unprepare, repeat, kill, reboot, outage, claim replaced: the engine against a model.

The engine is real, with a real SQLite file and real CDI files. A kill is an exception that nothing catches, thrown at a random
effect, after which the engine is dropped as it is and another one is started on the same files.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, Host, PreparedClaim, PreparedDevice
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import ClaimRef, Engine, State, Store
from dra_kubeletplugin.claims.processes import ProcessLock
from dra_kubeletplugin.claims.reconcile import Reconciler
from dra_kubeletplugin.claims.verify import Verifier
from dra_kubeletplugin.errors import ApiError, DraError
from dra_kubeletplugin.inventory import Inventory
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.observe.metrics import Metrics
from dra_kubeletplugin.settings import Settings

NAME = "model.example.com"
DEVICES = [f"m-{i}" for i in range(3)]


class Killed(BaseException):
    """SIGKILL, as far as one process can play it."""


class Hardware:
    """What the devices themselves know: who has them. Survives kills, not reboots."""

    def __init__(self) -> None:
        self.holder: dict[str, str] = {}
        self.fuse = -1  # effects until the kill; -1: never

    def effect(self) -> None:
        if self.fuse == 0:
            raise Killed
        self.fuse -= self.fuse > 0


class Model(Driver):
    name = NAME

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware

    async def devices(self) -> list[Device]:
        return [Device(d) for d in DEVICES]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for d in claim.devices:
            self.hardware.effect()
            await claim.on_undo("release", device=d.name)
            self.hardware.effect()
            holder = self.hardware.holder.setdefault(d.name, claim.uid)
            assert holder == claim.uid, f"{d.name} has two holders: {holder} and {claim.uid}"
            self.hardware.effect()
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    async def undo_release(self, claim: PreparedClaim, device: str) -> None:
        self.hardware.effect()
        if self.hardware.holder.get(device) == claim.uid:
            del self.hardware.holder[device]
        self.hardware.effect()


class Api:
    """Claims by name, as the API server has them."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        self.away = False

    async def dra(self, plural: str) -> Resource:
        return Resource("resource.k8s.io", "v1", plural, namespaced=True)

    async def get(self, resource: Resource, name: str, namespace: str = "", *, timeout: float | None = None) -> Any:
        if self.away:
            raise ApiError("away")
        if name not in self.claims:
            raise ApiError("gone", status=404, details={"details": {"name": name}})
        return self.claims[name]


class Machine(RuleBasedStateMachine):
    refs = Bundle("refs")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.runner = asyncio.Runner()
        self.hardware = Hardware()
        self.api = Api()
        self.boot = 0
        self.numbers = itertools.count()
        self.wanted: dict[str, str] = {}  # UIDs whose last answer to prepare was success, and their device
        self.start()

    def teardown(self) -> None:
        # At the end everything is unprepared, and then nothing may be left.
        self.hardware.fuse = -1
        self.api.away = False
        refs = [ClaimRef(r.namespace, r.name, r.uid) for r in self.run(self.store.all())]
        answers = self.run(self.engine.unprepare(refs))
        assert not any(isinstance(a, DraError) for a in answers.values()), answers
        assert self.hardware.holder == {}
        assert self.specs.uids() == []
        assert self.run(self.store.all()) == []
        self.drop()
        self.runner.close()
        self.folder.cleanup()

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def start(self) -> None:
        driver = Model(self.hardware)
        (self.root / "sys").mkdir(exist_ok=True)
        driver.bind(Host(self.root / "sys"), Settings(driver_name=NAME))
        inventory = Inventory("node")
        self.run(inventory.update([Device(d) for d in DEVICES]))
        self.process = ProcessLock(self.root / "processes")
        self.process.acquire()
        self.store = Store(self.root / "records.db", NAME, 5)
        self.specs = ClaimSpecs(self.root / "cdi", NAME)
        verifier = Verifier(self.api, inventory, driver, NAME)  # type: ignore[arg-type]
        self.engine = Engine(
            driver,
            self.store,
            self.specs,
            verifier,
            self.process,
            f"boot-{self.boot}",
            Metrics(),
            call_timeout=10,
            lock_wait=1,
        )
        self.reconciler = Reconciler(self.engine, Metrics(), grace=0)
        self.run(self.reconciler.once(ask_server=False))

    def drop(self) -> None:
        """The process is gone: its lock, its connection, its tasks; its files stay."""
        self.run(self.store.close())
        self.process.release()

    def kill_and_start(self) -> None:
        self.hardware.fuse = -1
        self.drop()
        self.start()

    # --- rules ----------------------------------------------------------------------------------

    @rule(target=refs, device=st.sampled_from(DEVICES), name=st.sampled_from(["a", "b", "c"]))
    def allocate(self, device: str, name: str) -> Any:
        """A claim under a name that may have been used before, on a device that may still be held."""
        uid = f"uid-{next(self.numbers)}"
        result = {"request": "r", "driver": NAME, "pool": "node", "device": device}
        self.api.claims[name] = {
            "metadata": {"name": name, "namespace": "ns", "uid": uid},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
        return multiple((ClaimRef("ns", name, uid), device))

    @rule(ref=refs)
    def prepare(self, ref: tuple[ClaimRef, str]) -> None:
        self._prepare(*ref)

    def _prepare(self, ref: ClaimRef, device: str) -> None:
        live = self.api.claims.get(ref.name, {}).get("metadata", {}).get("uid") == ref.uid
        others = [
            r for r in self.run(self.store.all()) if device in {d["device"] for d in r.devices} and r.uid != ref.uid
        ]
        held = any(r.state is State.PREPARED and r.boot_id == self.engine.boot_id for r in others)
        answer = self.run(self.engine.prepare([ref]))[ref.uid]
        if isinstance(answer, DraError):
            assert self.api.away or not live or held, answer
            return
        assert [a.device for a in answer] == [device]
        assert self.hardware.holder[device] == ref.uid
        assert self.specs.exists(ref.uid)
        self.wanted[ref.uid] = device

    @rule(ref=consumes(refs))
    def unprepare(self, ref: tuple[ClaimRef, str]) -> None:
        answer = self.run(self.engine.unprepare([ref[0]]))[ref[0].uid]
        assert not isinstance(answer, DraError), answer
        self.wanted.pop(ref[0].uid, None)
        assert ref[0].uid not in self.hardware.holder.values()

    @rule(ref=refs, effects=st.integers(0, 4), undo=st.booleans())
    def killed_in_the_middle(self, ref: tuple[ClaimRef, str], effects: int, undo: bool) -> None:
        self.hardware.fuse = effects

        async def call() -> None:
            work = self.engine.unprepare if undo else self.engine.prepare
            try:
                await work([ref[0]])
            except Killed:
                pass

        try:
            self.run(call())
        except BaseException as e:
            if not isinstance(e, (Killed, KeyboardInterrupt)):
                raise
        if undo:
            self.wanted.pop(ref[0].uid, None)
        self.kill_and_start()

    @rule()
    def killed_when_idle(self) -> None:
        self.kill_and_start()

    @rule()
    def reboot(self) -> None:
        self.drop()
        self.boot += 1
        self.hardware.holder.clear()
        for uid in self.specs.uids():
            self.specs.path(uid).unlink()
        self.wanted.clear()
        self.start()

    @rule(ref=refs)
    def reboot_and_prepare_again(self, ref: tuple[ClaimRef, str]) -> None:
        """What the kubelet does for every pod that stays."""
        self._prepare(*ref)
        self.reboot()
        self._prepare(*ref)

    @rule()
    def the_kubelet_restarts(self) -> None:
        """It prepares again what it knows; every answer is as it was."""
        for record in self.run(self.store.all()):
            if record.uid in self.wanted:
                self._prepare(ClaimRef(record.namespace, record.name, record.uid), self.wanted[record.uid])

    @rule(away=st.booleans())
    def the_api_server_comes_or_goes(self, away: bool) -> None:
        self.api.away = away

    @rule(name=st.sampled_from(["a", "b", "c"]))
    def a_claim_is_deleted(self, name: str) -> None:
        self.api.claims.pop(name, None)

    @rule()
    def reconcile(self) -> None:
        report = self.run(self.reconciler.once())
        for uid in report.unprepared:
            self.wanted.pop(uid, None)

    @rule(ref=refs)
    def a_file_is_removed_by_hand(self, ref: tuple[ClaimRef, str]) -> None:
        self.specs.path(ref[0].uid).unlink(missing_ok=True)
        self.run(self.reconciler.once(ask_server=False))

    # --- what always holds ----------------------------------------------------------------------

    @invariant()
    def what_was_answered_is_true(self) -> None:
        for uid, device in self.wanted.items():
            assert self.hardware.holder.get(device) == uid, f"{uid} was told that it has {device}"
            assert self.specs.exists(uid)

    @invariant()
    def every_file_and_every_held_device_has_a_record(self) -> None:
        uids = {r.uid for r in self.run(self.store.all())}
        assert set(self.specs.uids()) <= uids
        assert set(self.hardware.holder.values()) <= uids


Machine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_the_engine_against_a_model = Machine.TestCase
