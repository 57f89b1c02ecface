"""Undo steps are saved when they are registered, from any thread or loop, and run newest first."""

from __future__ import annotations

import asyncio
import enum
import functools
import gc
import inspect
from typing import Any

import pytest

from dra_kubeletplugin import Claim, Driver, PreparedClaim
from dra_kubeletplugin.claims.undo_steps import UndoRecorder, run_undo
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.errors import DraError, DriverError, DriverFailedError, RecordsError, StoppingError

BOUND = 60.0
CLAIM = PreparedClaim(namespace="ns", name="n", uid="u", devices=())


async def no_call(*_: object) -> None:
    raise AssertionError("these tests have neither shared steps nor processes")


class Steps(Driver):
    """Records the undone steps; has methods of all kinds."""

    name = "steps.example.com"

    def __init__(self) -> None:
        self.undone_steps: list[Any] = []
        self.failing: set[Any] = set()

    async def unprepare(self, claim: PreparedClaim) -> None:
        self.record_step("unprepare")

    async def async_step(self, claim: PreparedClaim, number: int, note: str = "") -> None:
        self.record_step(number)

    def plain_step(self, claim: PreparedClaim, number: int) -> None:
        self.record_step(number)

    def yielding(self, claim: PreparedClaim) -> Any:
        yield

    def any_step(self, claim: PreparedClaim, **data: Any) -> None:
        self.record_step(data)

    def more_step(self, claim: PreparedClaim, number: int, **data: Any) -> None:
        self.record_step(data)

    def record_step(self, step: Any) -> None:
        if step in self.failing:
            raise OSError(f"{step} broke")
        self.undone_steps.append(step)


STEPS = Steps()


