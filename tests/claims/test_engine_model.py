"""Compares claims with a model, for any order of prepare, unprepare, repetition, kill, reboot, outage, damage, replaced
claims and two instances.

The engine is real, with real records and CDI files. A killed instance stops at a random effect and runs nothing
more, not even a `finally` block. Its lock is released as the kernel would release it, and another instance starts on
the same files.
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
from dra_kubeletplugin.claims.store.files import LOCK, synced_path
from dra_kubeletplugin.claims.store.records import NODE_FILE, file_name
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.driver import attach
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DeviceGoneError, DraError, RetryableError
from tests.helpers.crash.claim_manager import FakeApiServer
from tests.helpers.crash.record_stores import KillableLock, kill, remove_records

pytestmark = pytest.mark.gates("DRADeviceTaints", "DRAPartitionableDevices", "DRAConsumableCapacity")

NAME = "model.example.com"
LINKS, LANES = 4, 10  # the total of a counter for the partitions, and of a capacity for the shares
DRAWS = {"p-0": 2, "p-1": 2, "p-2": 3}
DEVICES = [*(f"m-{i}" for i in range(3)), *DRAWS, "shared"]
DEVICES_OF_VERSION = {
    "first": DEVICES,
    "second": ["m-0", "m-1", "p-0", "p-1", "shared"],
}  # two versions detect different devices


class AllocatedDevice(NamedTuple):
    """The device that the scheduler allocated to a claim, or a share with an amount of its capacity."""

    device: str
    share: str = ""
    lanes: int = 0

    @property
    def key(self) -> str:
        return f"{self.device}/{self.share}" if self.share else self.device

    def clashes(self, other: AllocatedDevice) -> bool:
        return self.device == other.device and (self.share == other.share or not (self.share and other.share))


def card_of(key: str) -> str:
    """Returns the card of a device or share; the card's power is a shared step."""
    return key[0]


ALLOCATABLE = [
    *(AllocatedDevice(d) for d in DEVICES),
    *(AllocatedDevice("shared", s, n) for s, n in (("a", 3), ("b", 5), ("c", 8), ("d", 10))),
]


def published(name: str) -> Device:
    if name in DRAWS:
        return Device(name, consumes_counters={"s": {"links": DRAWS[name]}})
    if name == "shared":
        return Device(name, capacity={"lanes": LANES}, allow_multiple_allocations=True)
    return Device(name)


class Hardware:
    """The state of the devices: their holders, the consumed amounts, and power. It survives kills, but not reboots."""

    def __init__(self) -> None:
        self.holder: dict[str, str] = {}
        self.lanes: dict[str, int] = {}
        self.power: dict[str, bool] = {}  # by card; False while it changes
        self.changed_in_use: list[str] = []
        self.overdrawn: list[
            str
        ] = []  # at any moment, because an exception in the driver would be rolled back and reported as a driver error

    def check_amounts(self) -> None:
        """Records a device that has two holders, also in parts."""
        links = sum(DRAWS.get(key, 0) for key in self.holder)
        lanes = sum(self.lanes[key] for key in self.holder if "/" in key)
        is_device_and_share = "shared" in self.holder and any("/" in key for key in self.holder)
        if links > LINKS or lanes > LANES or is_device_and_share:
            self.overdrawn.append(f"{self.holder}, lanes {self.lanes}")

    def change_power(self, card: str) -> None:
        """Records a change of power under a claim."""
        users = [uid for key, uid in self.holder.items() if card_of(key) == card]
        if users:
            self.changed_in_use.append(f"the power of {card} changed under {users}")
        self.power[card] = False


class ModelDriver(Driver):
    name = NAME

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.effects_left = -1  # effects until the process stops; -1: never
        self.power_effects_left = -1  # the same for shared steps
        self.stopped = asyncio.Event()
        self.resumed = asyncio.Event()

    async def effect(self) -> None:
        if self.effects_left == 0:
            self.stopped.set()
            await self.resumed.wait()
        self.effects_left -= self.effects_left >= 0

    async def power_effect(self) -> None:
        if self.power_effects_left == 0:
            self.stopped.set()
            await self.resumed.wait()
        self.power_effects_left -= self.power_effects_left >= 0

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
            await claim.shared_step(self.setup_power, card_of(d.name))
            await self.effect()
            key = f"{d.name}/{d.share_id}" if d.share_id else d.name
            await claim.on_undo(self.release, device=key)
            await self.effect()
            self.hardware.lanes[key] = sum(int(n.value) for n in d.consumed_capacity.values())
            holder = self.hardware.holder.setdefault(key, claim.uid)
            if holder != claim.uid:
                # Only an instance that was considered dead can get here; see considered_dead.
                raise RetryableError(f"{d.name} is in use by {holder}")
            self.hardware.check_amounts()
            await self.effect()
        return [d.prepared(ContainerEdits(env={"X": d.name})) for d in claim.devices]

    async def release(self, claim: PreparedClaim, device: str) -> None:
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
                shared_steps=[SharedStep(self.setup_power, card_of(key))],
            )
            for key, uid in self.hardware.holder.items()
        ]


