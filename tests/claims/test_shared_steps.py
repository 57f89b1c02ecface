"""State of a card that several claims share: set up by the first, torn down after the last, whatever fails between."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, Driver, PreparedClaim, PreparedDevice, RecoveredClaim, RetryableError, SharedStep
from dra_kubeletplugin.claims import ClaimIdentity, State
from dra_kubeletplugin.claims.record import SUPERSEDED
from dra_kubeletplugin.claims.store.journal_file import JournalFile
from dra_kubeletplugin.claims.store.records import RECOVER, Stored
from dra_kubeletplugin.errors import DraError
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.waiting import wait_until

NAME = "cards.example.com"


class Card:
    """Two cards, each with an even and odd half ... device ``d-<n>`` is on card ``n // 10``. Notes each call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.on: dict[str, Any] = {}
        self.fail: set[str] = set()
        self.free = threading.Event()  # setup waits for it
        self.free.set()
        self.entered = threading.Event()

    def setup(self, key: str, version: str) -> None:
        self.calls.append(f"setup {key} {version}")
        self.entered.set()
        self.on[key] = None  # half
        assert self.free.wait(60)
        if "setup" in self.fail:
            raise RetryableError("the card rejects the firmware")
        self.on[key] = version

    def teardown(self, key: str, version: str) -> None:
        self.calls.append(f"teardown {key} {version}")
        if "teardown" in self.fail:
            raise OSError("the card does not respond")
        self.on.pop(key, None)

    def taken(self) -> list[str]:
        """The calls since the last call of this method."""
        calls, self.calls = self.calls, []
        return calls


def card_of(device: str) -> str:
    return f"card-{int(device.removeprefix('d-')) // 10}"


class Plain(Driver):
    name = NAME
    version = "4.2"

    def __init__(self, card: Card) -> None:
        self.card = card
        self.in_use: list[RecoveredClaim] = []

    def prepare(self, claim: Claim) -> Any:
        for d in claim.devices:
            claim.shared_step("firmware", card_of(d.name), version=self.version)
            assert self.card.on[card_of(d.name)] == self.version
            claim.on_undo("part", device=d.name)
            if "prepare" in self.card.fail:
                raise RetryableError("no part")
        return [d.prepared() for d in claim.devices]

    def undo_part(self, claim: PreparedClaim, device: str) -> None:
        if "part" in self.card.fail:
            raise OSError("the part is busy")
        if claim.same_boot:
            assert card_of(device) in self.card.on

    def setup_firmware(self, card: str, version: str) -> Any:
        self.card.setup(card, version)

    def teardown_firmware(self, card: str, version: str) -> Any:
        self.card.teardown(card, version)

    def recover(self) -> list[RecoveredClaim]:
        return self.in_use


class Async(Plain):
    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        for d in claim.devices:
            await claim.shared_step("firmware", card_of(d.name), version=self.version)
            await claim.on_undo("part", device=d.name)
            if "prepare" in self.card.fail:
                raise RetryableError("no part")
        return [d.prepared() for d in claim.devices]

    async def setup_firmware(self, card: str, version: str) -> None:
        await asyncio.to_thread(self.card.setup, card, version)

    async def teardown_firmware(self, card: str, version: str) -> None:
        self.card.teardown(card, version)


