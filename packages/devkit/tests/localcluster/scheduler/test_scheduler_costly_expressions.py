"""Very costly expressions in the local cluster: the scheduler reports why the pod waits and continues with the next pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.kube.errors import InvalidError
from packages.devkit.tests.localcluster.scheduler.objects import claim, node, node_of, pod, wait_for_event
from tests.helpers.objects import claim_spec, device_class, slice_of

BACKTRACKS = '"' + "a" * 40 + '!".matches("^(a+)+$")'
DOUBLED = (
    "cel.bind(x0, [1], " + "".join(f"cel.bind(x{i + 1}, x{i} + x{i}, " for i in range(40)) + "size(x40) > 0" + ")" * 41
)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(()) as cluster:
        await cluster.apply(node("node-a"), device_class(), slice_of("node-a", [f"d{i}" for i in range(8)]))
        yield cluster


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("expression", "reason"),
    [(BACKTRACKS, "cannot allocate all claims"), (DOUBLED, "actual cost limit exceeded")],
    ids=["a pattern", "a list"],
)
async def test_the_scheduler_continues_with_the_next_pod(
    cluster: LocalCluster, expression: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    costly = device_class("costly")
    costly["spec"]["selectors"] = [{"cel": {"expression": expression}}]
    hard_claim = {**claim("hard"), "spec": claim_spec(device_class="costly")}
    easy_claim = {**claim("easy"), "spec": claim_spec()}
    await cluster.apply(costly, hard_claim, easy_claim, pod("waits", claim="hard"))
    await wait_for_event(cluster, "waits", reason)
    await cluster.apply(pod("runs", claim="easy"))
    assert await node_of(cluster, "runs") == "node-a"
    assert await asyncio.to_thread(main, ["explain", "--kubeconfig", str(cluster.kubeconfig), "waits"]) == 1
    printed = capsys.readouterr().out
    assert "waits" in printed
    assert "Traceback" not in printed


async def test_the_api_server_rejects_a_selector_with_too_deep_nesting(cluster: LocalCluster) -> None:
    deep = device_class("deep")
    deep["spec"]["selectors"] = [{"cel": {"expression": "1" + "+1" * 2000 + " > 0"}}]
    with pytest.raises(InvalidError, match="is invalid"):
        await cluster.apply(deep)
