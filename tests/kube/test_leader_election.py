"""Tests leader election on a test clock: when an elector leads, and which requests it sends."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError, SettingsError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube import leader_election as module
from dra_kubeletplugin.kube.errors import ConflictError, NotFoundError
from dra_kubeletplugin.kube.leader_election import LeaderElector, LeaseTimes

TIMES = LeaseTimes(duration=15.5, renew_deadline=10, retry=2)


class Done(BaseException):
    """The test's time limit is reached."""


class Api:
    """Stores one Lease and the current time. Each call raises the next of ``faults``; None means no error."""

    def __init__(self, until: float, lease: JSON | None = None) -> None:
        self.until = until
        self.lease = lease
        self.now = 0.0
        self.version = 1
        self.faults: list[Exception | None] = []
        self.writes: list[tuple[float, JSON]] = []
        self.calls: list[tuple[float, str]] = []
        self.elector: LeaderElector | None = None
        self.at: dict[float, Any] = {}  # changes of other clients by second

    def _call(self, verb: str) -> None:
        self.calls.append((self.now, verb))
        if self.faults and (fault := self.faults.pop(0)):
            raise fault

    async def get(self, resource: Any, name: str, namespace: str) -> JSON:
        self._call("get")
        assert (name, namespace) == ("driver", "ns")
        if self.lease is None:
            raise NotFoundError("none", details={"details": {"name": "driver"}})
        return copy.deepcopy(self.lease)

    async def create(self, resource: Any, obj: JSON) -> JSON:
        self._call("create")
        return self._write(obj)

    async def update(self, resource: Any, obj: JSON) -> JSON:
        self._call("update")
        if self.lease is None or obj["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError("conflict")
        return self._write(obj)

    def _write(self, obj: JSON) -> JSON:
        self.writes.append((self.now, copy.deepcopy(obj["spec"])))
        self.put(obj)
        return copy.deepcopy(cast(JSON, self.lease))

    def put(self, obj: JSON) -> None:
        self.version += 1
        self.lease = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}

    async def sleep(self, seconds: float) -> None:
        until = round(self.now + seconds, 6)
        for at in sorted(at for at in self.at if at <= until):
            self.at.pop(at)()
        self.now = until
        await asyncio.sleep(0)
        if self.now > self.until:
            raise Done


def held(by: str | None, **more: Any) -> JSON:
    spec = {"leaseDurationSeconds": 20, "leaseTransitions": 3, "acquireTime": "a", "renewTime": "r", **more}
    return {"metadata": {"name": "driver", "namespace": "ns", "resourceVersion": "1"}, "spec": {"holderIdentity": by, **spec}}  # fmt: skip


def renewed(api: Api, by: str, **more: Any) -> Any:
    return lambda: api.put(held(by, **more))


