"""Attacks on a deployed driver with the tokens of other accounts, against the local API server with RBAC and policies enforced."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.packaging.manifests.values import merged
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import ApiConfig, KubeClient, Resource, Tls
from dra_kubeletplugin.kube.credentials import Token
from dra_kubeletplugin.kube.errors import ForbiddenError, InvalidError
from dra_kubeletplugin.kube.resource import CLAIMS, CONFIG_MAPS, EVENTS, LEASES, SLICES
from dra_kubeletplugin.resourceapi.conversion import convert
from packages.devkit.tests.packaging.manifests.deployed import Deployed
from packages.devkit.tests.packaging.manifests.rendering import LEAST, plain

NAME = "npu.example.com"
VERSIONS = ("v1", "v1beta2", "v1beta1")
RELEASES = ("1.34", "1.35", "1.36", "1.37")
OLDER = {f"resource.k8s.io/{v}": True for v in VERSIONS[1:]}
GATES = {
    "DRAPartitionableDevices": True
}  # The gate is off by default before 1.36. Without it, the field perDeviceNodeSelection does not exist.
PLUGIN, CONTROLLER = "DaemonSet", "Deployment"
EVERY_FEATURE: JSON = {"features": {"controller": True, "deviceStatus": True}}
POLICIES = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies")
HERE = {
    "nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}]
}
SHAPES: dict[str, JSON] = {
    "node": {"nodeName": "node-1"},
    "every": {"allNodes": True},
    "selected": {"nodeSelector": HERE},
    "each": {"perDeviceNodeSelection": True, "devices": [{"name": "ghost", "allNodes": True}]},
}
Client = Callable[[], contextlib.AbstractAsyncContextManager[KubeClient]]


@contextlib.asynccontextmanager
async def deployment(release: str = "1.36", values: JSON | None = None) -> AsyncIterator[Deployed]:
    settings = merged(LEAST, EVERY_FEATURE if values is None else values)
    nodes = ("node-1", "node-2")
    async with LocalCluster(nodes, features=Features.of(release, GATES, OLDER)) as cluster:
        yield await Deployed.on(cluster, plain(settings))


def slice_of(name: str, pool: str = "node-1", driver: str = NAME, **where: Any) -> JSON:
    """Returns a slice with the newest generation of its pool, so that the scheduler sees only the devices of this slice."""
    spec = {"driver": driver, "pool": {"name": pool, "generation": 10**9, "resourceSliceCount": 1}}
    spec |= {"devices": [{"name": "ghost"}], **(where or SHAPES["node"])}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


async def account(cluster: LocalCluster, namespace: str, name: str, *rules: JSON, pod: bool = False) -> KubeClient:
    """Returns a client of a new service account that has these rules in the whole cluster. ``pod`` binds its token to a pod."""
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": f"{namespace}-{name}"}}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{namespace}-{name}"}
    head = {"apiVersion": "v1", "metadata": {"name": name, "namespace": namespace}}
    container = {"name": "c", "image": "busybox"}
    await cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {**head, "kind": "ServiceAccount"},
        {**rbac, "kind": "ClusterRole", "rules": list(rules)},
        {
            **rbac,
            "kind": "ClusterRoleBinding",
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    )
    spec: JSON = {}
    if pod:
        running = {"serviceAccountName": name, "nodeName": "node-1", "containers": [container]}
        (created,) = await cluster.apply({**head, "kind": "Pod", "spec": running})
        spec = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": created["metadata"]["uid"]}}
    accounts = Resource("", "v1", "serviceaccounts", namespaced=True)
    response = await cluster.client.call("POST", accounts.path(namespace, name, "token"), {"spec": spec})
    return KubeClient(ApiConfig(cluster.api.url, Tls(), Token(response["status"]["token"])))


def policy_rule(*verbs: str, group: str = "resource.k8s.io", resource: str = "resourceslices") -> JSON:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


EVERY_VERB = ("get", "list", "create", "update", "patch", "delete", "deletecollection")


async def assert_refused(call: Awaitable[object], expected_text: str) -> None:
    """Checks that the call is denied with this text."""
    with pytest.raises((ForbiddenError, InvalidError)) as denied:
        await call
    assert expected_text in str(denied.value), denied.value


async def create_slices(cluster: LocalCluster) -> dict[str, JSON]:
    """Creates a slice of each shape as an administrator, and returns the slices of the driver."""
    for shape, where in SHAPES.items():
        await cluster.apply(slice_of(f"real-{shape}", "node-1" if shape == "node" else f"pool-{shape}", **where))
    return {s["metadata"]["name"]: s for s in cluster.slices(NAME)}


async def attack_slices(cluster: LocalCluster, attacker: KubeClient, expected_text: str = "") -> None:
    """Tries to create, update and delete every shape of slice in every version. The API server must refuse each request."""
    real = {s["metadata"]["name"]: s for s in cluster.slices(NAME)}
    expected_texts = {"node": "are written by system:serviceaccount:npu-system:npu only"}
    for version in VERSIONS:
        resource = Resource("resource.k8s.io", version, "resourceslices")
        for shape, where in SHAPES.items():
            text = expected_text or expected_texts.get(
                shape, "are written by system:serviceaccount:npu-system:npu-controller only"
            )
            await assert_refused(attacker.create(resource, convert(slice_of("ghost", **where), version)), text)
            seen = await cluster.client.get(resource, f"real-{shape}")
            seen["spec"]["pool"]["generation"] = 2 * 10**9
            await assert_refused(attacker.update(resource, seen), text)
            await assert_refused(attacker.delete(resource, f"real-{shape}"), text)
        with pytest.raises(ApiError):
            await attacker.call("DELETE", resource.path())
    assert {s["metadata"]["name"]: s for s in cluster.slices(NAME)} == real


@pytest.mark.cases(2)
@pytest.mark.parametrize("release", RELEASES)
async def test_pods_of_other_accounts_write_and_delete_no_slice_of_the_driver(release: str) -> None:
    """Finding S6 (a): for every shape and every served version, also without the controller feature."""
    async with deployment(release, {}) as deployed:
        cluster = deployed.cluster
        await create_slices(cluster)
        for pod in (True, False):
            async with await account(
                cluster, f"acme-{pod}".lower(), "gpu", policy_rule(*EVERY_VERB), pod=pod
            ) as attacker:
                await attack_slices(cluster, attacker)
                await attacker.create(
                    SLICES, slice_of(f"own-{pod}".lower(), driver="gpu.example.com")
                )  # a slice of the account's own driver


async def test_an_account_with_the_controllers_name_in_another_namespace_has_no_access() -> None:
    async with deployment(values={}) as deployed:
        cluster = deployed.cluster
        await create_slices(cluster)
        async with await account(cluster, "acme", "npu-controller", policy_rule(*EVERY_VERB)) as attacker:
            await attack_slices(cluster, attacker)


async def test_a_plugin_publishes_no_pool_with_the_name_of_another_node() -> None:
    """Finding S6 (b): a claim on node-1 would use up the real device on node-2."""
    async with deployment() as deployed:
        cluster = deployed.cluster
        async with KubeClient(await deployed.config(PLUGIN, await deployed.pod(PLUGIN, "node-1"))) as plugin:
            for version in VERSIONS:
                resource = Resource("resource.k8s.io", version, "resourceslices")
                for pool in ("node-2", "node-10", "node-1-x", "node-1.x", "node-10/a", "node-2/node-1"):
                    await assert_refused(
                        plugin.create(resource, convert(slice_of("ghost", pool), version)), f"pool {pool} on node"
                    )
                for pool in ("node-1", "node-1/ports"):
                    await plugin.create(resource, convert(slice_of("own", pool), version))
                    await plugin.delete(resource, "own")
            # This slice of an older version has another name. The plugin can delete it, but cannot change it.
            await cluster.apply(slice_of("old", "serial-77"))
            await assert_refused(
                plugin.update(SLICES, await cluster.client.get(SLICES, "old")), "pool serial-77 on node"
            )
            await plugin.delete(SLICES, "old")


async def test_a_plugin_cannot_write_or_delete_slices_of_another_node() -> None:
    async with deployment() as deployed:
        cluster = deployed.cluster
        await create_slices(cluster)
        async with KubeClient(await deployed.config(PLUGIN, await deployed.pod(PLUGIN, "node-2"))) as plugin:
            for shape, where in SHAPES.items():
                text = "of other nodes" if shape == "node" else "npu-controller only"
                await assert_refused(plugin.create(SLICES, slice_of("ghost", **where)), text)
                seen = await cluster.client.get(SLICES, f"real-{shape}")
                seen["metadata"]["labels"] = {"a": "b"}
                await assert_refused(plugin.update(SLICES, seen), text)
                await assert_refused(plugin.delete(SLICES, f"real-{shape}"), text)
        assert len(cluster.slices(NAME)) == len(SHAPES)


async def test_the_cluster_itself_and_administrators_still_delete_slices() -> None:
    """The kubelet of the node, the garbage collector, an administrator and an administrator's service account."""
    # The rule of system:controller:generic-garbage-collector. Source: bootstrappolicy/controller_policy.go of Kubernetes.
    collects = policy_rule("get", "list", "watch", "patch", "update", "delete", group="*", resource="*")
    async with deployment(values={}) as deployed:
        cluster = deployed.cluster
        kubelet = cluster.api.tokens.of_component("system:node:node-1", ["system:nodes"])
        clients = (
            KubeClient(ApiConfig(cluster.api.url, Tls(), Token(kubelet))),
            await account(cluster, "kube-system", "generic-garbage-collector", collects),
            KubeClient(cluster.config),
            await account(cluster, "ops", "admin", policy_rule("*", group="*", resource="*"), pod=True),
        )
        for number, client in enumerate(clients):
            async with client:
                await create_slices(cluster)
                await client.delete(SLICES, "real-node")
                if number:  # A kubelet is authorized only for slices of its own node.
                    for shape in SHAPES.keys() - {"node"}:
                        await client.delete(SLICES, f"real-{shape}")


