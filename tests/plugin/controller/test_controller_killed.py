"""Controllers that are killed: at every step of binding and unbinding, while they are leader, and while they are
suspended.
"""

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

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import device_class, pod
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.kube.resource import CLAIMS, PODS

pytestmark = [pytest.mark.crash, pytest.mark.gates("DRADeviceBindingConditions")]
FOLDER = Path(__file__).parent
Fabric: Any = load_driver(str(FOLDER.parents[2] / "drivers/fabric_example"))
FabricManager: Any = vars(sys.modules[Fabric.__module__])["FabricManager"]
_STEPS = 20  # more than the number of steps: at the last step no controller is killed


class Controllers:
    """Controller processes, which end with the test."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, kill_at: int = 0, lease_seconds: int = 600) -> subprocess.Popen[bytes]:
        """``lease_seconds`` is the duration of the lease in seconds. The default is longer than any test, so that a slow
        process does not lose it.
        """
        name = f"replica-{len(self.started)}"
        env = {
            **os.environ,
            "KILL_AT": str(kill_at),
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "FABRIC_STATE": str(self.folder / "fabric.db"),
            "POD_NAMESPACE": "default",
            "POD_NAME": name,
            "LEASE_DURATION": f"{lease_seconds}s",
            "RENEW_DEADLINE": f"{lease_seconds - 1}s",
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
        with print_logs_on_failure(controllers):
            yield cluster, controllers


@contextlib.contextmanager
def print_logs_on_failure(controllers: Controllers) -> Iterator[None]:
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


async def wait_bound(cluster: LocalCluster, name: str) -> None:
    async def check() -> bool:
        pod = await cluster.pod(name)
        return bool((pod or {}).get("spec", {}).get("nodeName"))

    await cluster.wait(f"pod {name} to be bound", check)


async def holder(cluster: LocalCluster, except_for: str = "") -> str:
    async def check() -> str:
        for lease in cluster.api.storage.list("leases.coordination.k8s.io", "default"):
            holder_identity = str(lease["spec"].get("holderIdentity") or "")
            if holder_identity and holder_identity != except_for:
                return holder_identity
        return ""

    return str(await cluster.wait("a leader", check))


async def leader_of(cluster: LocalCluster, controllers: Controllers) -> str:
    """Returns the leader, after its process knows that it is the leader. The Lease changes before the response reaches
    the process.
    """
    leader = await holder(cluster)

    async def is_leading() -> bool:
        return f"-controller, identity {leader}" in controllers.log()

    await cluster.wait(f"{leader} to know that it leads", is_leading)
    return leader


async def wait_clean(cluster: LocalCluster, fabric: Any) -> None:
    async def check() -> bool:
        records = [c for c in cluster.api.storage.list("configmaps") if c["metadata"]["name"].startswith(Fabric.name)]
        return fabric.attached("gpu-0") is None and not records

    await cluster.wait("everything to be undone", check)


@pytest.mark.parametrize(
    "step", range(2, _STEPS + 1, 2)
)  # after each step; between a step and the next one nothing happens
async def test_a_controller_killed_at_any_step_leaves_no_device_attached(
    fabric: Any, tmp_path: Path, step: int
) -> None:
    async with cluster_and_controllers(tmp_path) as (cluster, controllers):
        first = controllers.start(kill_at=step, lease_seconds=600 if step == _STEPS else 4)
        await cluster.apply(claim("c"), pod("p", claims=["c"]))
        await holder(cluster)
        controllers.start()
        await wait_bound(cluster, "p")
        uid = (await cluster.client.get(CLAIMS, "c", "default"))["metadata"]["uid"]
        attached_uid = fabric.attached("gpu-0")
        assert (attached_uid.node, attached_uid.owner) == ("node-1", uid)
        await cluster.client.delete(PODS, "p", "default", grace=0)
        await wait_clean(cluster, fabric)
        if step == _STEPS:
            assert first.poll() is None, "there are more steps than this test kills at"


@pytest.mark.full
@pytest.mark.usefixtures("fabric")
async def test_a_leader_that_was_suspended_for_long_ends_when_it_continues(tmp_path: Path) -> None:
    async with cluster_and_controllers(tmp_path) as (cluster, controllers):
        first = controllers.start(lease_seconds=4)
        leader = await leader_of(cluster, controllers)
        controllers.start()
        first.send_signal(signal.SIGSTOP)
        await holder(cluster, except_for=leader)
        first.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(first.wait, 60) == 1
        assert "no longer leads" in controllers.log()
        await cluster.apply(claim("c"), pod("p", claims=["c"]))
        await wait_bound(cluster, "p")