@pytest.fixture
def elect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs an elector until the time limit, or until it stops leading."""

    async def elected(api: Api, chance: int = 0, times: LeaseTimes = TIMES) -> LeaderElector:
        stamps = iter(range(10_000))
        names = {n: getattr(asyncio, n) for n in ("Event", "timeout")}
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=api.sleep, **names))
        monkeypatch.setattr(module, "random", SimpleNamespace(uniform=lambda *ends: ends[chance]))
        monkeypatch.setattr(module, "now_exactly", lambda: f"t{next(stamps)}")
        elector = LeaderElector(cast(KubeClient, api), "ns", "driver", "me", times, lambda: api.now)
        api.elector = elector
        with contextlib.suppress(Done):
            await elector.run()
        return elector

    return elected


async def test_the_first_elector_creates_a_missing_lease_and_renews_it(elect: Any) -> None:
    api = Api(until=5)
    elector = await elect(api)
    assert [at for at, _ in api.writes] == [0, 0, 2, 4]
    first, second = api.writes[0][1], api.writes[1][1]
    assert first == {"holderIdentity": "me", "leaseDurationSeconds": 16, "acquireTime": "t0", "renewTime": "t1", "leaseTransitions": 0}  # fmt: skip
    assert second == {**first, "renewTime": "t2"}
    assert [verb for _, verb in api.calls] == ["get", "create", "update", "update", "update"]
    assert cast(JSON, api.lease)["kind"] == "Lease"
    assert cast(JSON, api.lease)["apiVersion"] == "coordination.k8s.io/v1"
    assert (elector.holder, elector.fault) == ("me", "")
    assert (elector.leader.is_set(), elector.lost.is_set()) == (False, True), (
        "the elector ended while it was the leader"
    )


@pytest.mark.parametrize("chance", [0, 1])
async def test_the_elector_waits_for_the_end_of_anothers_lease_and_keeps_unknown_fields(
    elect: Any, chance: int
) -> None:
    api = Api(until=25, lease=held("other", more="kept"))
    await elect(api, chance)
    step = (2, 2.4)[chance]
    assert [at for at, verb in api.calls if verb == "get"] == pytest.approx(
        [n * step for n in range(round(20 / step + 0.49) + 1)]
    )
    at, spec = api.writes[0]
    assert at == pytest.approx((20, 21.6)[chance])
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["more"]) == ("me", 4, "kept")
    assert spec["acquireTime"] == "t0"
    assert api.writes[1][1]["leaseTransitions"] == 4
    assert api.writes[1][1]["acquireTime"] == "t0"


@pytest.mark.parametrize("duration", [None, 0])
async def test_a_lease_without_a_duration_has_the_elector_s_own_duration(elect: Any, duration: int | None) -> None:
    api = Api(until=20, lease=held("other", leaseDurationSeconds=duration))
    await elect(api)
    assert api.writes[0][0] == 16


async def test_the_elector_takes_its_own_earlier_lease_at_once_and_keeps_it(elect: Any) -> None:
    api = Api(until=1, lease=held("me"))
    await elect(api)
    at, spec = api.writes[0]
    assert (at, spec["leaseTransitions"], spec["acquireTime"]) == (0, 3, "a")


async def test_the_elector_takes_a_lease_without_a_spec_at_once(elect: Any) -> None:
    api = Api(until=1, lease={"metadata": {"name": "driver", "resourceVersion": "1"}})
    await elect(api)
    assert api.writes[0][1]["leaseTransitions"] == 1


async def test_each_change_of_the_lease_restarts_the_wait(elect: Any) -> None:
    api = Api(until=40, lease=held("other"))
    api.at[9] = renewed(api, "other", renewTime="later")
    await elect(api)
    assert api.writes[0][0] == 30, "20 s after the change, which the elector sees at 10 s"


async def test_the_leader_reports_leadership_from_its_first_write_to_its_end(elect: Any) -> None:
    api = Api(until=30, lease=held("other"))
    seen: list[bool] = []
    for at in (19, 21, 25):
        api.at[at] = lambda: seen.append(api.elector is not None and api.elector.leader.is_set())
    elector = await elect(api)
    assert (seen, elector.leader.is_set()) == ([False, True, True], False)


async def test_an_elector_that_saw_the_holder_waits_after_the_lease_is_deleted(elect: Any) -> None:
    api = Api(until=29, lease=held("other"))
    api.at[7] = renewed(api, "other", renewTime="later")

    def delete() -> None:
        api.lease = None

    api.at[9] = delete
    await elect(api)
    assert api.writes[0][0] == 28, "20 s after the change, which the elector sees at 8 s"
    assert {verb for at, verb in api.calls if at < 28} == {"get"}


async def test_a_deleted_lease_is_created_at_once_only_if_the_elector_saw_its_release(elect: Any) -> None:
    api = Api(until=8, lease=held("other"))
    api.at[3] = renewed(api, "")
    api.at[3.5] = lambda: setattr(api, "lease", None)
    api.faults = [None, None, ApiError("away")]
    await elect(api)
    assert api.writes == []
    api = Api(until=8, lease=held("other"))
    api.at[3] = renewed(api, "")
    api.faults = [None, None, None, ConflictError("conflict")]
    api.at[5] = lambda: setattr(api, "lease", None)
    await elect(api)
    assert api.writes[0][0] == 6


async def test_a_leader_retries_until_the_last_second_before_the_deadline(elect: Any) -> None:
    api = Api(until=100)
    api.faults = [None, None, None] + [ApiError("away")] * 50
    await elect(api, times=LeaseTimes(duration=15, renew_deadline=10, retry=3))
    assert [at for at, verb in api.calls if verb == "update"] == [0, 3, 6, 9]
    assert api.now == 10


@pytest.mark.parametrize("failures", [4, 5])
async def test_a_renewal_at_the_last_retry_before_the_deadline_counts(elect: Any, failures: int) -> None:
    api = Api(until=15)
    api.faults = [None, None] + [ApiError("away")] * failures
    elector = await elect(api)
    assert [at for at, _ in api.writes] == ([0, 8, 10, 12, 14] if failures == 4 else [0])
    assert (elector.fault == "") == (failures == 4)
    assert api.now == (16 if failures == 4 else 10)


async def test_a_leader_stops_at_once_when_its_machine_slept_past_the_deadline(elect: Any) -> None:
    """Sleep stops the event loop's clock. Another elector may have taken the lease in that time."""
    api, seen = Api(until=5), list[bool]()

    def sleep() -> None:
        seen.append(cast(LeaderElector, api.elector).leads)
        api.now += 60
        seen.append(cast(LeaderElector, api.elector).leads)

    api.at[3] = sleep
    await elect(api)
    assert seen == [True, False]