async def test_a_kubelet_publishes_no_pool_of_another_node() -> None:
    async with deployment(values={}) as deployed:
        token = deployed.cluster.api.tokens.of_component("system:node:node-1", ["system:nodes"])
        async with KubeClient(ApiConfig(deployed.cluster.api.url, Tls(), Token(token))) as kubelet:
            await assert_refused(kubelet.create(SLICES, slice_of("ghost", "node-2")), "pool node-2 on node node-1")


# --- the status of claims -----------------------------------------------------------------------------


async def allocated(cluster: LocalCluster, name: str, node: str = "node-1", driver: str = NAME) -> None:
    """Creates a claim with one device; the claim is not allocated if ``node`` is empty."""
    request = {"name": "r", "exactly": {"deviceClassName": "any"}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    await cluster.apply({**body, "spec": {"devices": {"requests": [request]}}})
    if node:
        await cluster.client.patch(CLAIMS, name, {"status": allocation(node, driver)}, "default", "status")


def allocation(node: str = "node-1", driver: str = NAME) -> JSON:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    result = {"request": "r", "driver": driver, "pool": node, "device": "d"}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}


def report(driver: str = NAME, node: str = "node-1") -> JSON:
    return {"status": {"devices": [{"driver": driver, "pool": node, "device": "d", "data": {"a": 1}}]}}