class Instance:
    """One plugin process."""

    def __init__(self, machine: ClaimMachine, version: str) -> None:
        self.version = version
        self.devices = DEVICES_OF_VERSION[version]
        self.driver = ModelDriver(machine.hardware)
        options = Settings(
            driver_name=NAME,
            node_name="node",
            kubelet_root=machine.root,
            cdi_root=machine.root / "cdi",
            call_timeout=60,
            lock_timeout=30,
            reconcile_grace_period=0,
        )
        attach(self.driver, Host(machine.root / "sys"), options)
        inventory = Inventory("node")
        machine.run(
            inventory.update([Pool("node", list(map(published, self.devices)), [CounterSet("s", {"links": LINKS})])])
        )
        self.process = KillableLock(options.plugin_dir / "processes")
        self.process.acquire()
        self.process.reap_dead()
        self.boot_id = f"boot-{machine.boot}"
        self.claims = ClaimManager(
            PluginContext(self.driver, Calls(), machine.api, inventory, options, Metrics()),  # type: ignore[arg-type]
            self.process,
            self.boot_id,
        )
        machine.run(self.claims.open())

    async def kill(self) -> None:
        """Stops all work of the instance, as SIGKILL does."""

        async def wait_forever(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        self.claims.store.do = wait_forever  # type: ignore[method-assign]
        current = asyncio.current_task()
        tasks = [t for t in asyncio.all_tasks() if t is not current]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks) if tasks else None
        await kill(self.claims.store)


