"""Any order of prepare, unprepare, repeat, kill, reboot, outage, damage, claim replaced, two instances: claims against a model.

The engine is real, with a real SQLite file and real CDI files. A killed instance stops at a random effect and does nothing more,
not even what stands in a `finally`; its lock goes as the kernel would drop it, and another instance starts on the same files.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from dra_kubeletplugin import (
    Claim,
    ContainerEdits,
    CounterSet,
    Device,
    Driver,
    Host,
    Pool,
    PreparedClaim,
    PreparedDevice,
    RecoveredClaim,
    SharedStep,
)
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims import ClaimIdentity, ClaimManager, PluginContext, State
from dra_kubeletplugin.claims.instances import InstanceLock
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DeviceGoneError, DraError, RetryableError
from tests.helpers.crash.claim_manager import FakeApiServer

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")

NAME = "model.example.com"
LINKS, LANES = 4, 10  # what there is of a counter for the partitions, and of a capacity for the shares
DRAWS = {"p-0": 2, "p-1": 2, "p-2": 3}
DEVICES = [*(f"m-{i}" for i in range(3)), *DRAWS, "shared"]
KNOWN = {"first": DEVICES, "second": ["m-0", "m-1", "p-0", "p-1", "shared"]}  # two versions see different devices


class Wish(NamedTuple):
    """What the scheduler gave a claim: a device, or a share with so much of its capacity."""

    device: str
    share: str = ""
    lanes: int = 0

    @property
    def key(self) -> str:
        return f"{self.device}/{self.share}" if self.share else self.device

    def clashes(self, other: Wish) -> bool:
        return self.device == other.device and (self.share == other.share or not (self.share and other.share))


def card_of(key: str) -> str:
    """The card that a device or share is a part of; its power is a shared step."""
    return key[0]


WISHES = [*(Wish(d) for d in DEVICES), *(Wish("shared", s, n) for s, n in (("a", 3), ("b", 5), ("c", 8), ("d", 10)))]


def published(name: str) -> Device:
    if name in DRAWS:
        return Device(name, consumes_counters={"s": {"links": DRAWS[name]}})
    if name == "shared":
        return Device(name, capacity={"lanes": LANES}, allow_multiple_allocations=True)
    return Device(name)


class Hardware:
    """What the devices themselves know: who has them, how much of them, and power. Survives kills, not reboots."""

    def __init__(self) -> None:
        self.holder: dict[str, str] = {}
        self.lanes: dict[str, int] = {}
        self.power: dict[str, bool] = {}  # by card; False while it changes
        self.changed_in_use: list[str] = []
        self.overdrawn: list[str] = []  # at any moment; what a driver raises is undone and told as its own fault

    def look(self) -> None:
        """Notes what is handed out twice, in parts too."""
        drawn = sum(DRAWS.get(key, 0) for key in self.holder)
        shared = sum(self.lanes[key] for key in self.holder if "/" in key)
        both = "shared" in self.holder and any("/" in key for key in self.holder)
        if drawn > LINKS or shared > LANES or both:
            self.overdrawn.append(f"{self.holder}, lanes {self.lanes}")

    def change_power(self, card: str) -> None:
        """Notes a change of power under a claim."""
        users = [uid for key, uid in self.holder.items() if card_of(key) == card]
        if users:
            self.changed_in_use.append(f"the power of {card} changed under {users}")
        self.power[card] = False


class Model(Driver):
    name = NAME

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.fuse = -1  # effects until the process stops; -1: never
        self.power_fuse = -1  # the same for shared steps
        self.stopped = asyncio.Event()
        self.resumed = asyncio.Event()

    async def effect(self) -> None:
        if self.fuse == 0:
            self.stopped.set()
            await self.resumed.wait()
        self.fuse -= self.fuse >= 0

    async def power_effect(self) -> None:
        if self.power_fuse == 0:
            self.stopped.set()
            await self.resumed.wait()
        self.power_fuse -= self.power_fuse >= 0

    async def setup_power(self, card: str) -> None:
        await self.power_effect()
        if not self.hardware.power.get(card):
            self.hardware.change_power(card)
        await self.power_effect()
        self.hardware.power[card] = True
        await self.power_effect()

    async def teardown_power(self, card: str) -> None:
        await self.power_effect()
        self.hardware.change_power(card)
        await self.power_effect()
        self.hardware.power.pop(card)
        await self.power_effect()

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for d in claim.devices:
            await claim.shared_step("power", card_of(d.name))
            await self.effect()
            key = f"{d.name}/{d.share_id}" if d.share_id else d.name
            await claim.on_undo("release", device=key)
            await self.effect()
            self.hardware.lanes[key] = sum(int(n.value) for n in d.consumed_capacity.values())
            holder = self.hardware.holder.setdefault(key, claim.uid)
            if holder != claim.uid:
                # Only an instance that was taken for dead may get here; see taken_for_dead.
                raise RetryableError(f"{d.name} is in use by {holder}")
            self.hardware.look()
            await self.effect()
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    async def undo_release(self, claim: PreparedClaim, device: str) -> None:
        await self.effect()
        if self.hardware.holder.get(device) == claim.uid:
            del self.hardware.holder[device]
        await self.effect()

    async def recover(self) -> list[RecoveredClaim]:
        return [
            RecoveredClaim(
                uid=uid,
                devices=[
                    PreparedDevice(request="r", pool="node", name=(at := key.partition("/"))[0], share_id=at[2] or None)
                ],
                shared_steps=[SharedStep("power", card_of(key))],
            )
            for key, uid in self.hardware.holder.items()
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
            call_timeout=60,
            lock_timeout=30,
            reconcile_grace_period=0,
        )
        self.driver.attach(Host(machine.root / "sys"), options)
        inventory = Inventory("node")
        machine.run(
            inventory.update([Pool("node", list(map(published, self.devices)), [CounterSet("s", {"links": LINKS})])])
        )
        self.process = InstanceLock(options.plugin_dir / "processes")
        self.process.acquire()
        self.process.reap_dead()
        self.boot_id = f"boot-{machine.boot}"
        self.claims = ClaimManager(
            PluginContext(self.driver, Calls(), machine.api, inventory, options, Metrics()),  # type: ignore[arg-type]
            self.process,
            self.boot_id,
        )
        machine.run(self.claims.open())

    async def die(self) -> None:
        """As by SIGKILL: nothing of it happens any more."""

        async def never(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        self.claims.store.do = never  # type: ignore[method-assign]
        self.claims.store.run = never  # type: ignore[method-assign]
        current = asyncio.current_task()
        tasks = [t for t in asyncio.all_tasks() if t is not current]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks) if tasks else None
        os.close(self.process._fd)
        await self.claims.store._batcher.close(10)
        self.claims.store.journal.drop()
        self.claims.store.journal._lock.close()


class Machine(RuleBasedStateMachine):
    refs = Bundle("refs")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        (self.root / "sys").mkdir()
        self.runner = asyncio.Runner()
        self.hardware = Hardware()
        self.api = FakeApiServer()
        self.boot = 0
        self.numbers = itertools.count()
        self.wanted: dict[str, Wish] = {}  # UIDs whose last answer to prepare was success, and their device
        self.instances = {"first": Instance(self, "first")}

    def teardown(self) -> None:
        # At the end everything is unprepared, and then nothing may be left.
        self.api.away = False
        for instance in self.instances.values():
            instance.driver.fuse = instance.driver.power_fuse = -1
        refs = [ClaimIdentity(r.namespace, r.name, r.uid) for r in self.records()]
        answers = self.run(self.one.claims.unprepare(refs))
        assert not any(isinstance(a, DraError) for a in answers.values()), answers
        self.run(self.one.claims.reconciler.once(ask_server=False))
        assert self.hardware.holder == {}
        assert self.hardware.power == {}
        assert self.specs.uids() == []
        assert self.records() == []
        self.drop()
        self.runner.close()
        left = [p.name for p in (self.root / "plugins" / NAME).iterdir() if ".new" in p.name]
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

    @rule(target=refs, wish=st.sampled_from(WISHES), name=st.sampled_from(["a", "b", "c"]))
    def allocate(self, wish: Wish, name: str) -> Any:
        """A claim under a name that may have been used before, on a device that may still be held."""
        return multiple(self._allocate(wish, name))

    def _allocate(self, wish: Wish, name: str) -> tuple[ClaimIdentity, Wish]:
        uid = f"uid-{next(self.numbers)}"
        share = {"shareID": wish.share, "consumedCapacity": {"lanes": str(wish.lanes)}} if wish.share else {}
        self.api.allocate(name, uid, wish.device, NAME, **share)
        return ClaimIdentity("ns", name, uid), wish

    @rule(target=refs, wishes=st.lists(st.sampled_from(WISHES[3:]), min_size=2, max_size=3), second=st.booleans())
    def a_call_for_parts_of_one_device(self, wishes: list[Wish], second: bool) -> Any:
        """Together they may be too much: then some get theirs, and none is refused that fits beside those."""
        instance = self.instance(second)
        refs = [self._allocate(wish, name) for wish, name in zip(wishes, "abc", strict=False)]
        before = self._living(instance)
        answers = self.run(instance.claims.prepare([ref for ref, _ in refs]))
        for ref, wish in refs:
            answer = answers[ref.uid]
            others = [r for r in [*before, *self._living(instance)] if r.uid != ref.uid]
            if not isinstance(answer, DraError):
                self.wanted[ref.uid] = wish
            elif not isinstance(answer, DeviceGoneError) or wish.device in instance.devices:
                unique = list({r.uid: r for r in others}.values())
                assert self.api.away or self._stands_in_the_way(wish, unique, instance), answer
        return multiple(*refs)

    def _living(self, instance: Instance) -> list[Any]:
        return [r for r in self.records() if r.state is State.PREPARED and r.boot_id == instance.boot_id]

    @rule(ref=refs, second=st.booleans())
    def prepare(self, ref: tuple[ClaimIdentity, Wish], second: bool) -> None:
        self._prepare(*ref, self.instance(second))

    def _stands_in_the_way(self, wish: Wish, others: list[Any], instance: Instance) -> bool:
        """Whether what others have leaves too little, as far as ``instance`` can know."""
        entries = [d for r in others for d in r.devices]
        if any(wish.clashes(Wish(d["device"], d.get("shareID") or "")) for d in entries):
            return True
        known = [d.get("takes") is not None for d in entries]
        if wish.share:
            shares = [(d, k) for d, k in zip(entries, known, strict=True) if d["device"] == "shared"]
            taken = [int(d["takes"]["capacity"]["lanes"]) if k else LANES for d, k in shares]
            return sum(taken) + wish.lanes > LANES
        if wish.device in DRAWS:
            drawn = [
                DRAWS.get(d["device"], 0) if k or d["device"] in instance.devices else LINKS
                for d, k in zip(entries, known, strict=True)
            ]
            return sum(drawn) + DRAWS[wish.device] > LINKS
        return False

    def _prepare(self, ref: ClaimIdentity, wish: Wish, instance: Instance) -> None:
        claim = self.api.claims.get(ref.name) or {"metadata": {"uid": ""}}
        live = claim["metadata"]["uid"] == ref.uid and bool(claim["status"])
        living = self._living(instance)
        recorded = {r.uid for r in living}
        held = self._stands_in_the_way(wish, [r for r in living if r.uid != ref.uid], instance)
        answer = self.run(instance.claims.prepare([ref]))[ref.uid]
        if isinstance(answer, DraError):
            unknown = isinstance(answer, DeviceGoneError) and wish.device not in instance.devices
            assert self.api.away or not live or held or unknown, answer
            return
        assert ref.uid in recorded or not held
        assert [(a.device, a.share_id or "") for a in answer] == [wish[:2]]
        assert self.hardware.holder[wish.key] == ref.uid
        assert self.specs.exists(ref.uid)
        self.wanted[ref.uid] = wish

    @rule(ref=consumes(refs), second=st.booleans())
    def unprepare(self, ref: tuple[ClaimIdentity, Wish], second: bool) -> None:
        answer = self.run(self.instance(second).claims.unprepare([ref[0]]))[ref[0].uid]
        assert not isinstance(answer, DraError), answer
        self.wanted.pop(ref[0].uid, None)
        assert ref[0].uid not in self.hardware.holder.values()

    @rule(ref=refs, effects=st.integers(0, 4), shared=st.booleans(), undo=st.booleans(), second=st.booleans())
    def killed_in_the_middle(
        self, ref: tuple[ClaimIdentity, Wish], effects: int, shared: bool, undo: bool, second: bool
    ) -> None:
        instance = self.instance(second)
        if shared:
            instance.driver.power_fuse = effects
        else:
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
    def taken_for_dead(self, ref: tuple[ClaimIdentity, Wish], effects: int, other: str) -> None:
        """What no lock should ever let happen: one instance is at work, the other holds it for dead, and it goes on late."""
        slow, quick = self.instances.values()
        if self.api.away or ref[1].device not in quick.devices or ref[0].uid in {r.uid for r in self.records()}:
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
        self.hardware.power.clear()
        for path in (self.root / "cdi").glob("*"):
            path.unlink()
        self.wanted.clear()
        self.instances["first"] = Instance(self, "first")

    @rule(ref=refs)
    def reboot_and_prepare_again(self, ref: tuple[ClaimIdentity, Wish]) -> None:
        """What the kubelet does for every pod that stays."""
        self._prepare(*ref, self.one)
        self.reboot()
        self._prepare(*ref, self.one)

    @rule(second=st.booleans())
    def the_kubelet_restarts(self, second: bool) -> None:
        """It prepares again what it knows; every answer is as it was."""
        for record in self.records():
            if record.uid in self.wanted:
                ref = ClaimIdentity(record.namespace, record.name, record.uid)
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
    def a_file_is_damaged_by_hand(self, ref: tuple[ClaimIdentity, Wish], cut: bool) -> None:
        path = self.specs.path(ref[0].uid)
        if cut and path.exists():
            path.write_bytes(path.read_bytes()[:-5])
        else:
            path.unlink(missing_ok=True)
        self.run(self.one.claims.reconciler.once(ask_server=False))

    @rule(how=st.sampled_from(["removed", "garbage", "emptied"]), second=st.booleans())
    def the_journal_is_lost(self, how: str, second: bool) -> None:
        """What was answered stays true, from the file that is open, from CDI files, and from what the driver knows."""
        path = self.root / "plugins" / NAME / "records.journal"
        if not path.exists():
            return
        match how:
            case "removed":
                path.unlink()
            case "garbage" | "emptied":
                path.write_bytes(os.urandom(8192) if how == "garbage" else b"")
        instances = (self.instance(second), *self.instances.values())
        for instance in instances:  # each plugin checks the file every two seconds, also an idle one
            self.run(instance.claims.store.check_file())
        for instance in instances:
            assert self.run(instance.claims.recovery.once())
            self.run(instance.claims.reconciler.once(ask_server=False))

    # --- what always holds ----------------------------------------------------------------------

    @invariant()
    def what_was_answered_is_true(self) -> None:
        for uid, wish in self.wanted.items():
            assert self.hardware.holder.get(wish.key) == uid, f"{uid} was told that it has {wish}"
            assert self.hardware.power.get(card_of(wish.key)), f"{uid} has {wish} without power"
            assert self.specs.exists(uid)

    @invariant()
    def nothing_is_handed_out_twice(self) -> None:
        assert self.hardware.overdrawn == []

    @invariant()
    def power_never_changes_under_a_claim(self) -> None:
        assert self.hardware.changed_in_use == []

    @invariant()
    def every_file_and_every_held_device_has_a_record(self) -> None:
        uids = {r.uid for r in self.records()}
        assert set(self.specs.uids()) <= uids
        assert set(self.hardware.holder.values()) <= uids


Machine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_claims_against_a_model = Machine.TestCase


class LongMachine(Machine):
    """The same with more examples."""


LongMachine.TestCase.settings = settings(Machine.TestCase.settings, max_examples=45)
test_claims_against_a_model_in_more_examples = pytest.mark.full(LongMachine.TestCase)