BY = [{"resource": "pods", "name": "p", "uid": "u"}]
GRANULAR = ("1.36", "1.37")  # the releases in which the API server itself authorizes each part of a claim's status


@pytest.mark.cases(4)
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", [PLUGIN, CONTROLLER])
async def test_an_account_of_the_driver_binds_and_frees_no_claim(release: str, kind: str) -> None:
    """Finding S10. Before 1.36, RBAC grants the whole status of every claim, so only the policy prevents the attack."""
    policy = "npu-resourceclaims' with binding"
    denied = "requires resource=" if release in GRANULAR else policy
    async with deployment(release) as deployed:
        cluster = deployed.cluster
        for name, node in (("held", "node-1"), ("pending", "")):
            await allocated(cluster, name, node)
        await allocated(cluster, "other", "node-1", "gpu.example.com")
        pod = await deployed.pod(kind, "node-1" if kind == PLUGIN else "")
        async with KubeClient(await deployed.config(kind, pod)) as client:

            async def patch(name: str, change: JSON) -> Any:
                return await client.patch(CLAIMS, name, change, "default", "status")

            async def attack() -> None:
                await patch("pending", {"status": allocation()})
                await patch("held", {"status": {"reservedFor": BY}})
                await patch("held", {"status": {"reservedFor": None}})
                await patch("held", {"status": {"allocation": None}})
                await patch("other", report("gpu.example.com"))

            await assert_refused(patch("pending", {"status": allocation()}), denied)
            await assert_refused(patch("held", {"status": {"allocation": None}}), denied)
            await assert_refused(patch("held", {"status": {"reservedFor": BY}}), denied)
            await assert_refused(patch("other", report("gpu.example.com")), denied)
            await patch("held", report())
            if kind == PLUGIN:
                await allocated(cluster, "away", "node-2")
                await assert_refused(patch("away", report(node="node-2")), denied)
            await cluster.client.delete(POLICIES, "npu-resourceclaims")
            if release in GRANULAR:
                await assert_refused(attack(), denied)
            else:
                await attack()  # The finding: without the policy, the API server accepts the attack.