async def test_a_leader_stops_when_another_holder_takes_the_lease(elect: Any) -> None:
    api = Api(until=9)
    api.at[3] = renewed(api, "thief")
    elector = await elect(api)
    assert (elector.holder, elector.lost.is_set(), api.now) == ("thief", True, 4)


async def test_a_leader_continues_after_another_client_changed_its_lease(elect: Any) -> None:
    api = Api(until=7)
    api.at[3] = renewed(api, "me", more="label")
    await elect(api)
    assert [at for at, _ in api.writes] == [0, 0, 2, 4, 6]
    assert api.writes[-1][1]["more"] == "label"


async def test_a_conflict_while_taking_the_lease_is_not_an_error(elect: Any, caplog: pytest.LogCaptureFixture) -> None:
    api = Api(until=3)
    api.faults = [None, ConflictError("exists")]
    elector = await elect(api)
    assert [at for at, _ in api.writes] == [2, 2]
    assert elector.fault == ""
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (ApiError("away"), "away"),
        (NotFoundError("no such path"), "no such path"),
        (NotFoundError("not that", details={"details": {"name": "other"}}), "not that"),
        (TimeoutError(), "no response within 10.0s"),
    ],
)
async def test_the_elector_reports_a_repeated_error_once(
    elect: Any, fault: Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api(until=7)
    api.faults = [fault] * 3
    elector = await elect(api)
    assert [at for at, _ in api.writes] == [6, 6]
    assert elector.fault == ""
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warnings == [f"cannot acquire or renew lease ns/driver: {message}"]


# --- release ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "written"), [(5, True), (11.9, True), (12, False), (13, False)], ids=["soon", "at the end", "then", "late"]
)
async def test_a_leader_releases_its_lease_until_the_renew_deadline(elect: Any, now: float, written: bool) -> None:
    api = Api(until=3)
    elector = await elect(api)
    assert [at for at, _ in api.writes] == [0, 0, 2]
    api.now = now
    await elector.release()
    assert len(api.writes) == 3 + written
    if written:
        last = api.writes[-1][1]
        assert (last["holderIdentity"], last["leaseDurationSeconds"], last["leaseTransitions"]) == ("", 1, 0)
        assert last["acquireTime"] != api.writes[2][1]["acquireTime"]
        assert elector.holder == ""
        await elector.release()
        assert len(api.writes) == 4, "a second release writes nothing"


async def test_a_lease_is_released_although_a_late_renewal_arrives_first(elect: Any) -> None:
    api = Api(until=3)
    elector = await elect(api)
    api.faults = [None, ConflictError("changed")]
    await elector.release()
    assert api.lease and api.lease["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("fault", [ApiError("away"), TimeoutError()])
async def test_a_failed_release_raises_no_error(elect: Any, fault: Exception) -> None:
    api = Api(until=3)
    elector = await elect(api)
    api.faults = [fault]
    await elector.release()
    assert elector.holder == "me"


async def test_an_elector_that_never_led_releases_no_lease(elect: Any) -> None:
    for lease in (held("other"), None):
        api = Api(until=3, lease=lease)
        api.faults = [ApiError("away")] * 9 if lease is None else []
        elector = await elect(api)
        await elector.release()
        assert api.writes == []


# --- times --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "good"),
    [
        ((15, 10, 2), True),
        ((1, 0.9, 0.1), True),
        ((0.99, 0.9, 0.1), False),
        ((10, 10, 2), False),
        ((10.1, 10, 2), True),
        ((15, 2.4, 2), False),
        ((15, 2.5, 2), True),
        ((15, 10, 0), False),
        ((15, 10, -1), False),
    ],
)
def test_lease_times_must_leave_time_between_two_leaders(times: tuple[float, float, float], good: bool) -> None:
    if good:
        assert LeaseTimes(*times).slack == pytest.approx(times[0] - times[1])
    else:
        with pytest.raises(SettingsError, match="lease duration"):
            LeaseTimes(*times)
