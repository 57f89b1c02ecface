"""Tests with Google's CEL which users the admission policies allow to write ResourceSlices, claim statuses and Events."""

from __future__ import annotations

import pytest

from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.packaging.manifests.admission import denials, policies

NODE, POD = "authentication.kubernetes.io/node-name", "authentication.kubernetes.io/pod-name"
OTHER = {"name": "fpga", "namespace": "fpga-system", "driverName": "fpga.example.com", "deviceClasses": {}}
DRIVER = "npu.example.com"
PLUGIN, CONTROLLER = "system:serviceaccount:npu-system:npu", "system:serviceaccount:npu-system:npu-controller"
RENAMED = "system:serviceaccount:acme:acme-npu"
FPGA = "system:serviceaccount:fpga-system:fpga"
COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
OPERATIONS = ("CREATE", "UPDATE", "DELETE")
WHERE: dict[str, JSON] = {
    "node": {"nodeName": "n1"},
    "all nodes": {"allNodes": True},
    "a selector": {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": []}]}},
    "each device": {"perDeviceNodeSelection": True},
}


def user(name: str, node: str = "", pod: bool = False) -> JSON:
    """Returns the user info of an authenticated name. ``node`` and ``pod`` add the fields of a token that is bound to them."""
    extra = ({POD: ["p"]} if pod else {}) | ({NODE: [node]} if node else {})
    kind = {"serviceaccount": "system:serviceaccounts", "node": "system:nodes"}.get(
        name.split(":")[1] if ":" in name else ""
    )
    groups = [kind] if kind else ["system:masters"] if name == "admin" else []
    return {"username": name, "groups": [*groups, "system:authenticated"]} | ({"extra": extra} if extra else {})


def admission(operation: str, who: JSON, obj: JSON, old: JSON | None = None) -> JSON:
    """Returns an admission request. ``old`` is the object before an update; by default, it is equal to ``obj``."""
    out = {"operation": operation, "userInfo": who}
    if operation != "DELETE":
        out["object"] = obj
    if operation != "CREATE":
        out["oldObject"] = obj if old is None else old
    return out


def slice_of(driver: str = DRIVER, pool: str = "n1", **where: object) -> JSON:
    return {"spec": {"driver": driver, "pool": {"name": pool, "generation": 10**9}, **(where or {"nodeName": "n1"})}}


def slice_denials(request: JSON, *drivers: JSON) -> list[str]:
    return denials(policies(*(drivers or ({},))), "resourceslices", request)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("who", "obj", "expected"),
    [
        (user(PLUGIN, "n1"), slice_of(), ""),
        (user(PLUGIN, "n1"), slice_of(pool="n1/ports"), ""),
        (
            user(PLUGIN, "n1"),
            slice_of(nodeName="n2", pool="n2"),
            "pods on node n1 may not write ResourceSlices of other nodes",
        ),
        (user(PLUGIN, "n1"), slice_of(allNodes=True), "slices of npu.example.com of no single node are written by"),
        (user(PLUGIN, "n1"), slice_of(perDeviceNodeSelection=True), "slices of npu.example.com of no single node"),
        (user(PLUGIN), slice_of(), "the token carries no node name"),
        (user(PLUGIN, "n1"), slice_of("gpu.example.com"), "this service account may write ResourceSlices of its own"),
        (user(CONTROLLER), slice_of(pool="fabric", allNodes=True), ""),
        (user(CONTROLLER), slice_of(pool="fabric", perDeviceNodeSelection=True), ""),
        (user(CONTROLLER), slice_of("gpu.example.com", allNodes=True), "this service account may write"),
        (user(CONTROLLER), slice_of(), "slices of npu.example.com on a node are written by"),
        (user("system:node:n1"), slice_of(), ""),
        (user("system:node:n1"), slice_of(allNodes=True), "slices of npu.example.com of no single node are written by"),
    ],
)
def test_an_account_can_only_write_slices_of_its_own_driver_and_place(
    operation: str, who: JSON, obj: JSON, expected: str
) -> None:
    messages = slice_denials(admission(operation, who, obj))
    assert [s.startswith(f"npu-resourceslices: {expected}") for s in messages] == ([True] if expected else []), messages


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("who", [user(RENAMED, "n1", pod=True), user(FPGA, "n1", pod=True), user(RENAMED)])
def test_other_service_accounts_cannot_write_slices_of_the_driver(operation: str, where: str, who: JSON) -> None:
    """This includes an account that a kustomization has renamed or moved: the message names the expected account."""
    (message,) = slice_denials(admission(operation, who, slice_of(**WHERE[where])))
    assert "are written by system:serviceaccount:npu-system:npu" in message


