"""Leader election through a real socket: one elector leads, the next takes over in time, and two never lead at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable

import pytest

from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.errors import ApiError
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
