"""Attacks on a deployed driver with the tokens of other accounts, against the local API server with RBAC and policies enforced."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import ApiConfig, KubeClient, Resource, Tls
from dra_kubeletplugin.kube.credentials import Token
from dra_kubeletplugin.kube.errors import ForbiddenError, InvalidError
from dra_kubeletplugin.kube.resource import CLAIMS, CONFIG_MAPS, EVENTS, LEASES, SLICES
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.packaging.manifests.values import merged
from dra_kubeletplugin.resourceapi.conversion import convert
from dra_kubeletplugin.resourceapi.kubernetes_releases import Features
from tests.packaging.manifests.deployed import Deployed
from tests.packaging.manifests.rendering import JSON, LEAST, plain

NAME = "npu.example.com"
VERSIONS = ("v1", "v1beta2", "v1beta1")
RELEASES = ("1.34", "1.35", "1.36", "1.37")
OLDER = {f"resource.k8s.io/{v}": True for v in VERSIONS[1:]}
GATES = {"DRAPartitionableDevices": True}  # off by default before 1.36: without it there is no perDeviceNodeSelection
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
    given = merged(LEAST, EVERY_FEATURE if values is None else values)
    nodes = ("node-1", "node-2")
    async with LocalCluster(nodes, features=Features.of(release, GATES, OLDER)) as cluster:
        yield await Deployed.on(cluster, plain(given))


def slice_of(name: str, pool: str = "node-1", driver: str = NAME, **where: Any) -> JSON:
    """A slice that outdates every other one of the pool: its devices are the only ones that the scheduler sees."""
    spec = {"driver": driver, "pool": {"name": pool, "generation": 10**9, "resourceSliceCount": 1}}
    spec |= {"devices": [{"name": "ghost"}], **(where or SHAPES["node"])}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


async def account(cluster: LocalCluster, namespace: str, name: str, *rules: JSON, pod: bool = False) -> KubeClient:
    """A client with a token of a new service account that has these rules in the whole cluster; bound to a pod of it or to none."""
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
        (made,) = await cluster.apply({**head, "kind": "Pod", "spec": running})
        spec = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": made["metadata"]["uid"]}}
    accounts = Resource("", "v1", "serviceaccounts", namespaced=True)
    answer = await cluster.client.call("POST", accounts.path(namespace, name, "token"), {"spec": spec})
    return KubeClient(ApiConfig(cluster.api.url, Tls(), Token(answer["status"]["token"])))


def may(*verbs: str, group: str = "resource.k8s.io", resource: str = "resourceslices") -> JSON:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


EVERY_VERB = ("get", "list", "create", "update", "patch", "delete", "deletecollection")


async def refused(call: Awaitable[object], why: str) -> None:
    """The call ends in a denial with this text."""
    with pytest.raises((ForbiddenError, InvalidError)) as denied:
        await call
    assert why in str(denied.value), denied.value


async def published(cluster: LocalCluster) -> dict[str, JSON]:
    """What there is of the driver: a slice of each shape, written by an administrator."""
    for shape, where in SHAPES.items():
        await cluster.apply(slice_of(f"real-{shape}", "node-1" if shape == "node" else f"pool-{shape}", **where))
    return {s["metadata"]["name"]: s for s in cluster.slices(NAME)}


async def attack_slices(cluster: LocalCluster, attacker: KubeClient, why: str = "") -> None:
    """Tries to create, update, patch and delete every shape of slice in every version; all of it must be refused."""
    real = {s["metadata"]["name"]: s for s in cluster.slices(NAME)}
    whys = {"node": "are written by system:serviceaccount:npu-system:npu only"}
    for version in VERSIONS:
        resource = Resource("resource.k8s.io", version, "resourceslices")
        for shape, where in SHAPES.items():
            said = why or whys.get(shape, "are written by system:serviceaccount:npu-system:npu-controller only")
            await refused(attacker.create(resource, convert(slice_of("ghost", **where), version)), said)
            seen = await cluster.client.get(resource, f"real-{shape}")
            seen["spec"]["pool"]["generation"] = 2 * 10**9
            await refused(attacker.update(resource, seen), said)
            await refused(attacker.delete(resource, f"real-{shape}"), said)
        with pytest.raises(ApiError):
            await attacker.call("DELETE", resource.path())
    assert {s["metadata"]["name"]: s for s in cluster.slices(NAME)} == real


@pytest.mark.cases(2)
@pytest.mark.parametrize("release", RELEASES)
async def test_pods_of_other_accounts_write_and_delete_no_slice_of_the_driver(release: str) -> None:
    """Finding S6 (a): without the controller feature too, of every shape, in every served version."""
    async with deployment(release, {}) as deployed:
        cluster = deployed.cluster
        await published(cluster)
        for pod in (True, False):
            async with await account(cluster, f"acme-{pod}".lower(), "gpu", may(*EVERY_VERB), pod=pod) as attacker:
                await attack_slices(cluster, attacker)
                await attacker.create(
                    SLICES, slice_of(f"own-{pod}".lower(), driver="gpu.example.com")
                )  # its own driver


async def test_an_account_of_the_controllers_name_elsewhere_is_another_account() -> None:
    async with deployment(values={}) as deployed:
        cluster = deployed.cluster
        await published(cluster)
        async with await account(cluster, "acme", "npu-controller", may(*EVERY_VERB)) as attacker:
            await attack_slices(cluster, attacker)


async def test_a_plugin_publishes_no_pool_with_the_name_of_another_node() -> None:
    """Finding S6 (b): a claim would take the device on node-1, and node-2's real one would be used up."""
    async with deployment() as deployed:
        cluster = deployed.cluster
        async with KubeClient(await deployed.config(PLUGIN, await deployed.pod(PLUGIN, "node-1"))) as plugin:
            for version in VERSIONS:
                resource = Resource("resource.k8s.io", version, "resourceslices")
                for pool in ("node-2", "node-10", "node-1-x", "node-1.x", "node-10/a", "node-2/node-1"):
                    await refused(
                        plugin.create(resource, convert(slice_of("ghost", pool), version)), f"pool {pool} on node"
                    )
                for pool in ("node-1", "node-1/ports"):
                    await plugin.create(resource, convert(slice_of("own", pool), version))
                    await plugin.delete(resource, "own")
            # A slice of an older version with another name: the plugin deletes it and cannot change it.
            await cluster.apply(slice_of("old", "serial-77"))
            await refused(plugin.update(SLICES, await cluster.client.get(SLICES, "old")), "pool serial-77 on node")
            await plugin.delete(SLICES, "old")


