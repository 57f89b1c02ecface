"""Tests that the plugin and the controller use each grant of ``deploy/`` and need no other grant (issue 9.5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.packaging.manifests.values import merged
from dra_devkit.testing import DriverNode
from dra_kubeletplugin import (
    BoundClaim,
    Claim,
    Condition,
    Device,
    DeviceStatus,
    Driver,
    Health,
    Nodes,
    Pool,
    PreparedDevice,
)
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import ControllerSettings, Settings
from dra_kubeletplugin.driver import Role, make
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.errors import ForbiddenError, InvalidError, UnauthorizedError
from dra_kubeletplugin.kube.resource import CLAIMS, PODS, SECRETS, SLICES
from dra_kubeletplugin.plugin.controller.controller import Controller
from dra_kubeletplugin.plugin.node import Plugin
from packages.devkit.tests.packaging.manifests.deployed import Deployed
from packages.devkit.tests.packaging.manifests.rendering import LEAST, Renderings
from tests.helpers.api_server import ApiCaller

pytestmark = pytest.mark.kubectl
VALUES = merged(LEAST, {"features": {"controller": True, "deviceStatus": True}})
NAME = VALUES["driverName"]
ATTACHED = f"{NAME}/attached"
OLDER = {
    f"resource.k8s.io/{v}": True for v in ("v1beta1", "v1beta2")
}  # older versions are served too and must not circumvent the policies
MANY = 200  # devices, more than fit into one slice


class Fabric(Driver):
    """Devices of a node and of a fabric with health, status and binding conditions, so that the driver uses all API requests."""

    name = NAME
    local: ClassVar[list[Device]] = []
    remote: ClassVar[list[Device]] = []
    sick: ClassVar[set[str]] = set()

    async def pools(self) -> list[Pool]:
        here = Nodes.matching({"kubernetes.io/os": ["linux"]})
        foreign = Pool(
            "node-2", [Device("x")]
        )  # the name of another node: an event of the Node reports it, and it is not published
        return [Pool("node-1", list(self.local)), Pool("fabric", list(self.remote), nodes=here), foreign]

    async def health(self) -> dict[str, Health]:
        return {d.name: Health(healthy=d.name not in self.sick) for d in self.local}

    async def bind(self, claim: Claim) -> None:
        for device in claim.devices:
            await claim.report(device, DeviceStatus(data={"port": 1}))

    async def unbind(self, claim: BoundClaim) -> None:
        pass

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        ready = DeviceStatus(conditions=[Condition("Ready", True, "LinkUp")])
        return [d.prepared(status=ready) for d in claim.devices]


def local(name: str) -> Device:
    return Device(name, attributes={"pool": "node-1"})


def attached(name: str) -> Device:
    failed = f"{NAME}/failed"
    where: JSON = {"binds_to_node": True, "binding_conditions": [ATTACHED], "binding_failure_conditions": [failed]}
    return Device(name, attributes={"pool": "fabric"}, **where)


@pytest.fixture(autouse=True)
def reset_driver() -> None:
    Fabric.local, Fabric.remote, Fabric.sick = [local("l0"), local("l1")], [attached("f0")], set()


@pytest.fixture
async def deployed(renderings: Renderings) -> AsyncIterator[Deployed]:
    async with LocalCluster(nodes=("node-1", "node-2"), features=Features.of(runtime_config=OLDER)) as cluster:
        yield await Deployed.on(cluster, renderings.kustomized(VALUES))


@contextlib.asynccontextmanager
async def plugin(deployed: Deployed) -> AsyncIterator[DriverNode[Fabric]]:
    """Runs the plugin with the account of the DaemonSet's pod on the first node."""
    cluster = deployed.cluster
    at = cluster.node
    settings = Settings(
        driver_name=NAME, node_name=at.name, kubelet_root=at.kubelet_root, cdi_root=at.cdi_root,
        local_cluster=True, health_interval=0.1, rescan_interval=3600.0,
    )  # fmt: skip
    config = await deployed.config("DaemonSet", await deployed.pod("DaemonSet", at.name))
    node = DriverNode(cluster, Fabric, settings)
    await node.start_plugin(Plugin(make(Fabric), settings, config))
    try:
        yield node
    finally:
        await node.stop()


