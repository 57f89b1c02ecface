"""State of a card that several claims share: the first claim sets it up and the last one tears it down, whatever fails
in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import (
    Claim,
    Config,
    Driver,
    PreparedClaim,
    PreparedDevice,
    RecoveredClaim,
    RetryableError,
    SharedStep,
)
from dra_kubeletplugin.claims import ClaimIdentity, Record, State
from dra_kubeletplugin.claims.store.files import read_rows
from dra_kubeletplugin.claims.store.records import RECOVER
from dra_kubeletplugin.errors import ConfigError, DraError
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, check_success, error_of, running_manager
from tests.helpers.crash.file_faults import failing_calls
from tests.helpers.crash.record_stores import damage_file, insert, make_record, remove_records, write_body
from tests.helpers.waiting import wait_until

NAME = "cards.example.com"


class Card:
    """Two cards. Device ``d-<n>`` is on card ``n // 10``. Records each call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.versions: dict[str, Any] = {}
        self.fail: set[str] = set()
        self.may_continue = threading.Event()  # setup waits for this event
        self.may_continue.set()
        self.entered = threading.Event()

    def setup(self, key: str, version: str) -> None:
        self.calls.append(f"setup {key} {version}")
        self.entered.set()
        self.versions[key] = None  # set up partly
        assert self.may_continue.wait(60)
        if "setup" in self.fail:
            raise RetryableError("the card rejects the firmware")
        self.versions[key] = version

    def teardown(self, key: str, version: str) -> None:
        self.calls.append(f"teardown {key} {version}")
        if "teardown" in self.fail:
            raise OSError("the card does not respond")
        self.versions.pop(key, None)

    def take_calls(self) -> list[str]:
        """Returns the calls since the last call of this method."""
        calls, self.calls = self.calls, []
        return calls


def card_of(device: str) -> str:
    return f"card-{int(device.removeprefix('d-')) // 10}"


class CardDriver(Driver):
    name = NAME
    version = "4.2"

    def __init__(self, card: Card) -> None:
        self.card = card

    def prepare(self, claim: Claim) -> Any:
        for d in claim.devices:
            claim.shared_step(self.setup_firmware, card_of(d.name), version=self.version)
            assert self.card.versions[card_of(d.name)] == self.version
            claim.on_undo(self.part, device=d.name)
        return [d.prepared() for d in claim.devices]

    def part(self, claim: PreparedClaim, device: str) -> None:
        if claim.same_boot:
            assert card_of(device) in self.card.versions

    def setup_firmware(self, card: str, version: str) -> Any:
        self.card.setup(card, version)

    def teardown_firmware(self, card: str, version: str) -> Any:
        self.card.teardown(card, version)

    def recover(self) -> list[RecoveredClaim]:
        return []


class AsyncCardDriver(CardDriver):
    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for d in claim.devices:
            await claim.shared_step(self.setup_firmware, card_of(d.name), version=self.version)
            await claim.on_undo(self.part, device=d.name)
        return [d.prepared() for d in claim.devices]

    async def setup_firmware(self, card: str, version: str) -> None:
        await asyncio.to_thread(self.card.setup, card, version)

    async def teardown_firmware(self, card: str, version: str) -> None:
        self.card.teardown(card, version)


