"""The tests of a driver on a real cluster. They run in the order of this file.

Each test begins and ends with a deployed driver and without a pod that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .cluster import JSON, POD_NAMESPACE, RESOURCE, Cluster
from .deployment import Deployment

_NO_EXECUTE = "NoExecute"
# A program for the plugin's container: it makes the kernel kill the container's first process with SIGKILL, as when memory runs out. The
# first process ignores a SIGKILL from its own container. So the program limits its CPU time to one second, and sends HTTP requests to it
# until it has used this time.
_KILL = """
import os, resource, time, urllib.request
resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))
port = os.environ["HTTP_ADDRESS"].rpartition(":")[2]
while True:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()
    except OSError:
        time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.remove_all()


def plugin_of(cluster: Cluster, pod: JSON) -> JSON:
    return cluster.plugins()[pod["spec"]["nodeName"]]


def restarts(plugin: JSON) -> int:
    return sum(s["restartCount"] for s in plugin["status"].get("containerStatuses") or [])


def nodes_with_devices(cluster: Cluster) -> list[str]:
    return sorted({d["node"] for d in cluster.devices().values() if d["node"]})


def one_on_each_node(cluster: Cluster) -> list[JSON]:
    return [cluster.start(f"on-{i}", node) for i, node in enumerate(nodes_with_devices(cluster))]


def test_each_plugin_is_ready_and_its_pools_are_complete(cluster: Cluster) -> None:
    assert cluster.plugins()
    assert cluster.devices(), "the driver published no device"
    pools: dict[str, list[JSON]] = {}
    for found in cluster.slices():
        pools.setdefault(found["spec"]["pool"]["name"], []).append(found["spec"]["pool"])
    for name, members in pools.items():
        newest = max(m["generation"] for m in members)
        current = [m for m in members if m["generation"] == newest]
        assert len(current) == current[0]["resourceSliceCount"], f"pool {name} is not complete"


def test_example(cluster: Cluster, example: Path) -> None:
    """The pods of an example of the driver run, and their containers get the devices that were allocated, and no others."""
    documents = [d for d in yaml.safe_load_all(example.read_text()) if d]
    for document in documents:
        if "namespace" in document["metadata"]:
            document["metadata"]["namespace"] = POD_NAMESPACE
    cluster.apply(*documents)
    if not any(d["kind"] in {"Pod", "Deployment", "Job", "DaemonSet", "StatefulSet"} for d in documents):
        return

    def all_run() -> bool:
        phases = [p["status"].get("phase") for p in cluster.pods()]
        assert "Failed" not in phases, f"a pod of {example.name} failed{cluster.state()}"
        return bool(phases) and set(phases) <= {"Running", "Succeeded"}

    cluster.wait(f"the pods of {example.name} run", all_run)
    for pod in cluster.pods():
        if pod["status"]["phase"] == "Running":
            cluster.check_content(pod)


def test_pods_on_each_node_get_different_devices(cluster: Cluster) -> None:
    pods = one_on_each_node(cluster)
    node, devices = pods[0]["spec"]["nodeName"], cluster.devices()
    if sum(d["node"] == node and not d.get("allowMultipleAllocations") for d in devices.values()) > 1:
        pods.append(cluster.start("second", node))
    for pod in pods:
        cluster.check_content(pod)
    got = [d for pod in pods for d in cluster.allocated(pod, pod["spec"]["containers"][0])]
    assert len(got) == len(pods), f"each pod has one device: {got}"
    if not any(devices[d].get("allowMultipleAllocations") for d in got):
        assert len(set(got)) == len(got), f"two pods have one device: {got}"


def test_a_killed_plugin_restarts_and_no_pod_notices(cluster: Cluster) -> None:
    survivor, before = cluster.start("survivor"), cluster.devices().keys()
    plugin = plugin_of(cluster, survivor)
    cluster.run_in_plugin(plugin, _KILL, check=False)

    def restarted() -> JSON | None:
        now = plugin_of(cluster, survivor)
        ready = all(s["ready"] for s in now["status"]["containerStatuses"])
        return now if ready and restarts(now) > restarts(plugin) else None

    now = cluster.wait("the plugin is ready again after SIGKILL", restarted)
    [status] = now["status"]["containerStatuses"]
    assert status["lastState"]["terminated"]["exitCode"] == 137, f"the plugin was not killed: {status['lastState']}"
    cluster.assert_undisturbed(survivor)
    assert cluster.devices().keys() == before
    cluster.check_content(cluster.start("later", survivor["spec"]["nodeName"]))


