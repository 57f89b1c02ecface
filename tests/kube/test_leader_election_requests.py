"""Leader election through a real socket: one elector leads, the next takes over in time, and two never lead at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable
from datetime import datetime
from typing import Any

import pytest

from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.errors import ApiError, SettingsError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.leader_election import LeaderElector, LeaseTimes
from dra_kubeletplugin.kube.resource import LEASES
from tests.helpers.waiting import wait_until

QUICK = LeaseTimes(duration=2.0, renew_deadline=1.5, retry=0.1)
# A pause of seconds on a busy machine does not reach this deadline.
UNHURRIED = LeaseTimes(duration=30.0, renew_deadline=20.0, retry=0.05)


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
        """Stops the elector as SIGKILL does: it does not release the lease."""
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
    """Advances the clock that measures the time since the last renewal."""
    read = time.clock_gettime
    passed = {time.CLOCK_BOOTTIME: seconds}
    monkeypatch.setattr(time, "clock_gettime", lambda clock: read(clock) + passed.get(clock, 0.0))


async def test_the_next_elector_leads_only_after_the_lease_of_a_killed_leader_ends(
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
    # Both electors used the same clock, so the time at which the second saw the last renewal does not matter.
    passed = datetime.fromisoformat(taken["acquireTime"]) - datetime.fromisoformat(left["renewTime"])
    assert passed.total_seconds() >= QUICK.duration


async def test_an_elector_takes_a_released_lease_at_once(candidates: Candidates) -> None:
    # The lease is too long for the test to pass by waiting for its end.
    unending = LeaseTimes(duration=3600.0, renew_deadline=1800.0, retry=0.05)
    first = candidates.start("first", unending)
    await within(30, first.leader.wait())
    second = candidates.start("second", unending)
    await wait_until(lambda: second.holder == "first")
    await candidates.kill("first")
    await first.release()
    await within(30, second.leader.wait())


async def test_the_leader_releases_the_lease_when_a_late_renewal_arrives_first(
    client: KubeClient, candidates: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The elector cancelled the renewal, but the server still applies it."""
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


async def test_a_leader_stops_at_once_when_its_machine_slept_past_the_deadline(
    candidates: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sleep stops the event loop's clock. Another elector may have taken the lease in that time."""
    elector = candidates.start("first", LeaseTimes())
    await within(30, elector.leader.wait())
    let_pass(monkeypatch, 60.0)
    assert not elector.leads


async def test_a_leader_that_cannot_renew_stops_before_another_can_lead(
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


async def test_one_elector_keeps_leading_when_the_lease_is_deleted_repeatedly(
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
            while True:  # until the elector created it again
                with contextlib.suppress(ApiError):
                    if (await client.get(LEASES, "driver", "default"))["metadata"]["uid"] != lease["metadata"]["uid"]:
                        break
                assert first.leads and not second.leader.is_set()
                await asyncio.sleep(0.005)
    assert first.leads and not second.leader.is_set()


async def test_the_leader_keeps_leading_through_an_outage_shorter_than_the_deadline(
    server: ApiServer, candidates: Candidates
) -> None:
    elector = candidates.start("first", UNHURRIED)
    await within(30, elector.leader.wait())
    server.injected_faults.down = True
    await wait_until(lambda: bool(elector.fault))
    server.injected_faults.down = False
    await wait_until(lambda: not elector.fault)
    assert elector.leader.is_set() and not elector.lost.is_set()


@pytest.mark.parametrize("stamp", ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
async def test_the_elector_ignores_times_that_another_machine_wrote(
    client: KubeClient, candidates: Candidates, stamp: str
) -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 1, "renewTime": stamp, "leaseTransitions": 4}
    await client.create(LEASES, {"metadata": {"name": "driver", "namespace": "default"}, "spec": spec})
    began = time.monotonic()
    elector = candidates.start("first")
    await within(30, elector.leader.wait())
    assert time.monotonic() - began >= 1.0  # one full lease duration on the local clock
    lease = await client.get(LEASES, "driver", "default")
    assert lease["spec"]["leaseTransitions"] == 5
    assert lease["spec"]["holderIdentity"] == "first"


async def test_a_renewal_keeps_the_acquire_time_and_unknown_fields(client: KubeClient, candidates: Candidates) -> None:
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


async def test_the_leader_stops_when_another_holder_takes_the_lease(client: KubeClient, candidates: Candidates) -> None:
    elector = candidates.start("first", UNHURRIED)
    await within(30, elector.leader.wait())
    await client.patch(LEASES, "driver", {"spec": {"holderIdentity": "thief"}}, "default")
    await within(30, elector.lost.wait())
    assert elector.holder == "thief"


@pytest.mark.full
async def test_only_one_of_ten_electors_leads_after_a_lease_expires(client: KubeClient, candidates: Candidates) -> None:
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
    assert lease["spec"]["leaseTransitions"] >= 3, (
        "another elector also takes over from a leader that had no time to renew"
    )


async def test_the_elector_reports_a_malformed_lease_and_never_takes_it(
    server: ApiServer, candidates: Candidates
) -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 1, "acquireTime": 7}
    meta = {"name": "driver", "namespace": "default", "uid": "u"}
    server.storage.put("leases.coordination.k8s.io", {"metadata": meta, "spec": spec})
    elector = candidates.start("first")
    await wait_until(lambda: "is not a Lease" in elector.fault)
    assert not elector.leader.is_set()


@pytest.mark.parametrize("times", [(15, 15, 2), (15, 10, 9), (0.5, 0.4, 0.1), (10, 12, 2), (15, 10, 0)])
def test_the_elector_rejects_times_with_which_two_could_lead(times: tuple[float, float, float]) -> None:
    with pytest.raises(SettingsError):
        LeaseTimes(*times)
