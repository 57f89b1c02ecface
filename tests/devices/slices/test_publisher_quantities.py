"""The server stores every quantity as the publisher sent it, so a restarted publisher recognizes its slices and writes nothing."""

from __future__ import annotations

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import DriverNode, node_with
from dra_kubeletplugin import Capacity, Claim, CounterSet, Device, Driver, Pool, PreparedDevice, Quantity, RequestPolicy

pytestmark = pytest.mark.gates("DRAConsumableCapacity", "DRAPartitionableDevices")

POLICY = RequestPolicy(default="1024Mi", min="0.5Gi", max="8192Mi", step="512Mi")
AMOUNTS = ("81920Mi", "1000", "0.5", "1.500", "+7", "1e19", "1000E", "100e-2", 2_000_000)


class AmountsDriver(Driver):
    """Publishes amounts in every form that Kubernetes accepts."""

    name = "amounts.example.com"

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared() for d in claim.devices]

    def pools(self) -> list[Pool]:
        part = Device("part", consumes_counters={"gpu": {"memory": "1024Mi", "engines": "1000m"}})
        shared = Device("shared", capacity={"memory": Capacity("40960Mi", POLICY)}, allow_multiple_allocations=True)
        whole = Device("whole", capacity={f"c{i}": amount for i, amount in enumerate(AMOUNTS)})
        counters = CounterSet("gpu", {"memory": "40960Mi", "engines": Quantity("7000m")})
        return [Pool(self.settings.node_name, [part, shared, whole], [counters])]


def published(cluster: LocalCluster) -> list[tuple[str, str]]:
    return sorted((s["metadata"]["name"], s["metadata"]["resourceVersion"]) for s in cluster.slices(AmountsDriver.name))


async def test_a_restart_rewrites_no_slice_for_any_form_of_amounts() -> None:
    async with node_with(AmountsDriver) as node:
        first = published(node.cluster)
        assert len(first) == 2
        await node.restart()
        await rescan_twice(node)
        assert published(node.cluster) == first


async def rescan_twice(node: DriverNode) -> None:
    for _ in range(2):
        await node.rescan()


async def test_amounts_are_stored_in_their_canonical_form() -> None:
    async with node_with(AmountsDriver) as node:
        specs = [s["spec"] for s in node.cluster.slices(AmountsDriver.name)]
        devices = {d["name"]: d for spec in specs for d in spec.get("devices") or []}
        (counters,) = [c for spec in specs for c in spec.get("sharedCounters") or []]
    amounts = [v["value"] for v in devices["whole"]["capacity"].values()]
    assert amounts == ["80Gi", "1k", "500m", "1500m", "7", "10e18", "1e21", "1", "2M"]
    assert devices["shared"]["capacity"]["memory"] == {
        "value": "40Gi",
        "requestPolicy": {"default": "1Gi", "validRange": {"min": "512Mi", "max": "8Gi", "step": "512Mi"}},
    }
    assert devices["part"]["consumesCounters"][0]["counters"] == {"memory": {"value": "1Gi"}, "engines": {"value": "1"}}
    assert counters["counters"] == {"memory": {"value": "40Gi"}, "engines": {"value": "7"}}
