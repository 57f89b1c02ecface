"""Steps on record: saved when they are registered, from wherever, and run newest first."""

from __future__ import annotations

import asyncio
import concurrent.futures
import enum
import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import Claim, Driver, PreparedClaim, PreparedDevice
from dra_kubeletplugin.claims import undo_steps as module
from dra_kubeletplugin.claims.record import Record, State
from dra_kubeletplugin.claims.undo_steps import UndoRecorder, has_undo, run_undo
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.driver.data import MAX_DATA_BYTES, plain_json
from dra_kubeletplugin.errors import DraError, DriverError, DriverFailedError, RecordsError, StoppingError

BOUND = 60.0
CLAIM = PreparedClaim(namespace="ns", name="n", uid="u", devices=())


async def no_process(*_: object) -> None:
    raise AssertionError("no step of these tests is a process")


class Steps(Driver):
    """Remembers what was undone; methods of all shapes."""

    name = "steps.example.com"

    def __init__(self) -> None:
        self.undone: list[Any] = []
        self.broken: set[Any] = set()

    async def unprepare(self, claim: PreparedClaim) -> None:
        self._did("unprepare")

    async def undo_async(self, claim: PreparedClaim, number: int, note: str = "") -> None:
        self._did(number)

    def undo_plain(self, claim: PreparedClaim, number: int) -> None:
        self._did(number)

    def undo_any(self, claim: PreparedClaim, **data: Any) -> None:
        self._did(data)

    def _did(self, what: Any) -> None:
        if what in self.broken:
            raise OSError(f"{what} broke")
        self.undone.append(what)


