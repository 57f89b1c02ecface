"""Any order of prepare, unprepare, repeat, kill, reboot, outage, damage, claim replaced, two instances: claims against a model.

The engine is real, with a real SQLite file and real CDI files. A killed instance stops at a random effect and does nothing more,
not even what stands in a `finally`; its lock goes as the kernel would drop it, and another instance starts on the same files.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, Host, PreparedClaim, PreparedDevice, RecoveredClaim
from dra_kubeletplugin.claims import ClaimRef, Claims, State
from dra_kubeletplugin.claims.processes import ProcessLock
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DeviceGoneError, DraError, RetryableError
from dra_kubeletplugin.inventory import Inventory
from dra_kubeletplugin.observe.metrics import Metrics
from dra_kubeletplugin.settings import Settings
from tests.crash.rooms import Api

NAME = "model.example.com"
DEVICES = [f"m-{i}" for i in range(3)]
KNOWN = {"first": DEVICES, "second": DEVICES[:2]}  # two versions of a driver see different devices


class Hardware:
    """What the devices themselves know: who has them. Survives kills, not reboots."""

    def __init__(self) -> None:
        self.holder: dict[str, str] = {}


class Model(Driver):
    name = NAME

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.fuse = -1  # effects until the process stops; -1: never
        self.stopped = asyncio.Event()
        self.resumed = asyncio.Event()

    async def effect(self) -> None:
        if self.fuse == 0:
            self.stopped.set()
            await self.resumed.wait()
        self.fuse -= self.fuse >= 0

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for d in claim.devices:
            await self.effect()
            await claim.on_undo("release", device=d.name)
            await self.effect()
            holder = self.hardware.holder.setdefault(d.name, claim.uid)
            if holder != claim.uid:
                # Only an instance that was taken for dead may get here; see taken_for_dead.
                raise RetryableError(f"{d.name} is in use by {holder}")
            await self.effect()
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    async def undo_release(self, claim: PreparedClaim, device: str) -> None:
        await self.effect()
        if self.hardware.holder.get(device) == claim.uid:
            del self.hardware.holder[device]
        await self.effect()

    async def recover(self) -> list[RecoveredClaim]:
        return [
            RecoveredClaim(uid=uid, devices=[PreparedDevice(request="r", pool="node", name=device)])
            for device, uid in self.hardware.holder.items()
        ]


class Instance:
    """One process of the plugin."""

    def __init__(self, machine: Machine, which: str) -> None:
        self.which = which
        self.devices = KNOWN[which]
        self.driver = Model(machine.hardware)
        options = Settings(
            driver_name=NAME,
            node_name="node",
            kubelet_root=machine.root,
            cdi_root=machine.root / "cdi",
            call_timeout=10,
            lock_wait=1,
            reconcile_grace=0,
        )
        self.driver.bind(Host(machine.root / "sys"), options)
        inventory = Inventory("node")
        machine.run(inventory.update([Device(d) for d in self.devices]))
        self.process = ProcessLock(options.plugin_dir / "processes")
        self.process.acquire()
        self.process.bury()
        self.boot_id = f"boot-{machine.boot}"
        self.claims = Claims(
            self.driver,
            Calls(),
            machine.api,
            inventory,
            options,
            self.process,
            self.boot_id,
            Metrics(),  # type: ignore[arg-type]
        )
        machine.run(self.claims.open())

    async def die(self) -> None:
        """As by SIGKILL: nothing of it happens any more."""

        async def never(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        self.claims.store.do = never  # type: ignore[method-assign]
        self.claims.store.aside = never  # type: ignore[method-assign]
        current = asyncio.current_task()
        tasks = [t for t in asyncio.all_tasks() if t is not current]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks) if tasks else None
        os.close(self.process._fd)
        await self.claims.store._batcher.close(10)
        if self.claims.store._db is not None:
            self.claims.store._drop()


class Machine(RuleBasedStateMachine):
    refs = Bundle("refs")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        (self.root / "sys").mkdir()
        self.runner = asyncio.Runner()
        self.hardware = Hardware()
        self.api = Api()
        self.boot = 0
        self.numbers = itertools.count()
        self.wanted: dict[str, str] = {}  # UIDs whose last answer to prepare was success, and their device
        self.instances = {"first": Instance(self, "first")}

    def teardown(self) -> None:
        # At the end everything is unprepared, and then nothing may be left.
        self.api.away = False
        for instance in self.instances.values():
            instance.driver.fuse = -1
        refs = [ClaimRef(r.namespace, r.name, r.uid) for r in self.records()]
        answers = self.run(self.one.claims.unprepare(refs))
        assert not any(isinstance(a, DraError) for a in answers.values()), answers
        self.run(self.one.claims.reconciler.once(ask_server=False))
        assert self.hardware.holder == {}
        assert self.specs.uids() == []
        assert self.records() == []
        self.drop()
        self.runner.close()
        left = [p.name for p in (self.root / "plugins" / NAME).iterdir() if ".new-" in p.name or ".unmerged-" in p.name]
        assert left == []
        self.folder.cleanup()

    def run(self, coroutine: Awaitable[Any]) -> Any:
        return self.runner.run(coroutine)  # type: ignore[arg-type]

    @property
    def one(self) -> Instance:
        return next(iter(self.instances.values()))

    @property
    def specs(self) -> Any:
        return self.one.claims.files.specs

    def records(self) -> list[Any]:
        return self.run(self.one.claims.store.all())  # type: ignore[no-any-return]

    def instance(self, second: bool) -> Instance:
        """One of those that live."""
        return list(self.instances.values())[-1 if second else 0]

    def drop(self) -> None:
        for instance in self.instances.values():
            self.run(instance.die())
        self.instances.clear()

    def replace(self, instance: Instance) -> None:
        """The process dies; where none is left another one starts."""
        self.run(instance.die())
        del self.instances[instance.which]
        if not self.instances:
            self.instances["first"] = Instance(self, "first")

    # --- rules ----------------------------------------------------------------------------------

    @rule(target=refs, device=st.sampled_from(DEVICES), name=st.sampled_from(["a", "b", "c"]))
    def allocate(self, device: str, name: str) -> Any:
        """A claim under a name that may have been used before, on a device that may still be held."""
        uid = f"uid-{next(self.numbers)}"
        self.api.allocate(name, uid, device, NAME)
        return multiple((ClaimRef("ns", name, uid), device))

    @rule(ref=refs, second=st.booleans())
    def prepare(self, ref: tuple[ClaimRef, str], second: bool) -> None:
        self._prepare(*ref, self.instance(second))

    def _prepare(self, ref: ClaimRef, device: str, instance: Instance) -> None:
        claim = self.api.claims.get(ref.name) or {"metadata": {"uid": ""}}
        live = claim["metadata"]["uid"] == ref.uid and bool(claim["status"])
        others = [r for r in self.records() if device in {d["device"] for d in r.devices} and r.uid != ref.uid]
        held = any(r.state is State.PREPARED and r.boot_id == instance.boot_id for r in others)
        answer = self.run(instance.claims.prepare([ref]))[ref.uid]
        if isinstance(answer, DraError):
            unknown = isinstance(answer, DeviceGoneError) and device not in instance.devices
            assert self.api.away or not live or held or unknown, answer
            return
        assert [a.device for a in answer] == [device]
        assert self.hardware.holder[device] == ref.uid
        assert self.specs.exists(ref.uid)
        self.wanted[ref.uid] = device

    @rule(ref=consumes(refs), second=st.booleans())
    def unprepare(self, ref: tuple[ClaimRef, str], second: bool) -> None:
        answer = self.run(self.instance(second).claims.unprepare([ref[0]]))[ref[0].uid]
        assert not isinstance(answer, DraError), answer
        self.wanted.pop(ref[0].uid, None)
        assert ref[0].uid not in self.hardware.holder.values()

    @rule(ref=refs, effects=st.integers(0, 4), undo=st.booleans(), second=st.booleans())
    def killed_in_the_middle(self, ref: tuple[ClaimRef, str], effects: int, undo: bool, second: bool) -> None:
        instance = self.instance(second)
        instance.driver.fuse = effects

        async def call() -> None:
            work = asyncio.create_task((instance.claims.unprepare if undo else instance.claims.prepare)([ref[0]]))  # type: ignore[arg-type]
            stopped = asyncio.create_task(instance.driver.stopped.wait())
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)

        self.run(call())
        if undo:
            self.wanted.pop(ref[0].uid, None)
        self.replace(instance)

    @rule(second=st.booleans())
    def killed_when_idle(self, second: bool) -> None:
        self.replace(self.instance(second))

    @rule()
    @precondition(lambda self: len(self.instances) == 1 and "first" in self.instances)
    def a_rolling_update_begins(self) -> None:
        self.instances["second"] = Instance(self, "second")

    @rule(ref=refs, effects=st.integers(0, 2), other=st.sampled_from(["same claim", "reconcile"]))
    @precondition(lambda self: len(self.instances) == 2)
    def taken_for_dead(self, ref: tuple[ClaimRef, str], effects: int, other: str) -> None:
        """What no lock should ever let happen: one instance is at work, the other holds it for dead, and it goes on late."""
        slow, quick = self.instances.values()
        if self.api.away or ref[1] not in quick.devices or ref[0].uid in {r.uid for r in self.records()}:
            return  # undoing what is on record is a touch of the hardware that no fence can hold back
        slow.driver.fuse = effects

        async def story() -> tuple[Any, Any]:
            call = asyncio.create_task(slow.claims.prepare([ref[0]]))  # type: ignore[arg-type]
            stopped = asyncio.create_task(slow.driver.stopped.wait())
            await asyncio.wait([call, stopped], return_when=asyncio.FIRST_COMPLETED)
            told = None
            if stopped.done():
                alive, quick.process.alive = quick.process.alive, lambda id: False  # type: ignore[method-assign]
                if other == "same claim":
                    told = (await quick.claims.prepare([ref[0]]))[ref[0].uid]
                else:
                    await quick.claims.reconciler.once(ask_server=False)
                quick.process.alive = alive  # type: ignore[method-assign]
            stopped.cancel()
            slow.driver.fuse = -1
            slow.driver.resumed.set()
            late = (await call)[ref[0].uid]
            slow.driver.resumed.clear()
            slow.driver.stopped.clear()
            return told, late

        told, late = self.run(story())
        if (told is not None and not isinstance(told, DraError)) or not isinstance(late, DraError):
            self.wanted[ref[0].uid] = ref[1]

    @rule()
    def reboot(self) -> None:
        self.drop()
        self.boot += 1
        self.hardware.holder.clear()
        for path in (self.root / "cdi").glob("*"):
            path.unlink()
        self.wanted.clear()
        self.instances["first"] = Instance(self, "first")

    @rule(ref=refs)
    def reboot_and_prepare_again(self, ref: tuple[ClaimRef, str]) -> None:
        """What the kubelet does for every pod that stays."""
        self._prepare(*ref, self.one)
        self.reboot()
        self._prepare(*ref, self.one)

    @rule(second=st.booleans())
    def the_kubelet_restarts(self, second: bool) -> None:
        """It prepares again what it knows; every answer is as it was."""
        for record in self.records():
            if record.uid in self.wanted:
                ref = ClaimRef(record.namespace, record.name, record.uid)
                self._prepare(ref, self.wanted[record.uid], self.instance(second))

    @rule(away=st.booleans())
    def the_api_server_comes_or_goes(self, away: bool) -> None:
        self.api.away = away

    @rule(name=st.sampled_from(["a", "b", "c"]))
    def a_claim_is_deleted(self, name: str) -> None:
        self.api.claims.pop(name, None)

    @rule(name=st.sampled_from(["a", "b", "c"]))
    def a_claim_is_deallocated(self, name: str) -> None:
        if name in self.api.claims:
            self.api.claims[name] = {**self.api.claims[name], "status": {}}

    @rule(second=st.booleans())
    def reconcile(self, second: bool) -> None:
        report = self.run(self.instance(second).claims.reconciler.once())
        for uid in report.unprepared:
            self.wanted.pop(uid, None)

    @rule(ref=refs, cut=st.booleans())
    def a_file_is_damaged_by_hand(self, ref: tuple[ClaimRef, str], cut: bool) -> None:
        path = self.specs.path(ref[0].uid)
        if cut and path.exists():
            path.write_bytes(path.read_bytes()[:-5])
        else:
            path.unlink(missing_ok=True)
        self.run(self.one.claims.reconciler.once(ask_server=False))

    @rule(how=st.sampled_from(["removed", "garbage", "emptied"]), second=st.booleans())
    def the_database_is_lost(self, how: str, second: bool) -> None:
        """What was answered stays true, from the file that is open, from CDI files, and from what the driver knows."""
        path = self.root / "plugins" / NAME / "records.db"
        if not path.exists():
            return
        match how:
            case "removed":
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
            case "garbage" | "emptied":
                # The log is written back first: what is in it would mend the file.
                for instance in self.instances.values():
                    if db := instance.claims.store._db:
                        with contextlib.suppress(Exception):
                            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                path.write_bytes(os.urandom(8192) if how == "garbage" else b"")
        for instance in (self.instance(second), *self.instances.values()):
            self.run(instance.claims.store.look())
            assert self.run(instance.claims.recovery.once())
            self.run(instance.claims.reconciler.once(ask_server=False))

    # --- what always holds ----------------------------------------------------------------------

    @invariant()
    def what_was_answered_is_true(self) -> None:
        for uid, device in self.wanted.items():
            assert self.hardware.holder.get(device) == uid, f"{uid} was told that it has {device}"
            assert self.specs.exists(uid)

    @invariant()
    def every_file_and_every_held_device_has_a_record(self) -> None:
        uids = {r.uid for r in self.records()}
        assert set(self.specs.uids()) <= uids
        assert set(self.hardware.holder.values()) <= uids


Machine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_claims_against_a_model = Machine.TestCase