class Bench:
    """A card, claims on it, and instances of the plugin that share a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.card = Card()
        self.api = FakeApiServer()

    def instance(
        self, cls: type[Plain] = Plain, boot: str = "boot", **options: Any
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
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def ok(answer: Any) -> None:
    answer = await answer
    assert not isinstance(answer, DraError), answer


async def error_of(answer: Any) -> str:
    answer = await answer
    assert isinstance(answer, DraError), answer
    return str(answer)


@pytest.mark.parametrize("cls", [Plain, Async])
async def test_the_first_claim_sets_up_and_the_last_tears_down(bench: Bench, cls: type[Plain]) -> None:
    a, b, c = bench.claim("a", "d-0", "d-1"), bench.claim("b", "d-2"), bench.claim("c", "d-10")
    async with bench.instance(cls) as one:
        await ok(one.prepare(a))
        await ok(one.prepare(b))
        assert bench.card.taken() == ["setup card-0 4.2"]
        await ok(one.prepare(c))
        assert bench.card.taken() == ["setup card-1 4.2"]
        await ok(one.unprepare(a))
        assert bench.card.taken() == []
        assert bench.card.on == {"card-0": "4.2", "card-1": "4.2"}
        await ok(one.unprepare(b))
        await ok(one.unprepare(c))
        assert bench.card.taken() == ["teardown card-0 4.2", "teardown card-1 4.2"]
        await ok(one.prepare(bench.claim("d", "d-0")))
        assert bench.card.taken() == ["setup card-0 4.2"]
    assert bench.locks == []


async def test_both_instances_of_an_update_count_the_same_users(bench: Bench) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as old, bench.instance(Async) as new:
        await ok(old.prepare(a))
        await ok(new.prepare(b))
        await ok(new.unprepare(a))
        assert bench.card.taken() == ["setup card-0 4.2"]
        await ok(old.unprepare(b))
        assert bench.card.taken() == ["teardown card-0 4.2"]


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("cls", [Plain, Async])
async def test_a_claim_waits_for_the_set_up_by_another_claim(bench: Bench, cls: type[Plain], instances: int) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance(cls) as one, bench.instance(cls) as two:
        bench.card.free.clear()
        first = asyncio.create_task(ok(one.prepare(a)))
        await asyncio.to_thread(bench.card.entered.wait, 60)
        second = asyncio.create_task(ok((two if instances == 2 else one).prepare(b)))
        await wait_until(
            lambda: bench.locks == ["card-0.lock"] and len(bench_records(two)) == 2, "the second claim to wait"
        )
        assert not second.done()
        bench.card.free.set()
        await asyncio.gather(first, second)
        assert bench.card.taken() == ["setup card-0 4.2"]


def bench_records(one: RunningManager) -> list[Any]:
    from dra_kubeletplugin.claims.store.offline import read_rows

    return list(read_rows(one.settings.records_path))


async def test_a_failed_set_up_is_torn_down_and_the_next_claim_sets_up_again(bench: Bench) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as one:
        bench.card.fail = {"setup"}
        assert "rejects the firmware" in await error_of(one.prepare(a))
        assert bench.card.taken() == ["setup card-0 4.2", "teardown card-0 4.2"]
        assert await one.records() == {}
        bench.card.fail = set()
        await ok(one.prepare(b))
        assert bench.card.taken() == ["setup card-0 4.2"]


async def test_a_prepare_that_catches_the_failure_of_a_set_up_fails_nevertheless(bench: Bench) -> None:
    class Catching(Plain):
        def prepare(self, claim: Claim) -> Any:
            with contextlib.suppress(DraError):
                super().prepare(claim)
            return [d.prepared() for d in claim.devices]

    async with bench.instance(Catching) as one:
        bench.card.fail = {"setup"}
        assert "rejects the firmware" in await error_of(one.prepare(bench.claim("a", "d-0")))
        assert bench.card.taken() == ["setup card-0 4.2", "teardown card-0 4.2"]


async def test_a_claim_that_waited_for_a_set_up_that_failed_sets_up_itself(bench: Bench) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")

    class FailsOnce(Plain):
        def setup_firmware(self, card: str, version: str) -> None:
            first = not self.card.entered.is_set()
            super().setup_firmware(card, version)
            if first:
                raise RetryableError("not today")

    async with bench.instance(FailsOnce) as one, bench.instance(FailsOnce) as two:
        bench.card.free.clear()
        first = asyncio.create_task(error_of(one.prepare(a)))
        await asyncio.to_thread(bench.card.entered.wait, 60)
        second = asyncio.create_task(ok(two.prepare(b)))
        await wait_until(lambda: len(bench_records(two)) == 2, "the second claim to be recorded")
        bench.card.free.set()
        assert "not today" in await first
        await second
        # Either the rollback of the first claim is first, or the second claim.
        assert bench.card.taken() == ["setup card-0 4.2", "teardown card-0 4.2", "setup card-0 4.2"]
        assert bench.card.on == {"card-0": "4.2"}
        await ok(two.unprepare(b))
        assert bench.card.on == {}


async def test_a_failed_prepare_tears_down_only_what_no_other_claim_uses(bench: Bench) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1", "d-10")
    async with bench.instance() as one:
        await ok(one.prepare(a))
        bench.card.fail = {"prepare"}
        assert "no part" in await error_of(one.prepare(b))
        assert bench.card.taken() == ["setup card-0 4.2"]
        assert bench.card.on == {"card-0": "4.2"}


async def test_a_failed_teardown_is_retried_and_holds_only_the_devices_of_its_claim(bench: Bench) -> None:
    a, b, c = bench.claim("a", "d-0"), bench.claim("b", "d-10"), bench.claim("c", "d-1")
    async with bench.instance() as one:
        await ok(one.prepare(a))
        bench.card.fail = {"teardown"}
        assert "the card does not respond" in await error_of(one.unprepare(a))
        assert await one.records() == {"uid-a": State.UNPREPARING}
        await ok(one.prepare(b))  # another card
        bench.card.taken()
        assert "does not respond" in await error_of(one.prepare(c))  # the state of this card is not known
        assert bench.card.taken() == ["teardown card-0 4.2"] * 2  # for the set-up, then by the rollback
        bench.card.fail = set()
        await ok(one.prepare(c))
        # By the rollback of this claim, and for the set-up, because the first claim's teardown is still open.
        assert bench.card.taken() == ["teardown card-0 4.2"] * 2 + ["setup card-0 4.2"]
        await ok(one.unprepare(a))  # the other claim uses the card now
        assert bench.card.taken() == []
        await ok(one.unprepare(c))
        assert bench.card.taken() == ["teardown card-0 4.2"]


async def test_a_shared_step_outlives_an_undo_step_that_fails(bench: Bench) -> None:
    a = bench.claim("a", "d-0")
    async with bench.instance() as one:
        await ok(one.prepare(a))
        bench.card.fail = {"part"}
        assert "the part is busy" in await error_of(one.unprepare(a))
        assert bench.card.taken() == ["setup card-0 4.2"]
        bench.card.fail = set()
        await ok(one.unprepare(a))
        assert bench.card.taken() == ["teardown card-0 4.2"]


async def test_the_teardown_of_one_card_is_not_stopped_by_another_card(bench: Bench) -> None:
    class OneBroken(Plain):
        def teardown_firmware(self, card: str, version: str) -> None:
            super().teardown_firmware(card, version)
            if card == "card-1" and "card-1" in self.card.fail:
                raise OSError("broken")

    a = bench.claim("a", "d-0", "d-10")
    async with bench.instance(OneBroken) as one:
        await ok(one.prepare(a))
        bench.card.taken()
        bench.card.fail = {"card-1"}
        assert "broken" in await error_of(one.unprepare(a))
        assert bench.card.taken() == ["teardown card-1 4.2", "teardown card-0 4.2"]
        bench.card.fail = set()
        await ok(one.unprepare(a))
        assert bench.card.taken() == ["teardown card-1 4.2"]  # only the card whose teardown failed


async def test_a_claim_whose_teardown_fails_on_one_card_no_longer_uses_the_other_cards(bench: Bench) -> None:
    a, b = bench.claim("a", "d-0", "d-10"), bench.claim("b", "d-1")
    async with bench.instance() as one:
        await ok(one.prepare(a))
        await ok(one.prepare(b))
        bench.card.fail = {"teardown"}
        await error_of(one.unprepare(a))
        bench.card.fail = set()
        bench.card.taken()
        await ok(one.unprepare(b))
        assert bench.card.taken() == ["teardown card-0 4.2"]
        await ok(one.unprepare(a))
        assert bench.card.taken() == ["teardown card-1 4.2"]


async def test_the_step_is_synced_to_disk_before_the_state_is_set_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    append = JournalFile.append

    def noted(file: JournalFile, data: bytes, *, sync: bool, **more: Any) -> None:
        append(file, data, sync=sync, **more)
        if b"firmware" in data:
            synced.append(sync)

    class Checked(Plain):
        def setup_firmware(self, card: str, version: str) -> None:
            assert synced == [True]
            super().setup_firmware(card, version)

    monkeypatch.setattr(JournalFile, "append", noted)
    async with bench.instance(Checked) as one:
        await ok(one.prepare(bench.claim("a", "d-0")))


@pytest.mark.parametrize("survives", [True, False])
async def test_after_a_reboot_state_is_torn_down_once_before_it_is_set_up(bench: Bench, survives: bool) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as one:
        await ok(one.prepare(a))
        await ok(one.prepare(b))
    bench.card.taken()
    if not survives:
        bench.card.on.clear()
    async with bench.instance(boot="next boot") as one:
        await ok(one.prepare(a))
        assert bench.card.taken() == ["teardown card-0 4.2", "setup card-0 4.2"]
        await ok(one.unprepare(b))
        assert bench.card.taken() == []
        await ok(one.unprepare(a))
        assert bench.card.taken() == ["teardown card-0 4.2"]


async def test_after_a_reboot_state_without_a_new_claim_is_torn_down_after_the_last_old_claim(bench: Bench) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as one:
        await ok(one.prepare(a))
        await ok(one.prepare(b))
    bench.card.taken()
    async with bench.instance(boot="next boot") as one:
        await ok(one.unprepare(a))
        assert bench.card.taken() == []
        await ok(one.unprepare(b))
        assert bench.card.taken() == ["teardown card-0 4.2"]


async def test_a_claim_with_other_data_is_refused_while_another_claim_uses_the_state(bench: Bench) -> None:
    class Newer(Plain):
        version = "4.3"

    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as old, bench.instance(Newer) as new:
        await ok(old.prepare(a))
        text = await error_of(new.prepare(b))
        assert "firmware of card-0 is set up for claim ns/a (UID uid-a) with {'version': '4.2'}" in text
        assert await new.records() == {"uid-a": State.PREPARED}
        await ok(new.unprepare(a))
        await ok(new.prepare(b))
        assert bench.card.taken() == ["setup card-0 4.2", "teardown card-0 4.2", "setup card-0 4.3"]


async def test_an_unfinished_set_up_of_an_older_version_is_torn_down_with_its_own_data(bench: Bench) -> None:
    class Newer(Plain):
        version = "4.3"

    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as old, bench.instance(Newer) as new:
        bench.card.fail = {"setup", "teardown"}
        await error_of(old.prepare(a))
        bench.card.taken()
        bench.card.fail = set()
        await ok(new.prepare(b))
        assert bench.card.taken() == ["teardown card-0 4.2", "setup card-0 4.3"]
        await ok(new.unprepare(a))
        assert bench.card.on == {"card-0": "4.3"}


async def test_an_error_of_a_setup_names_the_line_of_the_setup_and_no_second_line(bench: Bench) -> None:
    class Wrong(Plain):
        def setup_firmware(self, card: str, version: str) -> None:
            self.hardware_lock(7)  # type: ignore[arg-type]

    async with bench.instance(Wrong) as one:
        error = await error_of(one.prepare(bench.claim("a", "d-0")))
        assert error.count("test_shared_steps.py:") == 1
        assert f"test_shared_steps.py:{Wrong.setup_firmware.__code__.co_firstlineno + 1})" in error


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.shared_step("firmwear", "card-0", version="1"), "Wrong has no method setup_firmwear(key, **data), did you mean"),
        (lambda c: c.shared_step("firmware", "card-0"), "cannot be called with these parameters: missing a required argument"),
        (lambda c: c.shared_step("firmware", "card-0", version="1", hard=True), "Wrong.setup_firmware has no parameter 'hard'"),
        (lambda c: c.shared_step("firmware", "card-0", version={1}), "data.version is of type set"),
        (lambda c: c.shared_step("firmware", 7, version="1"), "7 is not the name of a piece of hardware"),
        (lambda c: c.shared_step("firmware", "k" * 201, version="1"), "too long for the name of a piece of hardware"),
        (lambda c: c.shared_step("firmware", "\udc80", version="1"), "not valid Unicode"),
        (lambda c: c.shared_step(7, "card-0", version="1"), "the step's name must be text"),
    ],
)  # fmt: skip
async def test_a_wrong_call_is_refused_before_anything_is_set_up(
    bench: Bench, call: Callable[[Claim], Any], text: str
) -> None:
    class Wrong(Plain):
        def prepare(self, claim: Claim) -> Any:
            call(claim)

    async with bench.instance(Wrong) as one:
        assert text in await error_of(one.prepare(bench.claim("a", "d-0")))
        assert bench.card.taken() == []
        assert await one.records() == {}


async def test_a_step_with_different_data_in_one_claim_is_refused(bench: Bench) -> None:
    class Two(Plain):
        def prepare(self, claim: Claim) -> Any:
            claim.shared_step("firmware", "card-0", version="1")
            claim.shared_step("firmware", "card-0", version="2")

    async with bench.instance(Two) as one:
        assert "was called for one claim with different data" in await error_of(one.prepare(bench.claim("a", "d-0")))
        assert bench.card.on == {}


async def test_a_forgotten_await_fails_the_prepare_and_the_state_is_torn_down(bench: Bench) -> None:
    class Forgetful(Async):
        async def prepare(self, claim: Claim) -> Any:
            claim.shared_step("firmware", "card-0", version="1")  # type: ignore[unused-awaitable]  # the point
            return [d.prepared() for d in claim.devices]

    async with bench.instance(Forgetful) as one:
        text = await error_of(one.prepare(bench.claim("a", "d-0")))
        assert "claim.shared_step('firmware', ...) was not awaited: write `await claim.shared_step(...)`" in text
        assert bench.card.taken() == ["setup card-0 1", "teardown card-0 1"]


async def test_a_claim_made_by_hand_has_no_shared_steps() -> None:
    with pytest.raises(DraError, match="was created directly, so it has no record"):
        Claim(namespace="ns", name="n", uid="u", devices=()).shared_step("x", "key")  # type: ignore[unused-awaitable]


@pytest.mark.parametrize("cls", [Plain, Async])
async def test_the_lock_of_the_hardware_is_held_around_set_up_and_must_not_be_taken_again(
    bench: Bench, cls: type[Plain]
) -> None:
    class Nested(Plain):
        def setup_firmware(self, card: str, version: str) -> Any:
            with self.hardware_lock("another"), self.hardware_lock(card):
                pass

    class Within(cls):  # type: ignore[misc, valid-type]
        def prepare(self, claim: Claim) -> Any:
            with self.hardware_lock("card-0"):
                claim.shared_step("firmware", "card-0", version="1")

    class AsyncWithin(Within):
        async def prepare(self, claim: Claim) -> Any:
            async with self.hardware_lock("card-0"):
                await claim.shared_step("firmware", "card-0", version="1")

    for wrong in (Nested, AsyncWithin if cls is Async else Within):
        async with bench.instance(wrong) as one:
            text = await error_of(one.prepare(bench.claim("a", "d-0")))
            assert "hardware_lock('card-0'): this call already holds the lock" in text
            assert await one.records() == {}


async def test_shared_steps_of_a_claim_are_torn_down_newest_first_at_each_attempt(bench: Bench) -> None:
    class Two(Plain):
        def prepare(self, claim: Claim) -> Any:
            claim.shared_step("firmware", "card-0", version="1")
            claim.shared_step("mode", "card-0")
            return [d.prepared() for d in claim.devices]

        def setup_mode(self, card: str) -> None:
            self.card.setup("mode", "")

        def teardown_mode(self, card: str) -> None:
            self.card.teardown("mode", "")

    a = bench.claim("a", "d-0")
    async with bench.instance(Two) as one:
        await ok(one.prepare(a))
        bench.card.taken()
        bench.card.fail = {"teardown"}
        for _ in range(3):
            await error_of(one.unprepare(a))
            assert bench.card.taken() == ["teardown mode ", "teardown card-0 1"]


# --- records that cannot be written -------------------------------------------------------------


def fail_write(monkeypatch: pytest.MonkeyPatch, *parts: bytes) -> Callable[[], bool]:
    """Fails the first write of the journal that contains all ``parts``. Returns a function: whether that has happened."""
    append, failed = JournalFile.append, []

    def full(file: JournalFile, data: bytes, *, sync: bool, **more: Any) -> None:
        if not failed and all(part in data for part in parts):
            failed.append(data)
            raise OSError(errno.ENOSPC, "full")
        append(file, data, sync=sync, **more)

    monkeypatch.setattr(JournalFile, "append", full)
    return lambda: bool(failed)


async def test_state_is_torn_down_if_the_record_of_a_user_could_not_be_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release of the first claim is not written; the second claim then leaves the state to the first, which releases again."""
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as one, bench.instance() as two:
        await ok(one.prepare(a))
        await ok(one.prepare(b))
        bench.card.taken()
        failed = fail_write(monkeypatch, b"uid-a", b'"undone":true')
        do, between = one.claims.store.do, []

        async def after_the_second(*args: Any, **options: Any) -> Any:
            if failed() and not between:
                between.append(await two.unprepare(b))
            return await do(*args, **options)

        one.claims.store.do = after_the_second  # type: ignore[method-assign]
        assert "the disk is full" in await error_of(one.unprepare(a))
        await ok(one.unprepare(a))
        assert len(between) == 1
        assert bench.card.taken() == ["teardown card-0 4.2"]


