"""Leader election through a real socket: one leads, the next takes over in time, and two never lead at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable
from datetime import datetime
from typing import Any

import pytest

from dra_kubeletplugin.errors import ApiError, SettingsError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.leader_election import LeaderElector, LeaseTimes
from dra_kubeletplugin.kube.resource import LEASES
from dra_kubeletplugin.localcluster.apiserver import ApiServer
from tests.helpers.waiting import wait_until

QUICK = LeaseTimes(duration=2.0, renew_deadline=1.5, retry=0.1)
UNHURRIED = LeaseTimes(duration=30.0, renew_deadline=20.0, retry=0.05)  # kept also where nothing runs for seconds


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(server.config, timeout=30.0) as client:
        yield client


class Candidates:
    """Electors that run until the test ends."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, times: LeaseTimes = QUICK) -> LeaderElector:
        elector = LeaderElector(self.client, "default", "driver", name, times)
        self.tasks[name] = asyncio.create_task(elector.run())
        return elector

    async def kill(self, name: str) -> None:
        """As SIGKILL: nothing is given back."""
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)


@pytest.fixture
async def candidates(client: KubeClient) -> AsyncIterator[Candidates]:
    candidates = Candidates(client)
    yield candidates
    for name in candidates.tasks:
        await candidates.kill(name)


async def within(seconds: float, what: Awaitable[object]) -> None:
    async with asyncio.timeout(seconds):
        await what