class ClaimMachine(RuleBasedStateMachine):
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
        self.prepared_devices: dict[str, AllocatedDevice] = {}  # UIDs whose last prepare succeeded, and their device
        self.unknown_power: set[str] = set()  # cards whose power only a lost record knew; no claim has a device of them
        self.instances = {"first": Instance(self, "first")}

    def teardown(self) -> None:
        # At the end all claims are unprepared, and then no state may be left.
        self.api.is_unreachable = False
        for instance in self.instances.values():
            instance.driver.effects_left = instance.driver.power_effects_left = -1
        refs = [ClaimIdentity(r.namespace, r.name, r.uid) for r in self.records()]
        responses = self.run(self.first_instance.claims.unprepare(refs))
        assert not any(isinstance(a, DraError) for a in responses.values()), responses
        self.run(self.first_instance.claims.reconciler.once(ask_server=False))
        assert self.hardware.holder == {}
        assert self.hardware.power.keys() <= self.unknown_power
        assert self.specs.uids() == []
        assert self.records() == []
        self.kill_all()
        self.runner.close()
        assert {p.name for p in self.records_path.iterdir()} == {LOCK, NODE_FILE}
        self.folder.cleanup()

    def run(self, coroutine: Awaitable[Any]) -> Any:
        return self.runner.run(coroutine)  # type: ignore[arg-type]

    @property
    def first_instance(self) -> Instance:
        return next(iter(self.instances.values()))

    @property
    def records_path(self) -> Path:
        return self.root / "plugins" / NAME / "claims"

    @property
    def specs(self) -> Any:
        return self.first_instance.claims.files.specs

    def records(self) -> list[Any]:
        return self.run(self.first_instance.claims.store.all())  # type: ignore[no-any-return]

    def instance(self, second: bool) -> Instance:
        """Returns one of the running instances."""
        return list(self.instances.values())[-1 if second else 0]

    def kill_all(self) -> None:
        for instance in self.instances.values():
            self.run(instance.kill())
        self.instances.clear()

    def kill_and_replace(self, instance: Instance) -> None:
        """Kills the instance. Another instance starts if none is left."""
        self.run(instance.kill())
        del self.instances[instance.version]
        if not self.instances:
            self.instances["first"] = Instance(self, "first")

    # --- rules ----------------------------------------------------------------------------------

    @rule(target=refs, allocated=st.sampled_from(ALLOCATABLE), name=st.sampled_from(["a", "b", "c"]))
    def allocate(self, allocated: AllocatedDevice, name: str) -> Any:
        """Creates a claim under a name that may be reused, on a device that may still be held."""
        return multiple(self._allocate(allocated, name))

    def _allocate(self, allocated: AllocatedDevice, name: str) -> tuple[ClaimIdentity, AllocatedDevice]:
        uid = f"uid-{next(self.numbers)}"
        share = (
            {"shareID": allocated.share, "consumedCapacity": {"lanes": str(allocated.lanes)}} if allocated.share else {}
        )
        self.api.allocate(name, uid, allocated.device, NAME, **share)
        return ClaimIdentity("ns", name, uid), allocated

    @rule(
        target=refs,
        all_allocated=st.lists(st.sampled_from(ALLOCATABLE[3:]), min_size=2, max_size=3),
        second=st.booleans(),
    )
    def prepare_parts_of_one_device(self, all_allocated: list[AllocatedDevice], second: bool) -> Any:
        """The parts may exceed the device: then some claims succeed, and no claim is refused that fits next to them."""
        instance = self.instance(second)
        refs = [self._allocate(allocated, name) for allocated, name in zip(all_allocated, "abc", strict=False)]
        prepared_before = self._prepared_records(instance)
        responses = self.run(instance.claims.prepare([ref for ref, _ in refs]))
        for ref, allocated in refs:
            response = responses[ref.uid]
            other_records = [r for r in [*prepared_before, *self._prepared_records(instance)] if r.uid != ref.uid]
            if not isinstance(response, DraError):
                self.prepared_devices[ref.uid] = allocated
            elif not isinstance(response, DeviceGoneError) or allocated.device in instance.devices:
                unique = list({r.uid: r for r in other_records}.values())
                assert self.api.is_unreachable or self._is_blocked(allocated, unique, instance), response
        return multiple(*refs)

    def _prepared_records(self, instance: Instance) -> list[Any]:
        return [r for r in self.records() if r.state is State.PREPARED and r.boot_id == instance.boot_id]

    @rule(ref=refs, second=st.booleans())
    def prepare(self, ref: tuple[ClaimIdentity, AllocatedDevice], second: bool) -> None:
        self._prepare(*ref, self.instance(second))

    def _is_blocked(self, allocated: AllocatedDevice, other_records: list[Any], instance: Instance) -> bool:
        """Returns whether other claims leave too little, as far as ``instance`` can know."""
        entries = [d for r in other_records for d in r.devices]
        if any(allocated.clashes(AllocatedDevice(d["device"], d.get("shareID") or "")) for d in entries):
            return True
        has_amounts = [d.get("takes") is not None for d in entries]
        if allocated.share:
            shares = [(d, k) for d, k in zip(entries, has_amounts, strict=True) if d["device"] == "shared"]
            amounts = [int(d["takes"]["capacity"]["lanes"]) if k else LANES for d, k in shares]
            return sum(amounts) + allocated.lanes > LANES
        if allocated.device in DRAWS:
            draws = [
                DRAWS.get(d["device"], 0) if k or d["device"] in instance.devices else LINKS
                for d, k in zip(entries, has_amounts, strict=True)
            ]
            return sum(draws) + DRAWS[allocated.device] > LINKS
        return False

    def _prepare(self, ref: ClaimIdentity, allocated: AllocatedDevice, instance: Instance) -> None:
        claim = self.api.claims.get(ref.name) or {"metadata": {"uid": ""}}
        is_allocated = claim["metadata"]["uid"] == ref.uid and bool(claim["status"])
        prepared_records = self._prepared_records(instance)
        recorded = {r.uid for r in prepared_records}
        is_blocked = self._is_blocked(allocated, [r for r in prepared_records if r.uid != ref.uid], instance)
        response = self.run(instance.claims.prepare([ref]))[ref.uid]
        if isinstance(response, DraError):
            is_unknown_device = isinstance(response, DeviceGoneError) and allocated.device not in instance.devices
            assert self.api.is_unreachable or not is_allocated or is_blocked or is_unknown_device, response
            return
        assert ref.uid in recorded or not is_blocked
        assert [(a.device, a.share_id or "") for a in response] == [allocated[:2]]
        assert self.hardware.holder[allocated.key] == ref.uid
        assert self.specs.path(ref.uid).exists()
        self.prepared_devices[ref.uid] = allocated

    @rule(ref=consumes(refs), second=st.booleans())
    def unprepare(self, ref: tuple[ClaimIdentity, AllocatedDevice], second: bool) -> None:
        response = self.run(self.instance(second).claims.unprepare([ref[0]]))[ref[0].uid]
        assert not isinstance(response, DraError), response
        self.prepared_devices.pop(ref[0].uid, None)
        assert ref[0].uid not in self.hardware.holder.values()

    @rule(ref=refs, effects=st.integers(0, 4), shared=st.booleans(), undo=st.booleans(), second=st.booleans())
    def kill_during_call(
        self, ref: tuple[ClaimIdentity, AllocatedDevice], effects: int, shared: bool, undo: bool, second: bool
    ) -> None:
        instance = self.instance(second)
        if shared:
            instance.driver.power_effects_left = effects
        else:
            instance.driver.effects_left = effects

        async def call() -> None:
            call_task = asyncio.create_task((instance.claims.unprepare if undo else instance.claims.prepare)([ref[0]]))  # type: ignore[arg-type]
            stopped = asyncio.create_task(instance.driver.stopped.wait())
            await asyncio.wait([call_task, stopped], return_when=asyncio.FIRST_COMPLETED)

        self.run(call())
        if undo:
            self.prepared_devices.pop(ref[0].uid, None)
        self.kill_and_replace(instance)

    @rule(second=st.booleans())
    def kill_when_idle(self, second: bool) -> None:
        self.kill_and_replace(self.instance(second))

    @rule()
    @precondition(lambda self: len(self.instances) == 1 and "first" in self.instances)
    def begin_rolling_update(self) -> None:
        self.instances["second"] = Instance(self, "second")

    @rule(ref=refs, effects=st.integers(0, 2), action=st.sampled_from(["same claim", "reconcile"]))
    @precondition(lambda self: len(self.instances) == 2)
    def considered_dead(self, ref: tuple[ClaimIdentity, AllocatedDevice], effects: int, action: str) -> None:
        """Simulates a failed lock: one instance works, the other one considers it dead, and the first one continues
        late.
        """
        first, second_instance = self.instances.values()
        if (
            self.api.is_unreachable
            or ref[1].device not in second_instance.devices
            or ref[0].uid in {r.uid for r in self.records()}
        ):
            return  # rolling back this record would change the hardware, which no fence can prevent
        first.driver.effects_left = effects

        async def run_both() -> tuple[Any, Any]:
            call = asyncio.create_task(first.claims.prepare([ref[0]]))  # type: ignore[arg-type]
            stopped = asyncio.create_task(first.driver.stopped.wait())
            await asyncio.wait([call, stopped], return_when=asyncio.FIRST_COMPLETED)
            second_response = None
            if stopped.done():
                real_alive, second_instance.process.alive = second_instance.process.alive, lambda id: False  # type: ignore[method-assign]
                if action == "same claim":
                    second_response = (await second_instance.claims.prepare([ref[0]]))[ref[0].uid]
                else:
                    await second_instance.claims.reconciler.once(ask_server=False)
                second_instance.process.alive = real_alive  # type: ignore[method-assign]
            stopped.cancel()
            first.driver.effects_left = -1
            first.driver.resumed.set()
            first_response = (await call)[ref[0].uid]
            first.driver.resumed.clear()
            first.driver.stopped.clear()
            return second_response, first_response

        second_response, first_response = self.run(run_both())
        if (second_response is not None and not isinstance(second_response, DraError)) or not isinstance(
            first_response, DraError
        ):
            self.prepared_devices[ref[0].uid] = ref[1]

    @rule(is_power_failure=st.booleans())
    def reboot(self, is_power_failure: bool) -> None:
        """A power failure loses the content of each file that was not synced."""
        self.kill_all()
        if is_power_failure:
            for file in self.records_path.glob("[!.]*.json"):
                if file.name != NODE_FILE and not file.samefile(synced_path(self.records_path, file.name)):
                    file.write_bytes(b"")
        self.boot += 1
        self.hardware.holder.clear()
        self.hardware.power.clear()
        for path in (self.root / "cdi").glob("*"):
            path.unlink()
        self.prepared_devices.clear()
        self.instances["first"] = Instance(self, "first")

    @rule(ref=refs)
    def reboot_and_prepare_again(self, ref: tuple[ClaimIdentity, AllocatedDevice]) -> None:
        """Does the work of the kubelet for every pod that continues to run."""
        self._prepare(*ref, self.first_instance)
        self.reboot(is_power_failure=False)
        self._prepare(*ref, self.first_instance)

    @rule(second=st.booleans())
    def restart_kubelet(self, second: bool) -> None:
        """The kubelet prepares its claims again; every response is as before."""
        for record in self.records():
            if record.uid in self.prepared_devices:
                ref = ClaimIdentity(record.namespace, record.name, record.uid)
                self._prepare(ref, self.prepared_devices[record.uid], self.instance(second))

    @rule(is_away=st.booleans())
    def set_api_reachability(self, is_away: bool) -> None:
        self.api.is_unreachable = is_away

    @rule(name=st.sampled_from(["a", "b", "c"]))
    def delete_claim(self, name: str) -> None:
        self.api.claims.pop(name, None)

    @rule(name=st.sampled_from(["a", "b", "c"]))
    def deallocate_claim(self, name: str) -> None:
        if name in self.api.claims:
            self.api.claims[name] = {**self.api.claims[name], "status": {}}

    @rule(second=st.booleans())
    def reconcile(self, second: bool) -> None:
        report = self.run(self.instance(second).claims.reconciler.once())
        for uid in report.unprepared:
            self.prepared_devices.pop(uid, None)

    @rule(ref=refs, cut=st.booleans())
    def damage_file(self, ref: tuple[ClaimIdentity, AllocatedDevice], cut: bool) -> None:
        path = self.specs.path(ref[0].uid)
        if cut and path.exists():
            path.write_bytes(path.read_bytes()[:-5])
        else:
            path.unlink(missing_ok=True)
        self.run(self.first_instance.claims.reconciler.once(ask_server=False))

    @rule(
        damage=st.sampled_from(["folder removed", "folder replaced", "metadata removed", "removed", "garbage", "emptied", "cut"]),
        number=st.integers(0, 9), is_stopped=st.booleans(), second=st.booleans(),
    )  # fmt: skip
    def lose_records(self, damage: str, number: int, is_stopped: bool, second: bool) -> None:
        """Earlier responses stay true. The sources are the memory of running instances, the notes and the driver.

        Without a running instance, only a note shows that a single file was removed or what was in its second line.
        """
        records, specs = self.records(), self.specs
        uids = [r.uid for r in records if specs.note_path(r.uid).exists() or (damage != "removed" and not is_stopped)]
        file = self.records_path / file_name(uids[number % len(uids)] if uids else "none")
        if is_stopped:
            self.kill_all()
            self.unknown_power |= self.hardware.power.keys() - set(map(card_of, self.hardware.holder))
        match damage:
            case "folder removed" | "folder replaced":
                remove_records(self.records_path)
                if damage == "folder replaced":
                    self.records_path.mkdir()
            case "metadata removed":
                (self.records_path / NODE_FILE).unlink()
            case _ if not uids:
                pass
            case "removed":
                file.unlink()
            case _:
                data = file.read_bytes()
                file.write_bytes({"garbage": os.urandom(8192), "emptied": b"", "cut": data[:-5]}[damage])
        if is_stopped:
            self.instances["first"] = Instance(self, "first")
        instances = (self.instance(second), *self.instances.values())
        for instance in instances:  # each plugin checks the files every two seconds, also an idle one
            self.run(instance.claims.store.check_files())
        for instance in instances:
            assert self.run(instance.claims.recovery.once())
            self.run(instance.claims.reconciler.once(ask_server=False))

    # --- invariants -----------------------------------------------------------------------------

    @invariant()
    def check_prepared_claims(self) -> None:
        for uid, allocated in self.prepared_devices.items():
            assert self.hardware.holder.get(allocated.key) == uid, f"{uid} is prepared with {allocated}"
            assert self.hardware.power.get(card_of(allocated.key)), f"{uid} has {allocated} without power"
            assert self.specs.path(uid).exists()

    @invariant()
    def check_holders(self) -> None:
        assert self.hardware.overdrawn == []

    @invariant()
    def check_power(self) -> None:
        assert self.hardware.changed_in_use == []

    @invariant()
    def check_records(self) -> None:
        uids = {r.uid for r in self.records()}
        assert set(self.specs.uids()) <= uids
        assert set(self.hardware.holder.values()) <= uids


ClaimMachine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_claims_against_a_model = ClaimMachine.TestCase


class LongClaimMachine(ClaimMachine):
    """The same with more examples."""


LongClaimMachine.TestCase.settings = settings(ClaimMachine.TestCase.settings, max_examples=45)
test_claims_against_a_model_in_more_examples = pytest.mark.full(LongClaimMachine.TestCase)