class FakeDisk:
    """Saves steps; a test can make it slow or make it fail."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.saved: list[Any] = []
        self.fault: Exception | None = None
        self.may_continue = asyncio.Event()
        self.may_continue.set()

    async def save(self, step: dict[str, Any]) -> None:
        self.requests.append(step)
        await self.may_continue.wait()
        if self.fault:
            raise self.fault
        self.saved.append(step)


@pytest.fixture
async def disk() -> FakeDisk:
    return FakeDisk()


def claim_of(undo: UndoRecorder) -> Claim:
    return Claim(namespace="ns", name="n", uid="u", devices=(), _undo=undo)


def undo_on(disk: FakeDisk) -> tuple[UndoRecorder, Claim]:
    undo = UndoRecorder(STEPS, asyncio.get_running_loop(), disk.save, no_call, no_call)
    return undo, claim_of(undo)


async def settle_and_check(undo: UndoRecorder) -> None:
    async with asyncio.timeout(BOUND):
        await undo.settle()
    undo.check()


def entry(number: int, step: str = "async_step") -> dict[str, Any]:
    return {"step": step, "data": {"number": number}}


async def test_an_awaited_step_is_on_disk_and_steps_keep_their_order(disk: FakeDisk) -> None:
    undo, claim = undo_on(disk)
    await claim.on_undo(STEPS.async_step, number=1)
    assert disk.saved == [entry(1)]
    await asyncio.gather(*(claim.on_undo(STEPS.async_step, number=n) for n in (2, 3, 4)))
    assert disk.saved == [entry(n) for n in (1, 2, 3, 4)]
    await settle_and_check(undo)


async def test_a_step_that_is_not_awaited_is_on_disk_at_the_end_of_prepare_and_fails_it(disk: FakeDisk) -> None:
    undo, claim = undo_on(disk)
    disk.may_continue.clear()
    claim.on_undo(STEPS.async_step, number=1)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    settle_task = asyncio.create_task(undo.settle())
    await asyncio.sleep(0)
    assert not settle_task.done()
    disk.may_continue.set()
    await settle_task
    assert disk.saved == [entry(1)]
    with pytest.raises(
        DriverError, match=r"^claim\.on_undo\(self\.async_step\) was not awaited: write `await` before it"
    ) as e:
        undo.check()
    assert str(e.value).endswith(f"(claims/test_undo_steps.py:{line})")


@pytest.mark.parametrize("loop", ["none", "its own"])
async def test_a_thread_s_step_is_on_disk_when_the_call_returns(disk: FakeDisk, loop: str) -> None:
    undo, claim = undo_on(disk)
    saved_at_return: list[Any] = []

    def prepare() -> None:
        claim.on_undo(STEPS.plain_step, number=1)
        saved_at_return.extend(disk.saved)

    async def prepare_async() -> None:
        await claim.on_undo(STEPS.plain_step, number=1)
        saved_at_return.extend(disk.saved)

    async with asyncio.timeout(BOUND):
        await asyncio.to_thread(prepare if loop == "none" else lambda: asyncio.run(prepare_async()))
    assert saved_at_return == [entry(1, "plain_step")]
    await settle_and_check(undo)


async def test_plain_code_on_the_thread_of_the_loop_never_waits_for_the_loop(disk: FakeDisk) -> None:
    undo, claim = undo_on(disk)

    def register() -> Any:
        return claim.on_undo(STEPS.plain_step, number=1)

    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: future.set_result(register()))
    await (await asyncio.wait_for(future, BOUND))
    assert disk.saved == [entry(1, "plain_step")]
    await settle_and_check(undo)


async def test_a_step_that_could_not_be_saved_fails_the_prepare_also_if_the_driver_ignores_the_error(
    disk: FakeDisk,
) -> None:
    problems: list[Any] = []  # that asyncio reports
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    disk.fault = OSError("odd")
    with pytest.raises(DraError, match="an internal error of the plugin: OSError: odd"):
        await undo_on(disk)[1].on_undo(STEPS.async_step, number=1)
    disk.fault = RecordsError("full")
    undo, claim = undo_on(disk)
    with pytest.raises(RecordsError, match="full"):
        await claim.on_undo(STEPS.async_step, number=1)
    with pytest.raises(RecordsError, match="full"):
        await Calls()(claim.on_undo, STEPS.plain_step, number=2)
    claim.on_undo(STEPS.async_step, number=3)
    await undo.settle()
    with pytest.raises(RecordsError, match="full"):
        undo.check()
    disk.fault = None  # its traceback refers to the step
    del undo, claim
    gc.collect()
    assert problems == []


async def test_a_step_after_the_end_of_prepare_is_refused_also_in_threads(disk: FakeDisk) -> None:
    undo, claim = undo_on(disk)
    await settle_and_check(undo)
    with pytest.raises(DriverError, match="after prepare had ended"):
        claim.on_undo(STEPS.async_step, number=1)
    with pytest.raises(DriverError, match="after prepare had ended"):
        await Calls()(claim.on_undo, STEPS.plain_step, number=1)
    assert disk.requests == []


def test_a_step_for_a_stopped_plugin_is_an_error_and_does_not_hang() -> None:
    async def make_claim() -> Claim:
        return undo_on(FakeDisk())[1]

    claim = asyncio.run(make_claim())
    with pytest.raises(StoppingError):
        claim.on_undo(STEPS.plain_step, number=1)


async def test_a_cancelled_prepare_leaves_its_step_in_the_record_unless_its_save_is_cancelled(disk: FakeDisk) -> None:
    undo, claim = undo_on(disk)
    disk.may_continue.clear()
    task = asyncio.create_task(Calls()(claim.on_undo, STEPS.async_step, number=1))
    while not disk.requests:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    disk.may_continue.set()
    await settle_and_check(undo)
    assert disk.saved == [entry(1)]
    undo, claim = undo_on(disk)
    disk.may_continue.clear()
    claim.on_undo(STEPS.async_step, number=1)
    undo.cancel()
    with pytest.raises(StoppingError, match="the plugin stopped before it was complete"):
        await settle_and_check(undo)


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("method", "data", "message"),
    [
        (STEPS.async_step, {"numbr": 1}, r"on_undo\(self.async_step\): Steps.async_step has no parameter 'numbr', did you mean 'number'\?"),
        (STEPS.async_step, {}, "cannot be called with these parameters: missing a required argument: 'number'"),
        (STEPS.plain_step, {"number": 1, "note": ""}, "Steps.plain_step has no parameter 'note': its parameters are number$"),
        (STEPS.more_step, {"a": 1}, "cannot be called with these parameters: missing a required argument: 'number'"),
        (STEPS.any_step, {"claim": 1}, "multiple values for argument 'claim'"),
        (STEPS.any_step, {"a": {"b": [b"x"]}}, r"data.a.b\[0\] is of type bytes, which JSON does not have"),
        (STEPS.yielding, {}, "Steps.yielding is a generator: remove `yield`"),
        ("async_step", {}, r"on_undo\(\) got 'async_step': pass a method of the driver, such as self.unload"),
        (lambda claim: None, {}, r"on_undo\(\) got .*<lambda>: pass a method of the driver"),
        (Steps.async_step, {"number": 1}, r"on_undo\(\) got Steps.async_step: pass a method of the driver"),
        (Steps().async_step, {"number": 1}, r"on_undo\(\) got Steps.async_step: pass a method of the driver"),
        (functools.partial(STEPS.async_step, number=1), {}, r"on_undo\(\) got partial: pass a method of the driver"),
        (len, {}, r"on_undo\(\) got len: pass a method of the driver"),
    ],
)  # fmt: skip
async def test_a_step_that_could_not_be_run_or_saved_is_refused_at_once(
    disk: FakeDisk, method: Any, data: dict[str, Any], message: str
) -> None:
    undo, claim = undo_on(disk)
    with pytest.raises(DriverError, match=message):
        claim.on_undo(method, **data)
    assert disk.requests == []
    await settle_and_check(undo)


async def test_data_without_names_is_refused_because_a_later_process_passes_it_by_name(disk: FakeDisk) -> None:
    undo, claim = undo_on(disk)
    with pytest.raises(DriverError, match=r"on_undo\(\): pass data for the method by keyword"):
        claim.on_undo(STEPS.plain_step, 1)
    await settle_and_check(undo)


async def test_data_is_passed_to_undo_as_plain_json(disk: FakeDisk) -> None:
    undo, claim = undo_on(disk)
    await claim.on_undo(STEPS.any_step, colour=Colour.RED, pair=(1, 2.5, None, True))
    assert disk.saved == [{"step": "any_step", "data": {"colour": "red", "pair": [1, 2.5, None, True]}}]
    await settle_and_check(undo)


async def test_all_steps_are_undone_newest_first_and_all_failures_are_raised_at_the_end() -> None:
    driver = Steps()
    steps = [entry(1), entry(2, "plain_step"), entry(3)]
    await run_undo(driver, Calls(), steps, CLAIM, no_call)
    assert driver.undone_steps == ["unprepare", 3, 2, 1]
    driver = Steps()
    driver.failing = {"unprepare", 2}
    with pytest.raises(
        DriverFailedError, match=r"^unprepare failed: .*unprepare broke.*; undo step plain_step failed: .*2 broke"
    ):
        await run_undo(driver, Calls(), steps, CLAIM, no_call)
    assert driver.undone_steps == [3, 1]


async def test_steps_that_only_the_shutdown_prevents_are_no_failure_of_the_driver() -> None:
    class StoppingSteps(Steps):
        def record_step(self, step: Any) -> None:
            raise StoppingError("the plugin is shutting down")

    with pytest.raises(StoppingError):  # a rollback writes no event for this error
        await run_undo(StoppingSteps(), Calls(), [entry(1)], CLAIM, no_call)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"step": "old", "data": {}}, "an undo step of an older version .* Steps has no method old"),
        (
            {"step": "plain_step", "data": {"nummer": 1}},
            "an older version .* has no parameter 'nummer', did you mean 'number'",
        ),
    ],
)
async def test_a_step_of_an_older_version_without_a_method_is_reported_and_the_other_steps_are_run(
    step: Any, message: str
) -> None:
    driver = Steps()
    with pytest.raises(DraError, match=message):
        await run_undo(driver, Calls(), [entry(1), step], CLAIM, no_call)
    assert driver.undone_steps == ["unprepare", 1]


def test_a_claim_without_its_plugin_reports_that_it_has_no_record() -> None:
    claim = Claim(namespace="ns", name="n", uid="u", devices=())
    with pytest.raises(DriverError, match="created directly"):
        claim.on_undo(STEPS.any_step)