def let_pass(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """By the clock that counts how long a lease was not renewed."""
    read = time.clock_gettime
    passed = {time.CLOCK_BOOTTIME: seconds}
    monkeypatch.setattr(time, "clock_gettime", lambda clock: read(clock) + passed.get(clock, 0.0))


async def test_the_next_leads_after_the_first_is_killed_and_not_before_its_lease_ends(
    client: KubeClient, candidates: Candidates
) -> None:
    first = candidates.start("first")
    await within(30, first.leader.wait())
    second = candidates.start("second")
    await wait_until(lambda: second.holder == "first")
    await candidates.kill("first")
    left = (await client.get(LEASES, "driver", "default"))["spec"]
    await within(30, second.leader.wait())
    taken = (await client.get(LEASES, "driver", "default"))["spec"]
    assert (left["holderIdentity"], taken["holderIdentity"]) == ("first", "second")
    # Both wrote by the same clock. When the second saw the last sign of life does not matter: it was none before.
    passed = datetime.fromisoformat(taken["acquireTime"]) - datetime.fromisoformat(left["renewTime"])
    assert passed.total_seconds() >= QUICK.duration


async def test_a_lease_that_is_given_back_is_taken_at_once(candidates: Candidates) -> None:
    unending = LeaseTimes(duration=3600.0, renew_deadline=1800.0, retry=0.05)  # which nobody waits for here
    first = candidates.start("first", unending)
    await within(30, first.leader.wait())
    second = candidates.start("second", unending)
    await wait_until(lambda: second.holder == "first")
    await candidates.kill("first")
    await first.release()
    await within(30, second.leader.wait())


async def test_a_lease_is_given_back_also_where_a_last_renewal_arrives_meanwhile(
    client: KubeClient, candidates: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender was cancelled, and the server has it still."""
    first = candidates.start("first", UNHURRIED)
    await within(30, first.leader.wait())
    await candidates.kill("first")
    update = client.update

    async def overtaken(*args: Any) -> Any:
        monkeypatch.undo()
        await client.patch(LEASES, "driver", {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}, "default")
        return await update(*args)

    monkeypatch.setattr(client, "update", overtaken)
    await first.release()
    assert (await client.get(LEASES, "driver", "default"))["spec"]["holderIdentity"] == ""


async def test_a_leader_whose_machine_slept_past_its_deadline_leads_no_more_at_once(
    candidates: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sleep stops the clock by which the event loop waits, and another has taken the lease meanwhile."""
    elector = candidates.start("first", LeaseTimes())
    await within(30, elector.leader.wait())
    let_pass(monkeypatch, 60.0)
    assert not elector.leads


async def test_who_cannot_renew_leads_no_more_before_another_could(
    server: ApiServer, candidates: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    elector = candidates.start("first", UNHURRIED)
    await within(30, elector.leader.wait())
    server.injected_faults.down = True
    await wait_until(lambda: "503" in elector.fault)
    assert elector.leads
    let_pass(monkeypatch, UNHURRIED.renew_deadline)
    await within(30, elector.lost.wait())
    assert not elector.leader.is_set()
    assert "503" in elector.fault


async def test_however_often_the_lease_is_deleted_one_leads_and_stays(
    client: KubeClient, candidates: Candidates
) -> None:
    first = candidates.start("first", UNHURRIED)
    await within(30, first.leader.wait())
    second = candidates.start("second", UNHURRIED)
    for _ in range(5):
        lease = await client.get(LEASES, "driver", "default")
        await wait_until(lambda: second.holder == "first" and not second.fault)
        await client.delete(LEASES, "driver", "default")
        async with asyncio.timeout(30):
            while True:  # until it was made again
                with contextlib.suppress(ApiError):
                    if (await client.get(LEASES, "driver", "default"))["metadata"]["uid"] != lease["metadata"]["uid"]:
                        break
                assert first.leads and not second.leader.is_set()
                await asyncio.sleep(0.005)
    assert first.leads and not second.leader.is_set()


async def test_an_outage_shorter_than_the_deadline_costs_nothing(server: ApiServer, candidates: Candidates) -> None:
    elector = candidates.start("first", UNHURRIED)
    await within(30, elector.leader.wait())
    server.injected_faults.down = True
    await wait_until(lambda: bool(elector.fault))
    server.injected_faults.down = False
    await wait_until(lambda: not elector.fault)
    assert elector.leader.is_set() and not elector.lost.is_set()


@pytest.mark.parametrize("stamp", ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
async def test_the_times_that_another_machine_wrote_count_for_nothing(
    client: KubeClient, candidates: Candidates, stamp: str
) -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 1, "renewTime": stamp, "leaseTransitions": 4}
    await client.create(LEASES, {"metadata": {"name": "driver", "namespace": "default"}, "spec": spec})
    began = time.monotonic()
    elector = candidates.start("first")
    await within(30, elector.leader.wait())
    assert time.monotonic() - began >= 1.0  # a whole duration of our own clock
    lease = await client.get(LEASES, "driver", "default")
    assert lease["spec"]["leaseTransitions"] == 5
    assert lease["spec"]["holderIdentity"] == "first"


async def test_renewing_keeps_when_it_was_acquired_and_fields_of_others(
    client: KubeClient, candidates: Candidates
) -> None:
    elector = candidates.start("first", UNHURRIED)
    await within(30, elector.leader.wait())
    await client.patch(LEASES, "driver", {"spec": {"strategy": "OldestEmulationVersion"}}, "default")
    before = now = await client.get(LEASES, "driver", "default")
    async with asyncio.timeout(30):
        while now["spec"]["renewTime"] == before["spec"]["renewTime"]:
            await asyncio.sleep(0.01)
            now = await client.get(LEASES, "driver", "default")
    assert now["spec"]["acquireTime"] == before["spec"]["acquireTime"]
    assert now["spec"]["leaseTransitions"] == 0
    assert now["spec"]["strategy"] == "OldestEmulationVersion"
    assert elector.leader.is_set()


async def test_a_lease_that_somebody_takes_ends_the_lead(client: KubeClient, candidates: Candidates) -> None:
    elector = candidates.start("first", UNHURRIED)
    await within(30, elector.leader.wait())
    await client.patch(LEASES, "driver", {"spec": {"holderIdentity": "thief"}}, "default")
    await within(30, elector.lost.wait())
    assert elector.holder == "thief"


@pytest.mark.full
async def test_of_ten_that_want_an_expired_lease_one_leads_at_a_time(
    client: KubeClient, candidates: Candidates
) -> None:
    electors = [candidates.start(f"c{i}") for i in range(10)]
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, sum(e.leads for e in electors))
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    for _ in range(3):
        await wait_until(lambda: any(e.leader.is_set() for e in electors))
        leader = next(e for e in electors if e.leader.is_set())
        await candidates.kill(leader.identity)
    await wait_until(lambda: any(e.leader.is_set() for e in electors))
    watching.cancel()
    assert most == 1
    lease = await client.get(LEASES, "driver", "default")
    assert lease["spec"]["leaseTransitions"] >= 3, "one that had no time to renew is followed too"


async def test_an_object_that_is_no_lease_is_reported_and_never_taken(
    server: ApiServer, candidates: Candidates
) -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 1, "acquireTime": 7}
    meta = {"name": "driver", "namespace": "default", "uid": "u"}
    server.storage.put("leases.coordination.k8s.io", {"metadata": meta, "spec": spec})
    elector = candidates.start("first")
    await wait_until(lambda: "is not a Lease" in elector.fault)
    assert not elector.leader.is_set()


@pytest.mark.parametrize("times", [(15, 15, 2), (15, 10, 9), (0.5, 0.4, 0.1), (10, 12, 2), (15, 10, 0)])
def test_times_with_which_two_could_lead_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(SettingsError):
        LeaseTimes(*times)