async def test_the_largest_status_stays_within_the_cost_limit_of_policies() -> None:
    """Reports one of 32 devices of two drivers, each with the maximum of data. The API server must still accept the report."""
    names = [(NAME if i % 2 else "gpu.example.com", f"d{i}") for i in range(32)]
    results = [{"request": "r", "driver": d, "pool": "node-1", "device": n} for d, n in names]
    data = {"text": "x" * 9000}
    devices = [{"driver": d, "pool": "node-1", "device": n, "data": data} for d, n in names]
    status: JSON = {"allocation": {**allocation()["allocation"], "devices": {"results": results}}, "devices": devices}
    async with deployment("1.34") as deployed:
        cluster = deployed.cluster
        await allocated(cluster, "large", "")
        await cluster.client.patch(CLAIMS, "large", {"status": status}, "default", "status")
        async with KubeClient(await deployed.config(PLUGIN, await deployed.pod(PLUGIN, "node-1"))) as client:
            own = [*devices[:-1], {**devices[-1], "data": {"text": "y" * 9000}}]
            await client.patch(CLAIMS, "large", {"status": {"devices": own}}, "default", "status")
            theirs = [{**devices[0], "data": {"text": "y" * 9000}}, *devices[1:]]
            expected_text = "may change status.devices of driver npu.example.com only"
            await assert_refused(
                client.patch(CLAIMS, "large", {"status": {"devices": theirs}}, "default", "status"), expected_text
            )


# --- leases, records, events --------------------------------------------------------------------------

BESIDE: JSON = {
    "name": "fpga",
    "driverName": "fpga.example.com",
    "deviceClasses": {},
    "features": {"controller": True, "namespace": False},
}


def lease(name: str, holder: str) -> JSON:
    meta = {"name": name, "namespace": "npu-system"}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": meta,
        "spec": {"holderIdentity": holder},
    }


async def test_a_controller_takes_no_lease_of_another_driver_in_its_namespace() -> None:
    """Finding S8. RBAC cannot limit creation to a name, so accounts can still create leases and ConfigMaps."""
    async with deployment() as deployed:
        cluster = deployed.cluster
        await cluster.apply(*plain(merged(LEAST, BESIDE)))
        created = await cluster.client.create(LEASES, lease("fpga.example.com-controller", "fpga"), "npu-system")
        async with KubeClient(await deployed.config(CONTROLLER, await deployed.pod(CONTROLLER))) as client:
            await assert_refused(client.get(LEASES, "fpga.example.com-controller", "npu-system"), "cannot get resource")
            stolen = {**created, "spec": {"holderIdentity": "npu"}}
            await assert_refused(client.update(LEASES, stolen), "cannot update resource")
            await assert_refused(
                client.delete(LEASES, "fpga.example.com-controller", "npu-system"), "cannot delete resource"
            )
            own = await client.create(LEASES, lease("npu.example.com-controller", "npu"), "npu-system")
            await client.update(LEASES, own)
            head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "kube-system"}}
            await assert_refused(client.create(CONFIG_MAPS, head, "kube-system"), "cannot create resource")
        assert (await cluster.client.get(LEASES, "fpga.example.com-controller", "npu-system"))["spec"] == created[
            "spec"
        ]


async def test_a_plugin_cannot_change_or_imitate_events_of_other_components() -> None:
    def event(name: str, component: str) -> JSON:
        involved = {"kind": "Node", "name": "node-1", "uid": "node-1"}
        head = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"}}
        by = {"source": {"component": component}, "reportingComponent": component}
        return {**head, **by, "involvedObject": involved, "type": "Warning", "reason": "R", "message": "m"}

    async with deployment() as deployed:
        cluster = deployed.cluster
        await cluster.client.create(EVENTS, event("theirs", "kubelet"), "default")
        async with KubeClient(await deployed.config(PLUGIN, await deployed.pod(PLUGIN, "node-1"))) as client:
            denied = "this service account may write Events of its own driver only"
            await assert_refused(client.patch(EVENTS, "theirs", {"message": "all is well"}, "default"), denied)
            await assert_refused(client.patch(EVENTS, "theirs", event("theirs", NAME), "default"), denied)
            await assert_refused(client.create(EVENTS, event("false", "kubelet"), "default"), denied)
            await client.create(EVENTS, event("own", NAME), "default")
            await client.patch(EVENTS, "own", {"count": 2}, "default")
            await assert_refused(client.patch(EVENTS, "own", {"reportingComponent": "kubelet"}, "default"), denied)