class SharedFolder:
    """A card, claims on it, and instances of the plugin that share a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.card = Card()
        self.api = FakeApiServer()

    def instance(
        self, cls: type[CardDriver] = CardDriver, boot: str = "boot", **options: Any
    ) -> contextlib.AbstractAsyncContextManager[RunningManager]:
        return running_manager(self.folder, cls(self.card), self.api, boot, **options)

    def claim(self, name: str, *devices: str) -> ClaimIdentity:
        ref = self.api.allocate(name, f"uid-{name}", devices[0], NAME)
        results = self.api.claims[name]["status"]["allocation"]["devices"]["results"]
        results += [{**results[0], "device": d} for d in devices[1:]]
        return ref

    @property
    def locks(self) -> list[str]:
        return [p.name for p in (self.folder / "plugins" / NAME / "hardware-locks").glob("*")]


@pytest.fixture
def shared_folder(tmp_path: Path) -> SharedFolder:
    return SharedFolder(tmp_path)


class Address(str):
    __slots__ = ()


class AddressDriver(CardDriver):
    def prepare(self, claim: Claim) -> Any:
        claim.shared_step(self.setup_firmware, Address("card-0"), version=self.version)
        return [d.prepared() for d in claim.devices]


async def test_a_key_may_be_of_a_subclass_of_str(shared_folder: SharedFolder) -> None:
    ref = shared_folder.claim("a", "d-1")
    async with shared_folder.instance(AddressDriver) as manager:
        await check_success(manager.prepare(ref))
        await check_success(manager.unprepare(ref))
    assert shared_folder.card.take_calls() == ["setup card-0 4.2", "teardown card-0 4.2"]


@pytest.mark.parametrize("driver_class", [CardDriver, AsyncCardDriver])
async def test_the_first_claim_sets_up_and_the_last_tears_down(
    shared_folder: SharedFolder, driver_class: type[CardDriver]
) -> None:
    a, b, c = shared_folder.claim("a", "d-0", "d-1"), shared_folder.claim("b", "d-2"), shared_folder.claim("c", "d-10")
    async with shared_folder.instance(driver_class) as manager:
        await check_success(manager.prepare(a))
        await check_success(manager.prepare(b))
        assert shared_folder.card.take_calls() == ["setup card-0 4.2"]
        await check_success(manager.prepare(c))
        assert shared_folder.card.take_calls() == ["setup card-1 4.2"]
        await check_success(manager.unprepare(a))
        assert shared_folder.card.take_calls() == []
        assert shared_folder.card.versions == {"card-0": "4.2", "card-1": "4.2"}
        await check_success(manager.unprepare(b))
        await check_success(manager.unprepare(c))
        assert shared_folder.card.take_calls() == ["teardown card-0 4.2", "teardown card-1 4.2"]
        await check_success(manager.prepare(shared_folder.claim("d", "d-0")))
        assert shared_folder.card.take_calls() == ["setup card-0 4.2"]
    assert shared_folder.locks == []


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("driver_class", [CardDriver, AsyncCardDriver])
async def test_a_claim_waits_for_the_setup_by_another_claim(
    shared_folder: SharedFolder, driver_class: type[CardDriver], instances: int
) -> None:
    a, b = shared_folder.claim("a", "d-0"), shared_folder.claim("b", "d-1")
    async with shared_folder.instance(driver_class) as manager, shared_folder.instance(driver_class) as second_manager:
        shared_folder.card.may_continue.clear()
        first = asyncio.create_task(check_success(manager.prepare(a)))
        await asyncio.to_thread(shared_folder.card.entered.wait, 60)
        second = asyncio.create_task(check_success((second_manager if instances == 2 else manager).prepare(b)))
        await wait_until(
            lambda: shared_folder.locks == ["card-0.lock"] and len(all_records(second_manager)) == 2,
            "the second claim to wait",
        )
        assert not second.done()
        shared_folder.card.may_continue.set()
        await asyncio.gather(first, second)
        assert shared_folder.card.take_calls() == ["setup card-0 4.2"]


def all_records(manager: RunningManager) -> list[Any]:
    return list(read_rows(manager.settings.records_path))


async def test_a_failed_setup_is_torn_down_and_the_next_claim_sets_up_again(shared_folder: SharedFolder) -> None:
    a, b = shared_folder.claim("a", "d-0"), shared_folder.claim("b", "d-1")
    async with shared_folder.instance() as manager:
        shared_folder.card.fail = {"setup"}
        assert "rejects the firmware" in await error_of(manager.prepare(a))
        assert shared_folder.card.take_calls() == ["setup card-0 4.2", "teardown card-0 4.2"]
        assert await manager.records() == {}
        shared_folder.card.fail = set()
        await check_success(manager.prepare(b))
        assert shared_folder.card.take_calls() == ["setup card-0 4.2"]


async def test_a_failed_teardown_is_retried_and_holds_only_the_devices_of_its_claim(
    shared_folder: SharedFolder,
) -> None:
    a, b, c = shared_folder.claim("a", "d-0"), shared_folder.claim("b", "d-10"), shared_folder.claim("c", "d-1")
    async with shared_folder.instance() as manager:
        await check_success(manager.prepare(a))
        shared_folder.card.fail = {"teardown"}
        assert "the card does not respond" in await error_of(manager.unprepare(a))
        assert await manager.records() == {"uid-a": State.UNPREPARING}
        await check_success(manager.prepare(b))  # another card
        shared_folder.card.take_calls()
        assert "does not respond" in await error_of(manager.prepare(c))  # the state of this card is not known
        assert shared_folder.card.take_calls() == ["teardown card-0 4.2"] * 2  # for the setup, then by the rollback
        shared_folder.card.fail = set()
        await check_success(manager.prepare(c))
        # By the rollback of this claim, and for the setup, because the first claim's teardown is not complete.
        assert shared_folder.card.take_calls() == ["teardown card-0 4.2"] * 2 + ["setup card-0 4.2"]
        await check_success(manager.unprepare(a))  # the other claim uses the card now
        assert shared_folder.card.take_calls() == []
        await check_success(manager.unprepare(c))
        assert shared_folder.card.take_calls() == ["teardown card-0 4.2"]


async def test_the_teardown_of_one_card_is_not_stopped_by_another_card(shared_folder: SharedFolder) -> None:
    class OneFailingCardDriver(CardDriver):
        def teardown_firmware(self, card: str, version: str) -> None:
            super().teardown_firmware(card, version)
            if card == "card-1" and "card-1" in self.card.fail:
                raise OSError("broken")

    a = shared_folder.claim("a", "d-0", "d-10")
    async with shared_folder.instance(OneFailingCardDriver) as manager:
        await check_success(manager.prepare(a))
        shared_folder.card.take_calls()
        shared_folder.card.fail = {"card-1"}
        assert "broken" in await error_of(manager.unprepare(a))
        assert shared_folder.card.take_calls() == ["teardown card-1 4.2", "teardown card-0 4.2"]
        shared_folder.card.fail = set()
        await check_success(manager.unprepare(a))
        assert shared_folder.card.take_calls() == ["teardown card-1 4.2"]  # only the card whose teardown failed


@pytest.mark.parametrize("is_prepared_again", [True, False])
async def test_after_a_reboot_state_is_torn_down_once_before_it_is_set_up_or_after_the_last_old_claim(
    shared_folder: SharedFolder, is_prepared_again: bool
) -> None:
    a, b = shared_folder.claim("a", "d-0"), shared_folder.claim("b", "d-1")
    async with shared_folder.instance() as manager:
        await check_success(manager.prepare(a))
        await check_success(manager.prepare(b))
    shared_folder.card.take_calls()
    async with shared_folder.instance(boot="next boot") as manager:
        if is_prepared_again:
            await check_success(manager.prepare(a))
            assert shared_folder.card.take_calls() == ["teardown card-0 4.2", "setup card-0 4.2"]
        await check_success(manager.unprepare(b))
        assert shared_folder.card.take_calls() == []
        await check_success(manager.unprepare(a))
        assert shared_folder.card.take_calls() == ["teardown card-0 4.2"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda d, c: c.shared_step(d.setup_only, "card-0", version="1"), "Wrong has no method teardown_only(key, **data)"),
        (lambda d, c: c.shared_step(d.setup_firmware, "card-0"), "cannot be called with these parameters: missing a required argument"),
        (lambda d, c: c.shared_step(d.setup_firmware, 7, version="1"), "7 is not the name of a piece of hardware"),
        (lambda d, c: c.shared_step(d.load, "card-0", version="1"), "shared_step(self.load): name the method setup_load"),
        (lambda d, c: c.shared_step("firmware", "card-0", version="1"), "shared_step() got 'firmware': pass a method of the driver"),
    ],
)  # fmt: skip
async def test_a_wrong_call_is_refused_before_any_setup(
    shared_folder: SharedFolder, call: Callable[[Any, Claim], Any], text: str
) -> None:
    class Wrong(CardDriver):
        def prepare(self, claim: Claim) -> Any:
            call(self, claim)

        def setup_only(self, card: str, version: str) -> None: ...

        def load(self, card: str, version: str) -> None: ...

    async with shared_folder.instance(Wrong) as manager:
        assert text in await error_of(manager.prepare(shared_folder.claim("a", "d-0")))
        assert shared_folder.card.take_calls() == []
        assert await manager.records() == {}


class FirmwareConfig(Config):
    KIND, API_VERSION = "Firmware", f"{NAME}/v1"
    profile: str = "default"


async def test_requests_of_one_claim_whose_parameters_contradict_each_other_are_the_users_error(
    shared_folder: SharedFolder,
) -> None:
    class ConfiguredDriver(CardDriver):
        config = FirmwareConfig

        def prepare(self, claim: Claim) -> Any:
            for d in claim.devices:
                assert isinstance(d.config, FirmwareConfig)
                claim.shared_step(self.setup_firmware, "card-0", version=d.config.profile)
            return [d.prepared() for d in claim.devices]

    ref = shared_folder.claim("x", "d-0", "d-1", "d-2")
    allocation = shared_folder.api.claims["x"]["status"]["allocation"]["devices"]
    for i, result in enumerate(allocation["results"]):
        result["request"] = f"r-{i}"
    parameters = {"apiVersion": FirmwareConfig.API_VERSION, "kind": FirmwareConfig.KIND, "profile": "b"}
    opaque = {"driver": NAME, "parameters": parameters}
    allocation["config"] = [{"source": "FromClaim", "requests": ["r-2"], "opaque": opaque}]
    async with shared_folder.instance(ConfiguredDriver) as manager:
        response = await manager.prepare(ref)
        assert isinstance(response, ConfigError), response
        assert "requests r-0, r-1, r-2 contradict each other on card-0, which has one firmware for all: " in str(
            response
        )
        assert "{'version': 'default'}, but {'version': 'b'};" in str(response)
        assert (shared_folder.card.versions, await manager.records()) == ({}, {})


@pytest.mark.parametrize("place", ["setup", "prepare"])
async def test_the_lock_of_the_hardware_is_held_around_setup_and_must_not_be_acquired_again(
    shared_folder: SharedFolder, place: str
) -> None:
    class LockingDriver(AsyncCardDriver):
        async def setup_firmware(self, card: str, version: str) -> Any:
            async with self.hardware_lock("another"), self.hardware_lock(card):
                pass

        async def prepare(self, claim: Claim) -> Any:
            async with self.hardware_lock("card-0" if place == "prepare" else "a third"):
                await claim.shared_step(self.setup_firmware, "card-0", version="1")

    async with shared_folder.instance(LockingDriver) as manager:
        text = await error_of(manager.prepare(shared_folder.claim("a", "d-0")))
        assert "hardware_lock('card-0'): this call already holds the lock" in text
        assert await manager.records() == {}


# --- the claims that use a step, by their records -----------------------------------------------

READY = {"step": "firmware", "key": "card-0", "data": {"version": "4.2"}, "ready": True}
UNFINISHED = READY | {"ready": False}
OLDER = {"data": {"version": "4.1"}}
SET_UP, TEAR_DOWN = "setup card-0 4.2", "teardown card-0 4.2"
UNREADABLE = make_record("uid-unreadable", "d-31")


def user(state: State = State.PREPARED, *shared: dict[str, Any], **fields: Any) -> Record:
    return make_record("uid-user", "d-30", state, shared=list(shared), **fields)


@pytest.mark.parametrize(
    ("others", "at_prepare", "at_unprepare"),
    [
        ([user(State.PREPARED, READY)], [], []),
        ([user(State.PREPARED, READY | {"key": "card-1"})], [SET_UP], [TEAR_DOWN]),
        ([user(State.PREPARED, READY | {"step": "mode"})], [SET_UP], [TEAR_DOWN]),
        ([user(State.UNPREPARING, UNFINISHED)], [TEAR_DOWN, SET_UP], [TEAR_DOWN]),
        ([user(State.UNPREPARING, UNFINISHED | OLDER)], ["teardown card-0 4.1", SET_UP], [TEAR_DOWN]),
        # The plugin cannot know whether the claims in these records use the card.
        ([user(recovered=True, shared_unknown=True)], [SET_UP], []),
        ([user(State.PREPARED, READY, recovered=True)], [SET_UP], []),
        ([UNREADABLE], [SET_UP], []),
        ([user(State.UNPREPARING, UNFINISHED), UNREADABLE], [SET_UP], []),
        ([user(recovered=True)], [SET_UP], [TEAR_DOWN]),
        # The devices belong to another claim, so the record was rolled back, and only its deletion was lost.
        ([user(State.PREPARED, READY, superseded=True)], [SET_UP], [TEAR_DOWN]),
    ],
)  # fmt: skip
async def test_state_is_set_up_and_torn_down_unless_another_claim_uses_it_or_may_use_it(
    shared_folder: SharedFolder, others: list[Record], at_prepare: list[str], at_unprepare: list[str]
) -> None:
    ref = shared_folder.claim("a", "d-0")
    async with shared_folder.instance() as manager:
        for other in others:
            if other is UNREADABLE:
                write_body(manager.settings.records_path, other, b"{")
            else:
                await insert(manager.claims.store, other)
        shared_folder.card.versions["card-0"] = "4.2"
        await check_success(manager.prepare(ref))
        assert shared_folder.card.take_calls() == at_prepare
        await check_success(manager.unprepare(ref))
        assert shared_folder.card.take_calls() == at_unprepare


@pytest.mark.parametrize("fields", [{}, {"recovered": True}])
async def test_a_claim_with_other_data_is_refused_while_another_claim_uses_the_state(
    shared_folder: SharedFolder, fields: dict[str, Any]
) -> None:
    async with shared_folder.instance() as manager:
        await insert(manager.claims.store, user(State.PREPARED, READY | OLDER, **fields))
        text = await error_of(manager.prepare(shared_folder.claim("a", "d-0")))
        assert "firmware of card-0 is set up for claim ns/name-uid-user (UID uid-user) with {'version': '4.1'}" in text
        assert shared_folder.card.take_calls() == []
        assert await manager.records() == {"uid-user": State.PREPARED}


# --- records that cannot be written -------------------------------------------------------------


async def test_a_step_that_was_not_written_does_not_count_as_set_up(
    shared_folder: SharedFolder,
) -> None:
    """A claim catches the failure and writes its record again, after the only user of the state has ended."""
    a, b, c = shared_folder.claim("a", "d-0"), shared_folder.claim("b", "d-1"), shared_folder.claim("c", "d-2")
    caught, resume, written = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class CatchingDriver(AsyncCardDriver):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            if claim.name != "a":
                return await super().prepare(claim)
            with pytest.raises(DraError, match="the disk is full"):
                await claim.shared_step(self.setup_firmware, "card-0", version=self.version)
            caught.set()
            await resume.wait()
            await claim.on_undo(self.part, device="d-0")
            written.set()
            return await super().prepare(claim)

    async with shared_folder.instance(CatchingDriver) as manager:
        await check_success(manager.prepare(b))
        # The first write of its record is before the prepare, the second one has the step.
        with failing_calls(errno.ENOSPC, "open", text=".uid-a.json", when=lambda number: number == 2):
            first = asyncio.create_task(error_of(manager.prepare(a)))
            await caught.wait()
        await check_success(manager.unprepare(b))
        shared_folder.card.take_calls()
        resume.set()
        await written.wait()
        await check_success(manager.prepare(c))
        assert "the disk is full" in await first
        assert shared_folder.card.versions == {"card-0": "4.2"}
        await check_success(manager.unprepare(c))
        assert shared_folder.card.versions == {}


# --- lost records -------------------------------------------------------------------------------


async def test_users_are_counted_from_the_notes_after_a_loss_of_the_records(shared_folder: SharedFolder) -> None:
    a, b = shared_folder.claim("a", "d-0"), shared_folder.claim("b", "d-1")
    async with shared_folder.instance() as manager:
        await check_success(manager.prepare(a))
        await check_success(manager.prepare(b))
        path = manager.settings.records_path
    remove_records(path)
    shared_folder.card.take_calls()
    async with shared_folder.instance() as manager:
        await check_success(manager.unprepare(a))
        assert shared_folder.card.take_calls() == []
        await check_success(manager.unprepare(b))
        assert shared_folder.card.take_calls() == ["teardown card-0 4.2"]


async def test_state_stays_set_up_until_the_driver_has_reported_the_claims_of_lost_records(
    shared_folder: SharedFolder,
) -> None:
    """Claim a was in preparation, so it has no note: only recover() reports that it uses the card."""
    a, b = shared_folder.claim("a", "d-0"), shared_folder.claim("b", "d-1")
    is_readable = False

    class RecoveringDriver(CardDriver):
        def recover(self) -> list[RecoveredClaim]:
            if not is_readable:
                raise OSError("the bus does not respond")
            device = PreparedDevice(request="r", pool="node", name="d-0")
            return [
                RecoveredClaim(
                    uid="uid-a",
                    devices=[device],
                    shared_steps=[SharedStep(self.setup_firmware, "card-0", {"version": "4.2"})],
                )
            ]

    async with shared_folder.instance() as manager:
        await check_success(manager.prepare(b))
        path = manager.settings.records_path
    remove_records(path)
    shared_folder.card.take_calls()
    async with shared_folder.instance(RecoveringDriver) as manager:
        assert "recover() of the driver has not yet returned" in await error_of(manager.unprepare(b))
        assert shared_folder.card.take_calls() == []
        is_readable = True
        assert await manager.claims.recovery.once()
        await check_success(manager.unprepare(b))
        assert shared_folder.card.take_calls() == []
        await check_success(manager.unprepare(a))
        assert shared_folder.card.take_calls() == ["teardown card-0 4.2"]


async def test_an_unfinished_setup_is_not_torn_down_until_the_driver_has_reported_the_claims_of_lost_records(
    shared_folder: SharedFolder,
) -> None:
    a, b = shared_folder.claim("a", "d-0"), shared_folder.claim("b", "d-1")
    async with shared_folder.instance() as manager:
        shared_folder.card.may_continue.clear()
        shared_folder.card.fail = {"setup", "teardown"}
        preparing = asyncio.ensure_future(manager.prepare(b))
        await asyncio.to_thread(shared_folder.card.entered.wait, 60)
        await manager.claims.store.do(lambda records: records.set_meta(RECOVER, "pending"))
        shared_folder.card.may_continue.set()
        await error_of(preparing)
        shared_folder.card.fail = set()
        assert shared_folder.card.take_calls() == ["setup card-0 4.2"]  # and the rollback did not tear it down
        await manager.claims.store.do(lambda records: records.clear_meta(RECOVER))
        await check_success(manager.prepare(a))
        assert shared_folder.card.take_calls() == ["teardown card-0 4.2", "setup card-0 4.2"]


@pytest.mark.parametrize("lose", [shutil.rmtree, lambda path: damage_file(path, "uid-a")])
async def test_state_with_an_unfinished_teardown_is_not_restored_as_set_up(
    shared_folder: SharedFolder, lose: Callable[[Path], object]
) -> None:
    """The record is lost. The note of the claim shows that its teardown has begun."""
    a, b = shared_folder.claim("a", "d-0"), shared_folder.claim("b", "d-1")
    async with shared_folder.instance() as manager:
        await check_success(manager.prepare(a))
        shared_folder.card.fail = {"teardown"}
        await error_of(manager.unprepare(a))
        shared_folder.card.versions["card-0"] = "half"
    lose(manager.settings.records_path)
    shared_folder.card.take_calls()
    async with shared_folder.instance() as manager:  # the teardown fails again
        assert await manager.records() == {"uid-a": State.UNPREPARING}
        shared_folder.card.fail = set()
        await check_success(manager.prepare(b))
        assert shared_folder.card.versions == {"card-0": "4.2"}
        await check_success(manager.unprepare(a))
        assert shared_folder.card.versions == {"card-0": "4.2"}


@pytest.mark.parametrize(
    "steps",
    [
        lambda d: "firmware",
        lambda d: [("firmware", "card-0")],
        lambda d: [SharedStep(d.setup_firmware, "", {"version": "1"})],
        lambda d: [SharedStep(d.setup_firmware, "k", {"version": {1}})],
    ],
)
async def test_recovered_shared_steps_are_checked(shared_folder: SharedFolder, steps: Any) -> None:
    class Wrong(CardDriver):
        def recover(self) -> list[RecoveredClaim]:
            return [RecoveredClaim(uid="u", devices=[], shared_steps=steps(self))]

    async with shared_folder.instance(Wrong) as manager:
        assert any("shared" in fault or "piece of hardware" in fault for fault in await manager.claims.faults())


# --- stop ---------------------------------------------------------------------------------------


async def test_a_setup_that_continues_in_its_thread_keeps_the_lock_after_the_plugin_has_stopped(
    shared_folder: SharedFolder,
) -> None:
    a, b = shared_folder.claim("a", "d-0"), shared_folder.claim("b", "d-1")
    shared_folder.card.may_continue.clear()
    async with shared_folder.instance() as manager:
        first = asyncio.create_task(manager.prepare(a))
        await asyncio.to_thread(shared_folder.card.entered.wait, 60)
        await manager.claims.stop(0)
        await first
        async with shared_folder.instance(call_timeout=0.5) as second_manager:
            assert "locked by process" in await until_error(second_manager, b)
            shared_folder.card.may_continue.set()
            await wait_until(lambda: not shared_folder.locks, "the lock to be free")
            await check_success(second_manager.prepare(b))
            assert shared_folder.card.take_calls()[-1] == "setup card-0 4.2"


async def until_error(manager: RunningManager, ref: ClaimIdentity) -> str:
    """Repeats a prepare, as the kubelet does, until it fails with an error other than that it continues."""
    while True:
        text = await error_of(manager.prepare(ref))
        if "continues" not in text:
            return text