def test_a_rollout_replaces_the_plugin_and_no_pod_notices(cluster: Cluster, deployment: Deployment) -> None:
    survivors, before = one_on_each_node(cluster), cluster.devices().keys()
    old = {p["metadata"]["uid"] for p in cluster.plugins().values()}
    daemon_set = f"daemonset/{cluster.driver.daemon_set}"
    cluster.kubectl("rollout", "restart", "-n", cluster.driver.namespace, daemon_set)
    cluster.check_content(cluster.start("during"))
    deployment.wait_rolled_out()
    assert not old & {p["metadata"]["uid"] for p in cluster.plugins().values()}
    for pod in survivors:
        cluster.assert_undisturbed(pod)
    assert cluster.devices().keys() == before
    cluster.check_content(cluster.start("after"))


def test_a_deleted_driver_finishes_its_work_when_it_is_installed_again(
    cluster: Cluster, deployment: Deployment
) -> None:
    survivor = cluster.start("survivor")
    deleted = cluster.start("deleted", survivor["spec"]["nodeName"])
    path = f"/api/v1/namespaces/{cluster.driver.namespace}/pods"
    cluster.kubectl("delete", "daemonset", "-n", cluster.driver.namespace, cluster.driver.daemon_set)
    cluster.wait("the plugins end", lambda: not cluster.items(path))
    cluster.kubectl("delete", "pod", "-n", POD_NAMESPACE, "deleted", "--wait=false")
    deployment.apply()
    cluster.wait("the pod that was deleted meanwhile is gone", lambda: cluster.pod("deleted") is None)
    assert cluster.pod("deleted") is None, deleted
    cluster.assert_undisturbed(survivor)
    cluster.check_content(cluster.start("later", survivor["spec"]["nodeName"]))


def test_a_taint_evicts_the_pod_of_its_device(cluster: Cluster) -> None:
    path = cluster.served("devicetaintrules")
    if not path:
        pytest.skip("the cluster does not serve DeviceTaintRule: switch DRADeviceTaintRules on, and its API version")
    pod = cluster.start("evicted")
    [(pool, device)] = cluster.allocated(pod, pod["spec"]["containers"][0])
    name = f"{POD_NAMESPACE}-taint"
    rule = {
        "apiVersion": path.removeprefix("/apis/").rpartition("/")[0],
        "kind": "DeviceTaintRule",
        "metadata": {"name": name},
        "spec": {
            "deviceSelector": {"driver": cluster.driver.name, "pool": pool, "device": device},
            "taint": {"key": f"{POD_NAMESPACE}.example.com/broken", "effect": _NO_EXECUTE},
        },
    }
    cluster.apply(rule, namespace="")
    try:
        cluster.wait("the pod of the tainted device is evicted", lambda: cluster.pod("evicted") is None)
    finally:
        cluster.kubectl("delete", "devicetaintrule", name)


def test_an_extended_resource_gets_a_device(cluster: Cluster) -> None:
    selected = cluster.get(f"{RESOURCE}/deviceclasses/{cluster.driver.device_class}")
    name, resource = f"{POD_NAMESPACE}-extended", f"{POD_NAMESPACE}.example.com/device"
    spec = selected["spec"] | {"extendedResourceName": resource}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    cluster.apply({**kind, "metadata": {"name": name}, "spec": spec}, namespace="")
    try:
        if "extendedResourceName" not in cluster.get(f"{RESOURCE}/deviceclasses/{name}")["spec"]:
            pytest.skip("the cluster drops extendedResourceName: switch DRAExtendedResource on")
        pod = cluster.start("extended", limits={resource: "1"})
        assert len(cluster.allocated(pod, pod["spec"]["containers"][0])) == 1
        cluster.check_content(pod)
        cluster.remove_all()
    finally:
        cluster.kubectl("delete", "deviceclass", name)


