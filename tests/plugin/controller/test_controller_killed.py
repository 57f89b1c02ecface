"""Controllers that are killed: at every step of binding and unbinding, while they lead, and while they are stopped for a while."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.kube.resource import CLAIMS, LEASES, PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.testing import device_class, pod

pytestmark = [pytest.mark.crash, pytest.mark.gates("DRADeviceBindingConditions")]
HERE = Path(__file__).parent
Fabric: Any = load_driver(str(HERE.parents[2] / "drivers/fabric_example"))
FabricManager: Any = vars(sys.modules[Fabric.__module__])["FabricManager"]
LEASE = f"{Fabric.name}-controller"
_STEPS = 20  # more than there are: the last kills nobody


class Controllers:
    """Processes, ended with the test."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, kill_at: int = 0, lasts: int = 600) -> subprocess.Popen[bytes]:
        """``lasts``: seconds of its lease. By default longer than any test, so that nobody loses it who is only slow."""
        name = f"replica-{len(self.started)}"
        env = {
            **os.environ,
            "KILL_AT": str(kill_at),
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "FABRIC_STATE": str(self.folder / "fabric.db"),
            "POD_NAMESPACE": "default",
            "POD_NAME": name,
            "LEASE_DURATION": f"{lasts}s",
            "RENEW_DEADLINE": f"{lasts - 1}s",
            "RETRY_PERIOD": "100ms",
            "SHUTDOWN_GRACE_PERIOD": "2s",
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.crash.controller_process"], env=env, stdout=log, stderr=log
            )
        self.started.append(process)
        return process

    def log(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text()}" for p in sorted(self.folder.glob("*.log")))

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def fabric(tmp_path: Path) -> Any:
    manager = FabricManager(tmp_path / "fabric.db")
    manager.add("gpu-0", "a100")
    return manager


@contextlib.asynccontextmanager
async def cluster_and_controllers(folder: Path) -> AsyncIterator[tuple[LocalCluster, Controllers]]:
    async with LocalCluster() as cluster:
        await cluster.apply(device_class("fabric", Fabric.name))
        controllers = Controllers(cluster, folder)
        with _shown(controllers):
            yield cluster, controllers


@contextlib.contextmanager
def _shown(controllers: Controllers) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(controllers.log())
        raise
    finally:
        controllers.end()


def claim(name: str) -> dict[str, Any]:
    request = {"name": "device", "exactly": {"deviceClassName": "fabric"}}
    spec = {"devices": {"requests": [request]}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


async def bound(cluster: LocalCluster, name: str) -> None:
    async def check() -> bool:
        found = await cluster.pod(name)
        return bool((found or {}).get("spec", {}).get("nodeName"))

    await cluster.wait(f"pod {name} to be bound", check)


async def holder(cluster: LocalCluster, other_than: str = "") -> str:
    async def check() -> str:
        for lease in cluster.api.storage.list("leases.coordination.k8s.io", "default"):
            found = str(lease["spec"].get("holderIdentity") or "")
            if found and found != other_than:
                return found
        return ""

    return str(await cluster.wait("a leader", check))


async def leader_of(cluster: LocalCluster, controllers: Controllers) -> str:
    """The leader, once it knows that it is: its Lease is seen before the answer reaches it."""
    leader = await holder(cluster)

    async def knows() -> bool:
        return f"-controller, identity {leader}" in controllers.log()

    await cluster.wait(f"{leader} to know that it leads", knows)
    return leader


async def expired(cluster: LocalCluster) -> None:
    """The lease of one who is dead ends soon, as if its time were over."""
    await cluster.client.patch(LEASES, LEASE, {"spec": {"leaseDurationSeconds": 1}}, "default")


async def clean(cluster: LocalCluster, fabric: Any) -> None:
    async def check() -> bool:
        records = [c for c in cluster.api.storage.list("configmaps") if c["metadata"]["name"].startswith(Fabric.name)]
        return fabric.attached("gpu-0") is None and not records

    await cluster.wait("everything to be undone", check)


@pytest.mark.parametrize("at", range(2, _STEPS + 1, 2))  # after each; nothing happens between that and before the next
async def test_a_controller_killed_at_any_step_leaves_nothing_undone(fabric: Any, tmp_path: Path, at: int) -> None:
    async with cluster_and_controllers(tmp_path) as (cluster, controllers):
        first = controllers.start(kill_at=at, lasts=600 if at == _STEPS else 4)
        await cluster.apply(claim("c"), pod("p", claims=["c"]))
        await holder(cluster)
        controllers.start()
        await bound(cluster, "p")
        uid = (await cluster.client.get(CLAIMS, "c", "default"))["metadata"]["uid"]
        found = fabric.attached("gpu-0")
        assert (found.node, found.owner) == ("node-1", uid)
        await cluster.client.delete(PODS, "p", "default", grace=0)
        await clean(cluster, fabric)
        if at == _STEPS:
            assert first.poll() is None, "there are more steps than this test kills at"


@pytest.mark.full
async def test_when_the_leader_is_killed_the_other_finishes_what_it_began(fabric: Any, tmp_path: Path) -> None:
    fabric.add("gpu-0", "a100", seconds=600)
    async with cluster_and_controllers(tmp_path) as (cluster, controllers):
        first = controllers.start()
        leader = await holder(cluster)
        controllers.start()
        await cluster.apply(claim("c"), pod("p", claims=["c"]))

        async def attaching() -> bool:
            return "before attach" in controllers.log()

        await cluster.wait("the leader to attach", attaching)
        first.kill()
        first.wait()
        fabric.add("gpu-0", "a100")  # only now: the first was to take long
        await expired(cluster)
        await bound(cluster, "p")
        assert await holder(cluster) != leader
        lease = await cluster.client.get(LEASES, LEASE, "default")
        assert lease["spec"]["leaseTransitions"] == 1


@pytest.mark.full
async def test_a_leader_that_was_stopped_for_long_ends_when_it_wakes(fabric: Any, tmp_path: Path) -> None:
    async with cluster_and_controllers(tmp_path) as (cluster, controllers):
        first = controllers.start(lasts=4)
        leader = await leader_of(cluster, controllers)
        controllers.start()
        first.send_signal(signal.SIGSTOP)
        await holder(cluster, other_than=leader)
        first.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(first.wait, 60) == 1
        assert "no longer leads" in controllers.log()
        await cluster.apply(claim("c"), pod("p", claims=["c"]))
        await bound(cluster, "p")


async def test_a_leader_that_is_asked_to_stop_hands_over_at_once(fabric: Any, tmp_path: Path) -> None:
    async with cluster_and_controllers(tmp_path) as (cluster, controllers):
        first = controllers.start()
        leader = await leader_of(cluster, controllers)
        controllers.start()
        first.terminate()
        assert await asyncio.to_thread(first.wait, 60) == 0
        assert await holder(cluster, other_than=leader)