async def test_a_step_that_was_not_written_does_not_count_as_set_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim catches the failure and writes its record again, after the only user of the state has ended."""
    a, b, c = bench.claim("a", "d-0"), bench.claim("b", "d-1"), bench.claim("c", "d-2")
    caught, go_on, written = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Catching(Async):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            if claim.name != "a":
                return await super().prepare(claim)
            with pytest.raises(DraError, match="the disk is full"):
                await claim.shared_step("firmware", "card-0", version=self.version)
            caught.set()
            await go_on.wait()
            await claim.on_undo("part", device="d-0")
            written.set()
            return await super().prepare(claim)

    async with bench.instance(Catching) as one:
        await ok(one.prepare(b))
        fail_write(monkeypatch, b"uid-a", b'"firmware"')
        first = asyncio.create_task(error_of(one.prepare(a)))
        await caught.wait()
        await ok(one.unprepare(b))
        bench.card.taken()
        go_on.set()
        await written.wait()
        await ok(one.prepare(c))
        assert "the disk is full" in await first
        assert bench.card.on == {"card-0": "4.2"}
        await ok(one.unprepare(c))
        assert bench.card.on == {}


# --- records that were lost ---------------------------------------------------------------------


async def test_users_are_counted_from_the_notes_after_the_journal_was_lost(bench: Bench) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as one:
        await ok(one.prepare(a))
        await ok(one.prepare(b))
        path = one.settings.records_path
    path.write_bytes(b"no journal" * 100)
    bench.card.taken()
    async with bench.instance() as one:
        await ok(one.unprepare(a))
        assert bench.card.taken() == []
        await ok(one.unprepare(b))
        assert bench.card.taken() == ["teardown card-0 4.2"]


STEP = SharedStep("firmware", "card-0", {"version": "4.2"})


@pytest.mark.parametrize(("steps", "torn_down"), [(None, []), ([STEP], ["teardown card-0 4.2"])])
async def test_state_of_a_claim_that_only_the_hardware_knows_stays_set_up(
    bench: Bench, steps: Any, torn_down: list[str]
) -> None:
    class InUse(Plain):
        def recover(self) -> list[RecoveredClaim]:
            device = PreparedDevice(request="r", pool="node", name="d-0")
            return [RecoveredClaim(uid="uid-a", devices=[device], shared_steps=steps)]

    b = bench.claim("b", "d-1")
    bench.card.on["card-0"] = "4.2"
    async with bench.instance() as one:
        path = one.settings.records_path
    path.write_bytes(b"no journal" * 100)
    async with bench.instance(InUse) as one:
        await ok(one.prepare(b))
        assert bench.card.taken() == ["setup card-0 4.2"]  # it is not known whether it was set up
        await ok(one.unprepare(b))
        assert bench.card.taken() == []
        await ok(one.unprepare(ClaimIdentity("ns", "a", "uid-a")))
        assert bench.card.taken() == torn_down


async def test_state_stays_set_up_until_the_driver_has_reported_the_claims_of_a_lost_journal(bench: Bench) -> None:
    """Claim a was in preparation, so it has no note: only recover() knows that it uses the card."""
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    is_readable = False

    class InUse(Plain):
        def recover(self) -> list[RecoveredClaim]:
            if not is_readable:
                raise OSError("the bus does not respond")
            device = PreparedDevice(request="r", pool="node", name="d-0")
            return [RecoveredClaim(uid="uid-a", devices=[device], shared_steps=[STEP])]

    async with bench.instance() as one:
        await ok(one.prepare(b))
        path = one.settings.records_path
    path.unlink()
    bench.card.taken()
    async with bench.instance(InUse) as one:
        assert "recover() of the driver has not yet returned" in await error_of(one.unprepare(b))
        assert bench.card.taken() == []
        is_readable = True
        assert await one.claims.recovery.once()
        await ok(one.unprepare(b))
        assert bench.card.taken() == []
        await ok(one.unprepare(a))
        assert bench.card.taken() == ["teardown card-0 4.2"]


async def test_an_unfinished_set_up_is_not_torn_down_until_the_driver_has_reported_the_claims_of_a_lost_journal(
    bench: Bench,
) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as one:
        bench.card.free.clear()
        bench.card.fail = {"setup", "teardown"}
        preparing = asyncio.ensure_future(one.prepare(b))
        await asyncio.to_thread(bench.card.entered.wait, 60)
        await one.claims.store.do(lambda records: records.set_meta(RECOVER, "pending"))
        bench.card.free.set()
        await error_of(preparing)
        bench.card.fail = set()
        assert bench.card.taken() == ["setup card-0 4.2"]  # and the rollback did not tear it down
        await one.claims.store.do(lambda records: records.clear_meta(RECOVER))
        await ok(one.prepare(a))
        assert bench.card.taken() == ["teardown card-0 4.2", "setup card-0 4.2"]


async def test_state_of_a_claim_that_only_the_hardware_knows_is_not_set_up_in_another_way(bench: Bench) -> None:
    class Older(Plain):
        def recover(self) -> list[RecoveredClaim]:
            device = PreparedDevice(request="r", pool="node", name="d-0")
            step = SharedStep("firmware", "card-0", {"version": "4.1"})
            return [RecoveredClaim(uid="uid-a", devices=[device], shared_steps=[step])]

    async with bench.instance() as one:
        path = one.settings.records_path
    path.write_bytes(b"no journal" * 100)
    async with bench.instance(Older) as one:
        text = await error_of(one.prepare(bench.claim("b", "d-1")))
        assert "is set up for claim ?/? (UID uid-a) with {'version': '4.1'}" in text
        assert bench.card.taken() == []


@pytest.mark.parametrize("tail", [False, True])
async def test_state_whose_teardown_did_not_end_is_not_restored_as_set_up(bench: Bench, tail: bool) -> None:
    """The journal is lost, as a whole or from the unprepare on; the note of the claim shows that its teardown has begun."""
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as one:
        path = one.settings.records_path
        await ok(one.prepare(a))
        prepared = path.read_bytes()
        bench.card.fail = {"teardown"}
        await error_of(one.unprepare(a))
        bench.card.on["card-0"] = "half"
    path.write_bytes(prepared + b"x\n" if tail else b"no journal" * 100)
    bench.card.taken()
    async with bench.instance() as one:  # the teardown fails again
        assert await one.records() == {"uid-a": State.UNPREPARING}
        bench.card.fail = set()
        await ok(one.prepare(b))
        assert bench.card.on == {"card-0": "4.2"}
        await ok(one.unprepare(a))
        assert bench.card.on == {"card-0": "4.2"}


@pytest.mark.parametrize("ended", [True, False])
async def test_state_of_a_claim_that_may_have_ended_is_set_up_again(bench: Bench, ended: bool) -> None:
    """The last lines of the journal are lost, so a claim that has ended is recorded as prepared; it has no note."""
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as one:
        path = one.settings.records_path
        await ok(one.prepare(a))
        prepared = path.read_bytes()
        if ended:
            await ok(one.unprepare(a))
        else:  # the disk was full when its note was written
            one.claims.files.specs.remove_note("uid-a")
    path.write_bytes(prepared + b"x\n")
    bench.card.taken()
    async with bench.instance() as one:
        await ok(one.prepare(b))
        assert bench.card.taken() == ["setup card-0 4.2"]
        await ok(one.unprepare(b))
        assert bench.card.taken() == []
        await ok(one.unprepare(a))
        assert bench.card.taken() == ["teardown card-0 4.2"]


async def test_state_that_a_claim_with_an_unreadable_record_may_use_stays_set_up(bench: Bench) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as one:
        await ok(one.prepare(a))
        await ok(one.prepare(b))

        def spoil(records: Any) -> None:
            stored = records._claims["uid-a"]
            records._change(records._set_claim, records._claims, "uid-a", stored._replace(body=b"", fence=None))

        await one.claims.store.do(spoil)
        await ok(one.unprepare(b))
        assert bench.card.taken() == ["setup card-0 4.2"]


async def test_an_unfinished_set_up_is_not_torn_down_while_an_unreadable_record_may_use_the_state(bench: Bench) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as one:
        bench.card.fail = {"setup", "teardown"}
        await error_of(one.prepare(a))
        bench.card.fail = set()
        bench.card.taken()
        unreadable = Stored(b"", "ns/x", (), None)
        await one.claims.store.do(lambda records: records._change(records._set_claim, {}, "uid-x", unreadable))
        await ok(one.prepare(b))
        assert bench.card.taken() == ["setup card-0 4.2"]


async def test_a_superseded_record_uses_no_shared_state(bench: Bench) -> None:
    """Its devices went to another claim, so it was undone, and only its deletion was lost."""
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    async with bench.instance() as one:
        await ok(one.prepare(a))
        bench.card.on.clear()
        bench.card.taken()

        def supersede(records: Any) -> None:
            record = records.read("uid-a")
            fence = record.fence
            record.doc[SUPERSEDED] = True
            assert records.update(record, fence)

        await one.claims.store.do(supersede)
        await ok(one.prepare(b))
        assert bench.card.taken() == ["setup card-0 4.2"]
        await ok(one.unprepare(a))
        assert bench.card.taken() == []


@pytest.mark.parametrize(
    "steps", ["firmware", [("firmware", "card-0")], [SharedStep("firmware", "")], [SharedStep("x", "k", {"a": {1}})]]
)
async def test_recovered_shared_steps_are_checked(bench: Bench, steps: Any) -> None:
    class Wrong(Plain):
        def recover(self) -> list[RecoveredClaim]:
            return [RecoveredClaim(uid="u", devices=[], shared_steps=steps)]

    async with bench.instance(Wrong) as one:
        assert any("shared" in fault or "piece of hardware" in fault for fault in await one.claims.faults())


# --- stop ---------------------------------------------------------------------------------------


async def test_a_set_up_that_continues_in_its_thread_keeps_the_lock_after_the_plugin_has_stopped(bench: Bench) -> None:
    a, b = bench.claim("a", "d-0"), bench.claim("b", "d-1")
    bench.card.free.clear()
    async with bench.instance() as one:
        first = asyncio.create_task(one.prepare(a))
        await asyncio.to_thread(bench.card.entered.wait, 60)
        await one.claims.stop(0)
        await first
        async with bench.instance(call_timeout=0.5) as two:
            assert "locked by process" in await until_error(two, b)
            bench.card.free.set()
            await wait_until(lambda: not bench.locks, "the lock to be free")
            await ok(two.prepare(b))
            assert bench.card.taken()[-1] == "setup card-0 4.2"


async def until_error(one: RunningManager, ref: ClaimIdentity) -> str:
    """Repeats a prepare, as the kubelet does, until it does not only continue."""
    while True:
        text = await error_of(one.prepare(ref))
        if "continues" not in text:
            return text