async def test_the_plugin_of_another_node_writes_and_deletes_nothing_here() -> None:
    async with deployment() as deployed:
        cluster = deployed.cluster
        await published(cluster)
        async with KubeClient(await deployed.config(PLUGIN, await deployed.pod(PLUGIN, "node-2"))) as plugin:
            for shape, where in SHAPES.items():
                said = "of other nodes" if shape == "node" else "npu-controller only"
                await refused(plugin.create(SLICES, slice_of("ghost", **where)), said)
                seen = await cluster.client.get(SLICES, f"real-{shape}")
                seen["metadata"]["labels"] = {"a": "b"}
                await refused(plugin.update(SLICES, seen), said)
                await refused(plugin.delete(SLICES, f"real-{shape}"), said)
        assert len(cluster.slices(NAME)) == len(SHAPES)


async def test_the_cluster_itself_and_administrators_still_delete_slices() -> None:
    """The kubelet of the node, the garbage collector, an administrator and an administrator's service account."""
    # As system:controller:generic-garbage-collector has it. Source: bootstrappolicy/controller_policy.go of Kubernetes.
    collects = may("get", "list", "watch", "patch", "update", "delete", group="*", resource="*")
    async with deployment(values={}) as deployed:
        cluster = deployed.cluster
        kubelet = cluster.api.tokens.of_component("system:node:node-1", ["system:nodes"])
        clients = (
            KubeClient(ApiConfig(cluster.api.url, Tls(), Token(kubelet))),
            await account(cluster, "kube-system", "generic-garbage-collector", collects),
            KubeClient(cluster.config),
            await account(cluster, "ops", "admin", may("*", group="*", resource="*"), pod=True),
        )
        for number, client in enumerate(clients):
            async with client:
                await published(cluster)
                await client.delete(SLICES, "real-node")
                if number:  # a kubelet is authorized for slices of its own node only
                    for shape in SHAPES.keys() - {"node"}:
                        await client.delete(SLICES, f"real-{shape}")