@pytest.mark.parametrize("who", [user(RENAMED, "n1", pod=True), user(PLUGIN, "n1"), user(CONTROLLER)])
@pytest.mark.parametrize(("new", "old"), [("gpu.example.com", DRIVER), (DRIVER, "gpu.example.com")])
def test_an_update_cannot_change_the_driver_of_a_slice(who: JSON, new: str, old: str) -> None:
    for where in WHERE.values():
        assert slice_denials(admission("UPDATE", who, slice_of(new, **where), slice_of(old, **where)))


@pytest.mark.parametrize("who", [user(PLUGIN, "n1"), user(PLUGIN, "n2"), user(CONTROLLER), user("system:node:n1")])
@pytest.mark.parametrize(("new", "old"), [("n1", "n2"), ("n1", ""), ("", "n1")])
def test_an_update_cannot_move_a_slice_to_another_node(who: JSON, new: str, old: str) -> None:
    def at(node: str) -> JSON:
        return slice_of(**({"nodeName": node} if node else {"allNodes": True}))

    (message,) = slice_denials(admission("UPDATE", who, at(new), at(old)))
    assert message == "npu-resourceslices: a ResourceSlice may not be moved to another node"


@pytest.mark.parametrize("who", [user(PLUGIN, "n1"), user("system:node:n1")])
@pytest.mark.parametrize("pool", ["n2", "n10", "n1-x", "n1.x", "n10/a", "serial-77", "n2/n1", "x/n1"])
def test_the_name_of_a_pool_must_begin_with_its_node(who: JSON, pool: str) -> None:
    for operation in ("CREATE", "UPDATE"):
        (message,) = slice_denials(admission(operation, who, slice_of(pool=pool)))
        assert f"pool {pool} on node n1: the name must be n1 or begin with n1/" in message
    # The plugin and the kubelet can still delete such slices.
    assert slice_denials(admission("DELETE", who, slice_of(pool=pool))) == []


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("where", WHERE)
def test_policies_do_not_limit_administrators(operation: str, where: str) -> None:
    """Only RBAC limits users. The policy does not limit service accounts that RBAC allows to change the policy itself."""
    obj = slice_of(pool="any", **WHERE[where])
    assert slice_denials(admission(operation, user("admin"), obj)) == []
    for account in (COLLECTOR, RENAMED):
        request = admission(operation, user(account), obj)
        assert slice_denials(request) != []
        assert slice_denials(request | {"may": "fpga-resourceslices"}) != []
        assert slice_denials(request | {"may": "npu-resourceslices"}) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_policies_of_two_drivers_are_independent(operation: str) -> None:
    both = ({}, OTHER)
    assert len({p["metadata"]["name"] for p in policies(*both)}) == 6
    assert slice_denials(admission(operation, user(PLUGIN, "n1"), slice_of()), *both) == []
    assert slice_denials(admission(operation, user(FPGA, "n1"), slice_of("fpga.example.com")), *both) == []
    stolen = slice_denials(admission(operation, user(FPGA, "n1"), slice_of()), *both)
    assert any(s.startswith("fpga-resourceslices: this service account may write") for s in stolen)
    assert any(s.startswith("npu-resourceslices: slices of npu.example.com on a node are written by") for s in stolen)
    other = user("system:serviceaccount:x:gpu", "n1")
    assert slice_denials(admission(operation, other, slice_of("gpu.example.com")), *both) == []


# --- claims -------------------------------------------------------------------------------------------


def claim(*devices: JSON, node: str = "n1", **status: object) -> JSON:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}} if node else {}
    return {"status": {"allocation": {"devices": {}, **selector}, "devices": list(devices), **status}}


def device_status(driver: str = DRIVER, **data: object) -> JSON:
    return {"driver": driver, "pool": "n1", "device": "d", "data": data}


