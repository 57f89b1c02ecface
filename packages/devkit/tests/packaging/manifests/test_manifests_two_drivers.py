"""Two drivers in one cluster share no objects, and each runs under its own account."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from dra_devkit.localcluster.cluster import LocalCluster, resource_of
from dra_devkit.packaging.manifests.values import merged
from dra_devkit.testing import ClaimSpec, Request
from dra_devkit.testing.oci import env_of
from dra_devkit.testing.pods import pod, template
from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, PreparedDevice
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.resource import PODS
from dra_kubeletplugin.plugin.node import Plugin
from packages.devkit.tests.packaging.manifests.deployed import config_of
from packages.devkit.tests.packaging.manifests.rendering import LEAST, by_id, container, one, plain

NPU: JSON = merged(LEAST, {"features": {"deviceStatus": True, "controller": True}})
_SELECTOR = {"selectors": [{"cel": {"expression": 'device.driver == "fpga.example.com"'}}]}
FPGA: JSON = NPU | {
    "name": "fpga",
    "namespace": "fpga-system",
    "driverName": "fpga.example.com",
    "deviceClasses": {"fpga.example.com": _SELECTOR},
    "options": {"FPGA_MODE": "x"},
}
BESIDE: JSON = merged(FPGA, {"namespace": NPU["namespace"], "features": {"namespace": False}})
"""A driver in the namespace of the other driver; only one of them creates the namespace."""
READY = 60.0


class Two(Driver):
    """Publishes devices under the configured driver name."""

    async def devices(self) -> list[Device]:
        return [Device(f"d{i}") for i in range(2)]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        name = self.settings.driver_name.partition(".")[0].upper()
        return [d.prepared(ContainerEdits(env={f"{name}_DEVICE": d.name})) for d in claim.devices]


@pytest.mark.parametrize("other", [FPGA, BESIDE], ids=["apart", "in-one-namespace"])
def test_two_drivers_share_no_objects(other: JSON) -> None:
    a, b = by_id(plain(NPU)), by_id(plain(other))
    assert not set(a) & set(b)
    for own, foreign in ((a, "fpga"), (b, "npu")):
        names = {key[2] for key in own}
        assert not [n for n in names if n.startswith(foreign) and n != "npu-system"]


def environment(manifests: list[JSON], pod: JSON, cluster: LocalCluster) -> dict[str, str]:
    """Returns the environment of the DaemonSet's container, with folders of this machine instead of the node's folders."""
    fields = {"spec.nodeName": pod["spec"]["nodeName"], "metadata.uid": pod["metadata"]["uid"]}
    main = container(one(manifests, "DaemonSet"))
    (source,) = main["envFrom"]
    options = one(manifests, "ConfigMap")
    assert source["configMapRef"]["name"] == options["metadata"]["name"]
    out = dict(options["data"])
    for entry in main["env"]:
        path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        out[entry["name"]] = fields[path] if path else entry["value"]
    mounts = {m["mountPath"] for m in main["volumeMounts"]}
    assert {
        f"{out['KUBELET_ROOT']}/plugins",
        f"{out['KUBELET_ROOT']}/plugins_registry",
        f"{out['KUBELET_ROOT']}/pod-resources",
        out["CDI_ROOT"],
        out["DEV_ROOT"],
    } <= mounts
    here = {
        "KUBELET_ROOT": str(cluster.node.kubelet_root),
        "CDI_ROOT": str(cluster.node.cdi_root),
        "DEV_ROOT": "/dev",
        "HTTP_ADDRESS": ":0",  # Both plugins share this machine's network; pods have separate networks.
        "LOCAL_CLUSTER": "1",
    }
    return out | here


@contextlib.asynccontextmanager
async def running(cluster: LocalCluster, manifests: list[JSON]) -> AsyncIterator[Plugin]:
    daemonset = one(manifests, "DaemonSet")
    found = await cluster.wait("the DaemonSet's pod", lambda: pod_of(cluster, daemonset))
    settings = Settings.load({}, environment(manifests, found, cluster))
    async with Plugin(Two(), settings, await config_of(cluster, daemonset, found)).running() as plugin:
        await plugin.ready(READY)
        yield plugin


async def pod_of(cluster: LocalCluster, daemonset: JSON) -> JSON | None:
    selector = daemonset["spec"]["selector"]["matchLabels"].items()
    listed = await cluster.client.list(PODS, daemonset["metadata"]["namespace"])
    for found in listed["items"]:
        if selector <= found["metadata"].get("labels", {}).items() and found["spec"].get("nodeName"):
            return dict(found)
    return None


@pytest.mark.parametrize("other", [FPGA, BESIDE], ids=["apart", "in-one-namespace"])
async def test_two_drivers_run_together_and_one_is_removed_alone(other: JSON) -> None:
    async with LocalCluster() as cluster:
        own_rules, other_rules = plain(NPU), plain(other)
        await cluster.apply(*own_rules, *other_rules)
        async with contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(running(cluster, other_rules))
            async with running(cluster, own_rules):
                drivers = ("npu.example.com", "fpga.example.com")
                for name in drivers:
                    await cluster.apply(template(name, ClaimSpec(Request(device_class=name))))
                await cluster.apply(pod("uses-both", templates=drivers))
                env = env_of(cluster, await cluster.wait_running("uses-both"))
                assert {k: v for k, v in env.items() if k.endswith("_DEVICE")} == {
                    "NPU_DEVICE": "d0",
                    "FPGA_DEVICE": "d0",
                }
                assert {s["spec"]["driver"] for s in cluster.slices()} == set(drivers)
                await cluster.delete_pod("uses-both")
            for manifest in own_rules:
                if not (manifest["kind"] == "Namespace" and other is BESIDE):
                    await remove(cluster, manifest)
            await cluster.apply(pod("goes-on", templates=["fpga.example.com"]))
            await cluster.wait_running("goes-on")
            assert first.publisher.fault == ""
            for manifest in other_rules:
                meta = manifest["metadata"]
                await cluster.client.get(resource_of(manifest), meta["name"], meta.get("namespace", ""))
            await cluster.delete_pod("goes-on")


async def remove(cluster: LocalCluster, manifest: JSON) -> None:
    meta = manifest["metadata"]
    with contextlib.suppress(NotFoundError):  # deleted together with its namespace
        await cluster.client.delete(resource_of(manifest), meta["name"], meta.get("namespace", ""))