async def test_a_kubelet_publishes_no_pool_of_another_node_either() -> None:
    async with deployment(values={}) as deployed:
        token = deployed.cluster.api.tokens.of_component("system:node:node-1", ["system:nodes"])
        async with KubeClient(ApiConfig(deployed.cluster.api.url, Tls(), Token(token))) as kubelet:
            await refused(kubelet.create(SLICES, slice_of("ghost", "node-2")), "pool node-2 on node node-1")


# --- the status of claims -----------------------------------------------------------------------------


async def allocated(cluster: LocalCluster, name: str, node: str = "node-1", driver: str = NAME) -> None:
    """A claim with one device; not allocated where ``node`` is empty."""
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
GRANULAR = ("1.36", "1.37")  # releases in which the API server itself authorizes each part of a claim's status


@pytest.mark.cases(4)
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", [PLUGIN, CONTROLLER])
async def test_an_account_of_the_driver_binds_and_frees_no_claim(release: str, kind: str) -> None:
    """Finding S10. Before 1.36 RBAC grants the whole status of every claim: only the policy stands in the way."""
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

            await refused(patch("pending", {"status": allocation()}), denied)
            await refused(patch("held", {"status": {"allocation": None}}), denied)
            await refused(patch("held", {"status": {"reservedFor": BY}}), denied)
            await refused(patch("other", report("gpu.example.com")), denied)
            await patch("held", report())
            if kind == PLUGIN:
                await allocated(cluster, "away", "node-2")
                await refused(patch("away", report(node="node-2")), denied)
            await cluster.client.delete(POLICIES, "npu-resourceclaims")
            if release in GRANULAR:
                await refused(attack(), denied)
            else:
                await attack()  # the finding: nothing else refuses it


async def test_the_largest_status_costs_no_more_than_a_policy_may() -> None:
    """32 devices of two drivers, each with as much data as one may have: the report of one device is still accepted."""
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
            why = "may change status.devices of driver npu.example.com only"
            await refused(client.patch(CLAIMS, "large", {"status": {"devices": theirs}}, "default", "status"), why)


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
    """Finding S8. RBAC cannot limit a creation to a name, and a ConfigMap's name is not known beforehand: both stay possible."""
    async with deployment() as deployed:
        cluster = deployed.cluster
        await cluster.apply(*plain(merged(LEAST, BESIDE)))
        made = await cluster.client.create(LEASES, lease("fpga.example.com-controller", "fpga"), "npu-system")
        async with KubeClient(await deployed.config(CONTROLLER, await deployed.pod(CONTROLLER))) as client:
            await refused(client.get(LEASES, "fpga.example.com-controller", "npu-system"), "cannot get resource")
            stolen = {**made, "spec": {"holderIdentity": "npu"}}
            await refused(client.update(LEASES, stolen), "cannot update resource")
            await refused(client.delete(LEASES, "fpga.example.com-controller", "npu-system"), "cannot delete resource")
            own = await client.create(LEASES, lease("npu.example.com-controller", "npu"), "npu-system")
            await client.update(LEASES, own)
            head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "kube-system"}}
            await refused(client.create(CONFIG_MAPS, head, "kube-system"), "cannot create resource")
        assert (await cluster.client.get(LEASES, "fpga.example.com-controller", "npu-system"))["spec"] == made["spec"]


async def test_a_plugin_changes_and_imitates_no_event_of_others() -> None:
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
            await refused(client.patch(EVENTS, "theirs", {"message": "all is well"}, "default"), denied)
            await refused(client.patch(EVENTS, "theirs", event("theirs", NAME), "default"), denied)
            await refused(client.create(EVENTS, event("false", "kubelet"), "default"), denied)
            await client.create(EVENTS, event("own", NAME), "default")
            await client.patch(EVENTS, "own", {"count": 2}, "default")
            await refused(client.patch(EVENTS, "own", {"reportingComponent": "kubelet"}, "default"), denied)