OTHER_STATUS = device_status("gpu.example.com", a=1)
BY = [{"resource": "pods", "name": "p", "uid": "u"}]
STATUS = [
    (claim(), claim(device_status()), ""),
    (claim(device_status(a=1)), claim(device_status(a=2)), ""),
    (claim(device_status(), OTHER_STATUS), claim(OTHER_STATUS), ""),
    (claim(reservedFor=BY), claim(device_status(), reservedFor=BY), ""),
    (claim(node=""), claim(device_status(), node=""), ""),
    ({}, claim(), "may not change the allocation"),
    (claim(), {"status": {}}, "may not change the allocation"),
    (claim(), claim(node="n2"), "may not change the allocation"),
    (claim(reservedFor=BY), claim(), "may not change the allocation"),
    (claim(), claim(reservedFor=BY), "may not change the allocation"),
    (claim(), claim(OTHER_STATUS), "may change status.devices of driver npu.example.com only"),
    (claim(OTHER_STATUS), claim(), "may change status.devices of driver npu.example.com only"),
    (
        claim(OTHER_STATUS),
        claim(device_status("gpu.example.com", a=2)),
        "may change status.devices of driver npu.example.com only",
    ),
]


@pytest.mark.parametrize("who", [user(PLUGIN, "n1"), user(CONTROLLER)])
@pytest.mark.parametrize(("old", "new", "expected"), STATUS)
def test_an_account_can_only_change_the_status_of_its_own_devices(
    who: JSON, old: JSON, new: JSON, expected: str
) -> None:
    messages = denials(policies({}), "resourceclaims/status", admission("UPDATE", who, new, old))
    assert [expected in s for s in messages] == ([True] if expected else []), messages


@pytest.mark.parametrize(("node", "denied"), [("n1", False), ("n2", True), ("n10", True), ("", False)])
def test_a_plugin_cannot_change_the_status_of_claims_for_other_nodes(node: str, denied: bool) -> None:
    change = claim(device_status(), node=node), claim(node=node)
    messages = denials(policies({}), "resourceclaims/status", admission("UPDATE", user(PLUGIN, "n1"), *change))
    assert bool(messages) is denied
    assert denials(policies({}), "resourceclaims/status", admission("UPDATE", user(CONTROLLER), *change)) == []


@pytest.mark.parametrize("who", [user("system:kube-scheduler"), user("admin"), user(FPGA, "n1")])
@pytest.mark.parametrize(("old", "new"), [(old, new) for old, new, _ in STATUS])
def test_policies_do_not_limit_the_status_that_other_users_write(who: JSON, old: JSON, new: JSON) -> None:
    assert denials(policies({}), "resourceclaims/status", admission("UPDATE", who, new, old)) == []


# --- Events -------------------------------------------------------------------------------------------


def event(component: str = DRIVER, controller: str = DRIVER) -> JSON:
    return {"source": {"component": component}, "reportingComponent": controller}


@pytest.mark.parametrize(
    ("old", "new", "denied"),
    [
        (event(), event(), False),
        (event("kubelet"), event(), True),
        (event(), event("kubelet"), True),
        (event(controller="kubelet"), event(), True),
        (event(), event(controller=""), True),
        ({}, event(), True),
        (event(), {}, True),
    ],
)
def test_a_plugin_can_only_write_events_of_its_driver(old: JSON, new: JSON, denied: bool) -> None:
    who = user(PLUGIN, "n1")
    assert bool(denials(policies({}), "events", admission("UPDATE", who, new, old))) is denied
    assert bool(denials(policies({}), "events", admission("CREATE", who, new))) is (new != event())
    assert denials(policies({}), "events", admission("UPDATE", user("system:node:n1"), new, old)) == []


def test_policies_match_every_version_and_operation_and_fail_closed() -> None:
    for policy in policies({}):
        (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
        versions, operations = {
            "resourceslices": (["v1", "v1beta2", "v1beta1"], ["CREATE", "UPDATE", "DELETE"]),
            "resourceclaims/status": (["v1", "v1beta2", "v1beta1"], ["UPDATE"]),
            "events": (["v1"], ["CREATE", "UPDATE"]),
        }[rule["resources"][0]]
        assert (rule["apiVersions"], rule["operations"]) == (versions, operations)
        assert policy["spec"]["failurePolicy"] == "Fail"