@contextlib.asynccontextmanager
async def controller(deployed: Deployed) -> AsyncIterator[Controller]:
    """Runs the controller with the account of a pod of the Deployment."""
    namespace, _ = deployed.account("Deployment")
    settings = ControllerSettings(
        driver_name=NAME,
        namespace=namespace,
        sysfs_root=Path("/nonexistent"),
        retry_period=0.1,
        shutdown_grace_period=2.0,
    )
    config = await deployed.config("Deployment", await deployed.pod("Deployment"))
    async with Controller(make(Fabric, Role.CONTROLLER), settings, config).running() as running:
        await running.ready(60)
        yield running


async def rescan(running: Plugin | Controller) -> None:
    """Calls the driver for its devices and waits until they are published."""
    await running.discovery.call_now()
    async with asyncio.timeout(60):
        await running.publisher.current()


def pod_with(name: str, pool: str) -> list[JSON]:
    """Returns a claim for a device of a pool, and a pod on the first node that uses it."""
    api = {"apiVersion": "resource.k8s.io/v1"}
    expression = f"device.driver == '{NAME}' && device.attributes['{NAME}'].pool == '{pool}'"
    request = {"name": "r", "exactly": {"deviceClassName": "any", "selectors": [{"cel": {"expression": expression}}]}}
    container = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": "c"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "c", "resourceClaimName": name}]}
    spec["nodeSelector"] = {"kubernetes.io/hostname": "node-1"}
    return [
        {**api, "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}},
        {**api, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec},
    ]


async def device_status(cluster: LocalCluster, name: str, type_: str) -> JSON:
    """Waits until the only device of the claim has a condition of the type, and returns its status."""

    async def reported() -> JSON | None:
        claim = await cluster.client.get(CLAIMS, name, "default")
        devices = (claim.get("status") or {}).get("devices") or []
        return next((d for d in devices if any(c["type"] == type_ for c in d.get("conditions") or ())), None)

    found: JSON = await cluster.wait(f"{type_} in claim {name}", reported)
    return found


async def everything_the_plugin_does(deployed: Deployed) -> None:
    cluster = deployed.cluster
    async with plugin(deployed) as node:
        await cluster.apply(*pod_with("near", "node-1"))
        await cluster.wait_running("near")
        await device_status(cluster, "near", "Ready")
        Fabric.sick = {"l1"}  # the taint updates the slice

        async def tainted() -> bool:
            return any(d.get("taints") for s in cluster.slices(NAME) for d in s["spec"].get("devices") or ())

        await cluster.wait("the taint", tainted)
        few, Fabric.local = Fabric.local, [*Fabric.local, *(local(f"m{i}") for i in range(MANY))]
        await rescan(node.plugin)
        assert len(cluster.slices(NAME)) > 2, "several slices, some of which are deleted again"
        Fabric.local = few
        await rescan(node.plugin)
        async with controller(deployed):
            await cluster.apply(*pod_with("far", "fabric"))
            await cluster.wait_running("far")
            for name in ("near", "far"):
                await cluster.delete_pod(name)
    async with plugin(deployed):  # the plugin reports the unpublished pool again and updates the event

        async def reported_again() -> bool:
            return ("patch", "", "events") in deployed.used("DaemonSet")

        await cluster.wait("the plugin to patch the event", reported_again)


async def test_the_plugin_uses_all_its_grants_a_grant_by_name_with_this_name_and_needs_no_other_grant(
    deployed: Deployed,
) -> None:
    await everything_the_plugin_does(deployed)
    assert deployed.refused("DaemonSet") == set()
    assert deployed.used("DaemonSet") == deployed.granted("DaemonSet")
    account = deployed.user("DaemonSet")
    assert {q.name for user, q, _ in deployed.requests if user == account and q.sub == "driver"} == {NAME}


async def test_the_controller_uses_all_its_grants_and_needs_no_other_grant(deployed: Deployed) -> None:
    cluster = deployed.cluster
    async with plugin(deployed), controller(deployed) as leader:
        await cluster.apply(*pod_with("far", "fabric"))
        await cluster.wait_running("far")
        await device_status(cluster, "far", ATTACHED)
        # The pool grows to several slices and shrinks again, so slices are updated, created and deleted.
        few, Fabric.remote = Fabric.remote, [*Fabric.remote, *(attached(f"m{i}") for i in range(MANY))]
        await rescan(leader)
        Fabric.remote = few
        await rescan(leader)
        await cluster.delete_pod("far")

        async def unbound() -> bool:
            return ("delete", "", "configmaps") in deployed.used("Deployment")

        await cluster.wait("the record of the binding to be deleted", unbound)
    async with controller(deployed):  # the next leader acquires the Lease
        pass
    assert deployed.refused("Deployment") == set()
    assert deployed.used("Deployment") == deployed.granted("Deployment")


# --- attacks ----------------------------------------------------------------------------------------


def slice_of(name: str = "attack", driver: str = NAME, **where: Any) -> JSON:
    pool = {"name": where.get("nodeName", "node-1"), "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool, "devices": [{"name": "d"}], **(where or {"nodeName": "node-1"})}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


@contextlib.asynccontextmanager
async def client_with_stolen_token(deployed: Deployed, kind: str, pod: JSON | None) -> AsyncIterator[KubeClient]:
    """Returns a client with the token of a pod, or with a token of its account that is not bound to a pod."""
    async with KubeClient(await deployed.config(kind, pod)) as client:
        yield client


async def refusal(call: Awaitable[object]) -> str:
    with pytest.raises((ForbiddenError, InvalidError)) as refused:
        await call
    return str(refused.value)


NODE, CLUSTER = "DaemonSet", "Deployment"


async def test_a_token_without_a_pod_cannot_write_slices(deployed: Deployed) -> None:
    async with client_with_stolen_token(deployed, NODE, None) as client:
        assert "the token carries no node name" in await refusal(client.create(SLICES, slice_of()))


async def test_a_token_is_invalid_after_the_end_of_its_pod(deployed: Deployed) -> None:
    pod = await deployed.pod(NODE, "node-1")
    async with client_with_stolen_token(deployed, NODE, pod) as client:
        await client.create(SLICES, slice_of())
        meta = pod["metadata"]
        await deployed.cluster.client.delete(PODS, meta["name"], meta["namespace"], grace=0)
        with pytest.raises(UnauthorizedError):
            await client.get(SLICES, "attack")


@pytest.mark.parametrize("kind", [NODE, CLUSTER])
async def test_accounts_of_the_driver_cannot_access_other_objects(deployed: Deployed, kind: str) -> None:
    secrets = SECRETS
    roles = Resource("rbac.authorization.k8s.io", "v1", "clusterroles")
    policies = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies")
    namespace, account = deployed.account(kind)
    async with client_with_stolen_token(
        deployed, kind, await deployed.pod(kind, "node-1" if kind == NODE else "")
    ) as client:
        for resource, place in ((secrets, namespace), (secrets, ""), (PODS, namespace), (roles, ""), (policies, "")):
            assert "cannot list resource" in await refusal(client.list(resource, place))
        for policy in (o for o in deployed.objects if o["kind"] == "ValidatingAdmissionPolicy"):
            await refusal(client.delete(policies, policy["metadata"]["name"]))
        token = Resource("", "v1", "serviceaccounts", namespaced=True).path(namespace, account, "token")
        await refusal(client.call("POST", token, {"spec": {}}))


async def test_a_plugin_cannot_impersonate_an_administrator(deployed: Deployed) -> None:
    curl = ApiCaller(deployed.cluster.api)
    token = await deployed.token(NODE, await deployed.pod(NODE, "node-1"))
    for headers in (
        {"Impersonate-User": "kubernetes-admin"},
        {"Impersonate-User": "me", "Impersonate-Group": "system:masters"},
    ):
        response = await curl("GET", "/api/v1/secrets", headers={"Authorization": f"Bearer {token}", **headers})
        assert (response.status, "cannot impersonate" in response.message) == (403, True)


async def test_policies_see_cluster_components_with_their_own_user_names() -> None:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    names = ["system:kube-scheduler", "system:kube-controller-manager", "system:node:node-1", "kubernetes-admin"]
    expression = f"request.userInfo.username in {names} && !('system:masters' in request.userInfo.groups && request.userInfo.username != 'kubernetes-admin')"
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "known"}}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": expression}]}
    async with LocalCluster() as cluster:
        await cluster.apply({**head, "kind": "ValidatingAdmissionPolicy", "spec": spec})
        binding = {"policyName": "known", "validationActions": ["Deny"]}
        await cluster.apply({**head, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding})
        container = {"name": "c", "image": "busybox"}
        await cluster.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
        )
        await cluster.wait_running("p")
        await cluster.delete_pod("p")