class Disk:
    """Where steps are saved; as slow and as broken as a test wants."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.kept: list[Any] = []
        self.fault: Exception | None = None
        self.free = asyncio.Event()
        self.free.set()

    async def save(self, steps: list[dict[str, Any]]) -> None:
        self.asked.append(steps)
        await self.free.wait()
        if self.fault:
            raise self.fault
        self.kept = max(self.kept, steps, key=len)

    async def share(self, step: str, key: str, data: Mapping[str, Any]) -> None:
        self.asked.append((step, key, data))
        await self.free.wait()
        if self.fault:
            raise self.fault


@pytest.fixture
async def disk() -> Disk:
    return Disk()


def claim_of(undo: UndoRecorder) -> Claim:
    return Claim(namespace="ns", name="n", uid="u", devices=(), _undo=undo)


def undo_on(disk: Disk) -> tuple[UndoRecorder, Claim]:
    undo = UndoRecorder(Steps(), asyncio.get_running_loop(), disk.save, disk.share, no_process)
    return undo, claim_of(undo)


async def finished(undo: UndoRecorder) -> None:
    async with asyncio.timeout(BOUND):
        await undo.settle()
    undo.check()


def entry(number: int, step: str = "async") -> dict[str, Any]:
    return {"step": step, "data": {"number": number}}


async def test_an_awaited_step_is_on_disk_and_steps_keep_their_order(disk: Disk) -> None:
    undo, claim = undo_on(disk)
    await claim.on_undo("async", number=1)
    assert disk.kept == [entry(1)]
    await asyncio.gather(*(claim.on_undo("async", number=n) for n in (2, 3, 4)))
    assert disk.kept == [entry(n) for n in (1, 2, 3, 4)]
    await finished(undo)


async def test_steps_keep_their_order_in_whatever_order_the_loop_begins_to_save_them(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo, claim = undo_on(disk)
    held: list[tuple[Any, concurrent.futures.Future[None]]] = []

    def hold(saving: Any, loop: asyncio.AbstractEventLoop) -> concurrent.futures.Future[None]:
        held.append((saving, concurrent.futures.Future()))
        return held[-1][1]

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", hold)
    registered = [claim.on_undo("async", number=n) for n in (1, 2, 3)]
    for saving, done in reversed(held):
        await saving
        done.set_result(None)
    for each in registered:
        await each
    await finished(undo)
    assert disk.kept == [entry(n) for n in (1, 2, 3)]


async def test_a_step_that_is_not_awaited_is_on_disk_when_prepare_is_judged_and_fails_it(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    undo, claim = undo_on(disk)
    disk.free.clear()
    claim.on_undo("async", number=1)
    settling = asyncio.create_task(undo.settle())
    await asyncio.sleep(0)
    assert not settling.done()
    disk.free.set()
    await settling
    assert disk.kept == [entry(1)]
    assert "claim.on_undo('async', ...) was not awaited" in caplog.text
    with pytest.raises(DriverError, match=r"write `await claim.on_undo\(...\)`"):
        undo.check()


@pytest.mark.parametrize("where", ["thread", "thread of the driver's own", "loop of the driver's own"])
async def test_a_thread_s_step_is_on_disk_when_the_call_returns(disk: Disk, where: str) -> None:
    undo, claim = undo_on(disk)
    seen: list[Any] = []

    def prepare() -> None:
        claim.on_undo("plain", number=1)
        seen.extend(disk.kept)

    async def inner() -> None:
        await claim.on_undo("plain", number=1)
        seen.extend(disk.kept)

    def run(target: Callable[[], Any]) -> None:
        thread = threading.Thread(target=target)
        thread.start()
        thread.join(BOUND)
        assert not thread.is_alive()

    methods: dict[str, Callable[[], Any]] = {
        "thread": prepare,
        "thread of the driver's own": lambda: run(prepare),
        "loop of the driver's own": lambda: run(lambda: asyncio.run(inner())),
    }
    async with asyncio.timeout(BOUND):
        await Calls()(methods[where])
    assert seen == [entry(1, "plain")]
    await finished(undo)


async def test_plain_code_on_the_loop_s_own_thread_never_waits_for_the_loop(disk: Disk) -> None:
    undo, claim = undo_on(disk)

    def helper() -> Any:
        return claim.on_undo("plain", number=1)

    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: done.set_result(helper()))
    await (await asyncio.wait_for(done, BOUND))
    assert disk.kept == [entry(1, "plain")]
    await finished(undo)


async def test_a_step_that_could_not_be_saved_fails_the_prepare_though_the_driver_ignores_it(disk: Disk) -> None:
    for fault, expected in ((RecordsError("full"), RecordsError), (OSError("EIO"), RecordsError)):
        undo, claim = undo_on(disk)
        disk.fault = fault
        with pytest.raises(expected):
            await claim.on_undo("async", number=1)
        await undo.settle()
        with pytest.raises(expected):
            undo.check()
        with pytest.raises(expected):
            await Calls()(undo_on(disk)[1].on_undo, "plain", number=1)


async def test_a_step_after_prepare_has_ended_is_refused_in_threads_too(disk: Disk) -> None:
    undo, claim = undo_on(disk)
    await finished(undo)
    with pytest.raises(DriverError, match="after prepare had ended"):
        claim.on_undo("async", number=1)
    with pytest.raises(DriverError, match="after prepare had ended"):
        await Calls()(claim.on_undo, "plain", number=1)
    assert disk.asked == []


def test_a_step_for_a_plugin_that_has_stopped_is_an_error_and_no_hang() -> None:
    async def body() -> Claim:
        return undo_on(Disk())[1]

    claim = asyncio.run(body())
    with pytest.raises(StoppingError):
        claim.on_undo("plain", number=1)


async def test_a_cancelled_prepare_leaves_its_step_on_record(disk: Disk) -> None:
    undo, claim = undo_on(disk)
    disk.free.clear()
    calls = Calls()

    async def prepare() -> None:
        await claim.on_undo("async", number=1)

    task = asyncio.create_task(calls(prepare))
    while not disk.asked:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    disk.free.set()
    await finished(undo)
    assert disk.kept == [entry(1)]


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("step", "data", "says"),
    [
        ("asynk", {"number": 1}, r"on_undo\('asynk'\): Steps has no method undo_asynk\(claim, \*\*data\), did you mean 'async'\?"),
        ("async", {"numbr": 1}, r"Steps.undo_async has no parameter 'numbr', did you mean 'number'\?"),
        ("async", {}, "cannot be called with these parameters: missing a required argument: 'number'"),
        ("plain", {"number": 1, "note": ""}, "Steps.undo_plain has no parameter 'note': its parameters are number$"),
        ("any", {"claim": 1}, "multiple values for argument 'claim'"),
        ("any", {"a": {"b": [b"x"]}}, r"data.a.b\[0\] is of type bytes, which JSON does not have"),
        ("any", {"a": {1, 2}}, "data.a is of type set"),
        ("any", {"a": float("nan")}, "data.a is nan"),
        ("any", {"a": "\ud800"}, "data.a is not valid Unicode"),
        ("any", {"a": {1: 2}}, "data.a has the key 1, which is not text"),
        ("any", {"a": 2**64}, "data.a is an integer of more than 64 bits"),
        ("any", {"a": "x" * MAX_DATA_BYTES}, "data is too large"),
        ("any", {"a": object()}, "data.a is of type object"),
    ],
)  # fmt: skip
async def test_a_step_that_could_not_be_run_or_kept_is_refused_at_once(
    disk: Disk, step: str, data: dict[str, Any], says: str
) -> None:
    undo, claim = undo_on(disk)
    with pytest.raises(DriverError, match=says) as raised:
        claim.on_undo(step, **data)
    assert str(raised.value).startswith(f"on_undo({step!r}): ")
    assert disk.asked == []
    await finished(undo)


async def test_data_comes_back_as_plain_json(disk: Disk) -> None:
    undo, claim = undo_on(disk)
    await claim.on_undo("any", colour=Colour.RED, pair=(1, 2.5, None, True))
    assert disk.kept == [{"step": "any", "data": {"colour": "red", "pair": [1, 2.5, None, True]}}]
    await finished(undo)


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary(max_size=3)
    | st.builds(object),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(st.characters(exclude_categories=()), max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(ODD)
def test_any_value_is_copied_or_refused_with_a_text_that_can_be_shown(value: Any) -> None:
    try:
        copy = plain_json(value)
    except ValueError as e:
        str(e).encode()
    else:
        assert plain_json(copy) == copy


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested deeper than 32"):
        plain_json(loop)


async def test_everything_is_undone_newest_first_and_all_failures_are_raised_at_the_end() -> None:
    driver = Steps()
    steps = [entry(1), entry(2, "plain"), entry(3)]
    await run_undo(driver, Calls(), steps, CLAIM, no_process)
    assert driver.undone == ["unprepare", 3, 2, 1]
    driver = Steps()
    driver.broken = {"unprepare", 2}
    with pytest.raises(
        DriverFailedError, match=r"^unprepare failed: .*unprepare broke.*; undo step plain failed: .*2 broke"
    ):
        await run_undo(driver, Calls(), steps, CLAIM, no_process)
    assert driver.undone == [3, 1]


async def test_steps_that_only_the_shutdown_prevents_are_no_failure_of_the_driver() -> None:
    class Stopping(Steps):
        def _did(self, what: Any) -> None:
            raise StoppingError("the plugin is shutting down")

    with pytest.raises(StoppingError):  # a rollback writes no event for it
        await run_undo(Stopping(), Calls(), [entry(1)], CLAIM, no_process)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ({"step": "old", "data": {}}, "an undo step of an older version .* Steps has no method undo_old"),
        (
            {"step": "plain", "data": {"nummer": 1}},
            "an older version .* has no parameter 'nummer', did you mean 'number'",
        ),
        ({"step": 5}, "cannot be read"),
        ("junk", "cannot be read"),
        ({"step": "any", "data": [1]}, "cannot be read"),
    ],
)
async def test_a_step_of_an_older_version_that_no_longer_fits_is_reported_and_the_others_are_run(
    step: Any, says: str
) -> None:
    driver = Steps()
    with pytest.raises(DraError, match=says):
        await run_undo(driver, Calls(), [entry(1), step], CLAIM, no_process)
    assert driver.undone == ["unprepare", 1]


def test_a_claim_made_by_hand_reports_that_it_has_no_record() -> None:
    claim = Claim(namespace="ns", name="n", uid="u", devices=())
    with pytest.raises(DriverError, match="created directly"):
        claim.on_undo("x")


async def test_admin_access_is_passed_on_with_the_answer() -> None:
    from dra_kubeletplugin import Device
    from dra_kubeletplugin.driver import AllocatedDevice

    def prepared(admin: bool) -> PreparedDevice:
        return AllocatedDevice(
            request="r", pool="p", name="d", share_id=None, admin_access=admin, consumed_capacity={}, config=None,
            config_source="", device=Device("d"),
        ).prepared()  # fmt: skip

    assert prepared(True).admin_access
    assert not prepared(False).admin_access


async def test_a_claim_may_have_as_many_steps_as_the_limit(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_STEPS", 2)
    undo, claim = undo_on(disk)
    for number in (1, 2):
        await claim.on_undo("async", number=number)
    with pytest.raises(DriverError, match="is more than the 2 steps that a claim may have"):
        claim.on_undo("async", number=3)
    await finished(undo)
    assert disk.kept == [entry(1), entry(2)]


async def test_a_step_of_a_thread_fails_there_and_a_slow_disk_is_waited_for_a_bounded_time(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo, claim = undo_on(disk)
    disk.fault = RecordsError("full")
    with pytest.raises(RecordsError, match="full"):
        await asyncio.to_thread(claim.on_undo, "async", number=1)
    disk.fault = None
    disk.free.clear()
    monkeypatch.setattr(module, "_SAVE_WAIT", 0.01)
    with pytest.raises(RecordsError, match=r"was not written within 0\.01 s: see the node's disk"):
        await asyncio.to_thread(claim.on_undo, "async", number=2)
    disk.free.set()
    await undo.settle()
    with pytest.raises(RecordsError, match="full"):
        undo.check()


def test_a_step_whose_write_is_cancelled_is_an_error_of_the_stop() -> None:
    saving: concurrent.futures.Future[None] = concurrent.futures.Future()
    saving.cancel()
    registration = module._Registration("on_undo('async')")
    registration.saving = saving
    with pytest.raises(StoppingError, match="the plugin stopped before the step was done"):
        registration.raise_failure()


async def test_a_failure_that_is_raised_later_is_not_reported_by_asyncio_too(disk: Disk) -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    undo, claim = undo_on(disk)
    disk.fault = RecordsError("full")
    disk.free.clear()
    claim.on_undo("async", number=1)
    settling = asyncio.create_task(undo.settle())
    await asyncio.sleep(0)
    disk.free.set()
    await settling
    with pytest.raises(RecordsError):
        undo.check()
    del undo, claim, settling
    gc.collect()
    assert problems == []


def test_a_method_whose_parameters_cannot_be_known_is_accepted() -> None:
    class Odd(Steps):
        undo_odd = type("Method", (), {"__call__": lambda self, *a, **k: None, "__signature__": "none"})()

    assert module.mismatch(Odd(), "undo", "odd", {"x": 1}) == ""


def test_a_rollback_calls_the_driver_for_its_unprepare_for_undo_steps_and_for_shared_steps() -> None:
    def record(**doc: Any) -> Record:
        return Record("uid", "ns", "name", State.PREPARED, "boot", "", doc)

    assert has_undo(Steps(), record())
    assert [has_undo(Driver(), record(**doc)) for doc in ({}, {"undo": [entry(1)]}, {"shared": [{}]})] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("step", [None, "release", {"step": 7, "data": {}}, {"step": "async", "data": []}, {}])
async def test_a_recorded_step_of_another_shape_is_reported_and_the_others_are_run(step: Any) -> None:
    driver = Steps()
    with pytest.raises(RecordsError, match="a recorded undo step cannot be read"):
        await run_undo(driver, Calls(), [entry(1), step, entry(2)], CLAIM, no_process)
    assert driver.undone == ["unprepare", 2, 1]