def test_admin_access_gets_devices_in_use_and_only_in_an_admin_namespace(cluster: Cluster) -> None:
    user = cluster.start("user")
    node = user["spec"]["nodeName"]
    claim: JSON = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": POD_NAMESPACE}}
    exactly = {"deviceClassName": cluster.driver.device_class, "allocationMode": "All", "adminAccess": True}
    claim["spec"] = {"devices": {"requests": [{"name": "device", "exactly": exactly}]}}
    path = f"{RESOURCE}/namespaces/%s/resourceclaims?dryRun=All"
    status, body = cluster.request("POST", path % POD_NAMESPACE, claim)
    assert status == 201, body
    if "adminAccess" not in body["spec"]["devices"]["requests"][0]["exactly"]:
        pytest.skip("the cluster drops adminAccess: switch DRAAdminAccess on")
    status, body = cluster.request("POST", path % "default", claim)
    assert status in {403, 422}, f"a claim with adminAccess was accepted in the namespace default: {body}"
    admin = cluster.start("admin", node, {"allocationMode": "All", "adminAccess": True})
    got = cluster.allocated(admin, admin["spec"]["containers"][0])
    assert cluster.allocated(user, user["spec"]["containers"][0]) <= got
    cluster.check_content(admin)
    cluster.assert_undisturbed(user)


# --- permissions --------------------------------------------------------------------------------------------


@pytest.fixture(name="token")
def token_fixture(cluster: Cluster) -> tuple[str, str]:
    """The node of a plugin, and a token as the plugin has it."""
    node, plugin = sorted(cluster.plugins().items())[0]
    pod = ("--bound-object-kind", "Pod", "--bound-object-name", plugin["metadata"]["name"])
    return node, token_of(cluster, cluster.driver.namespace, cluster.driver.account, *pod)


def token_of(cluster: Cluster, namespace: str, account: str, *bound: str) -> str:
    return cluster.kubectl("create", "token", "-n", namespace, account, *bound).strip()


def create_slice(cluster: Cluster, token: str, **changes: Any) -> int:
    """Returns the status of an attempt to create a slice, which is never stored."""
    spec = {
        "driver": cluster.driver.name,
        "pool": {"name": changes.get("nodeName", "") or POD_NAMESPACE, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "device"}],
    }
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"generateName": "dra-e2e-"}}
    status, _ = cluster.request("POST", f"{RESOURCE}/resourceslices?dryRun=All", body | {"spec": spec | changes}, token)
    return status


def test_the_plugin_may_write_slices_of_its_own_node_and_driver_only(cluster: Cluster, token: tuple[str, str]) -> None:
    node, own = token
    assert create_slice(cluster, own, nodeName=node) == 201
    unbound = token_of(cluster, cluster.driver.namespace, cluster.driver.account)
    attempts: dict[str, Callable[[], int]] = {
        "of another node": lambda: create_slice(cluster, own, nodeName="dra-e2e-other"),
        "of another driver": lambda: create_slice(cluster, own, nodeName=node, driver="other.example.com"),
        "of no node": lambda: create_slice(cluster, own, allNodes=True),
        "with a token that is bound to no pod": lambda: create_slice(cluster, unbound, nodeName=node),
    }
    accepted = [name for name, attempt in attempts.items() if attempt() not in {403, 422}]
    assert not accepted, f"the plugin may write slices {', '.join(accepted)}: check its ValidatingAdmissionPolicy"


def test_another_account_may_not_write_slices_of_the_driver(cluster: Cluster, token: tuple[str, str]) -> None:
    node, _ = token
    name = f"{POD_NAMESPACE}-slices"
    cluster.kubectl("create", "clusterrole", name, "--verb=create", "--resource=resourceslices.resource.k8s.io")
    account = f"--serviceaccount={POD_NAMESPACE}:default"
    cluster.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", account)
    try:
        intruder = token_of(cluster, POD_NAMESPACE, "default")
        cluster.wait(
            "RBAC lets the other account write slices of other drivers",
            lambda: create_slice(cluster, intruder, nodeName=node, driver="other.example.com") == 201,
        )
        status = create_slice(cluster, intruder, nodeName=node)
        assert status in {403, 422}, "an account without relation to the driver may write its slices"
    finally:
        cluster.kubectl("delete", "clusterrole,clusterrolebinding", name)


@pytest.mark.parametrize(
    "path",
    ["/api/v1/secrets", f"{RESOURCE}/resourceclaims", "/api/v1/pods", "/api/v1/nodes"],
    ids=["secrets", "all claims", "pods", "all nodes"],
)
def test_the_plugin_may_not_list(cluster: Cluster, token: tuple[str, str], path: str) -> None:
    status, body = cluster.request("GET", path, token=token[1])
    assert status == 403, f"the plugin may list {path}: {str(body)[:200]}"
