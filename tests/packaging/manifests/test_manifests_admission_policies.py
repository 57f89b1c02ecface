"""The admission policies, evaluated by Google's CEL: who may write which ResourceSlices, claim statuses and Events."""

from __future__ import annotations

import pytest

from tests.packaging.manifests.admission import denials, policies
from tests.packaging.manifests.rendering import JSON

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
    """As the API server authenticates a name; with ``node`` and ``pod`` as tokens that are bound to them say."""
    extra = ({POD: ["p"]} if pod else {}) | ({NODE: [node]} if node else {})
    kind = {"serviceaccount": "system:serviceaccounts", "node": "system:nodes"}.get(
        name.split(":")[1] if ":" in name else ""
    )
    groups = [kind] if kind else ["system:masters"] if name == "admin" else []
    return {"username": name, "groups": [*groups, "system:authenticated"]} | ({"extra": extra} if extra else {})


def admission(operation: str, who: JSON, obj: JSON, old: JSON | None = None) -> JSON:
    """A request with the object, or on it; ``old`` is what an update changes, the same when left out."""
    out = {"operation": operation, "userInfo": who}
    if operation != "DELETE":
        out["object"] = obj
    if operation != "CREATE":
        out["oldObject"] = obj if old is None else old
    return out


def slice_of(driver: str = DRIVER, pool: str = "n1", **where: object) -> JSON:
    return {"spec": {"driver": driver, "pool": {"name": pool, "generation": 10**9}, **(where or {"nodeName": "n1"})}}


def judged(request: JSON, *drivers: JSON) -> list[str]:
    return denials(policies(*(drivers or ({},))), "resourceslices", request)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("who", "what", "says"),
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
def test_an_account_writes_slices_of_its_own_driver_and_place(operation: str, who: JSON, what: JSON, says: str) -> None:
    said = judged(admission(operation, who, what))
    assert [s.startswith(f"npu-resourceslices: {says}") for s in said] == ([True] if says else []), said


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("who", [user(RENAMED, "n1", pod=True), user(FPGA, "n1", pod=True), user(RENAMED)])
def test_no_other_service_account_writes_slices_of_the_driver(operation: str, where: str, who: JSON) -> None:
    """Also not an account that was renamed or moved by a kustomization: the message names the expected account."""
    (said,) = judged(admission(operation, who, slice_of(**WHERE[where])))
    assert "are written by system:serviceaccount:npu-system:npu" in said


@pytest.mark.parametrize("who", [user(RENAMED, "n1", pod=True), user(PLUGIN, "n1"), user(CONTROLLER)])
@pytest.mark.parametrize(("new", "old"), [("gpu.example.com", DRIVER), (DRIVER, "gpu.example.com")])
def test_no_update_takes_a_slice_from_a_driver_or_gives_it_one(who: JSON, new: str, old: str) -> None:
    for where in WHERE.values():
        assert judged(admission("UPDATE", who, slice_of(new, **where), slice_of(old, **where)))


@pytest.mark.parametrize("who", [user(PLUGIN, "n1"), user(PLUGIN, "n2"), user(CONTROLLER), user("system:node:n1")])
@pytest.mark.parametrize(("new", "old"), [("n1", "n2"), ("n1", ""), ("", "n1")])
def test_no_update_moves_a_slice_to_another_node(who: JSON, new: str, old: str) -> None:
    def at(node: str) -> JSON:
        return slice_of(**({"nodeName": node} if node else {"allNodes": True}))

    (said,) = judged(admission("UPDATE", who, at(new), at(old)))
    assert said == "npu-resourceslices: a ResourceSlice may not be moved to another node"


@pytest.mark.parametrize("who", [user(PLUGIN, "n1"), user("system:node:n1")])
@pytest.mark.parametrize("pool", ["n2", "n10", "n1-x", "n1.x", "n10/a", "serial-77", "n2/n1", "x/n1"])
def test_a_pool_of_a_node_begins_with_its_name(who: JSON, pool: str) -> None:
    for operation in ("CREATE", "UPDATE"):
        (said,) = judged(admission(operation, who, slice_of(pool=pool)))
        assert f"pool {pool} on node n1: the name must be n1 or begin with n1/" in said
    # Plugin and kubelet can still remove such slices.
    assert judged(admission("DELETE", who, slice_of(pool=pool))) == []


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("where", WHERE)
def test_administrators_are_not_limited(operation: str, where: str) -> None:
    """Users are limited by RBAC alone; a service account is not limited where RBAC lets it change the policy itself."""
    what = slice_of(pool="any", **WHERE[where])
    assert judged(admission(operation, user("admin"), what)) == []
    for account in (COLLECTOR, RENAMED):
        request = admission(operation, user(account), what)
        assert judged(request) != []
        assert judged(request | {"may": "fpga-resourceslices"}) != []
        assert judged(request | {"may": "npu-resourceslices"}) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_of_two_drivers_is_judged_by_its_own_policies_alone(operation: str) -> None:
    both = ({}, OTHER)
    assert len({p["metadata"]["name"] for p in policies(*both)}) == 6
    assert judged(admission(operation, user(PLUGIN, "n1"), slice_of()), *both) == []
    assert judged(admission(operation, user(FPGA, "n1"), slice_of("fpga.example.com")), *both) == []
    stolen = judged(admission(operation, user(FPGA, "n1"), slice_of()), *both)
    assert any(s.startswith("fpga-resourceslices: this service account may write") for s in stolen)
    assert any(s.startswith("npu-resourceslices: slices of npu.example.com on a node are written by") for s in stolen)
    other = user("system:serviceaccount:x:gpu", "n1")
    assert judged(admission(operation, other, slice_of("gpu.example.com")), *both) == []


# --- claims -------------------------------------------------------------------------------------------


def claim(*devices: JSON, node: str = "n1", **status: object) -> JSON:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}} if node else {}
    return {"status": {"allocation": {"devices": {}, **selector}, "devices": list(devices), **status}}


def told(driver: str = DRIVER, **data: object) -> JSON:
    return {"driver": driver, "pool": "n1", "device": "d", "data": data}


THEIRS = told("gpu.example.com", a=1)
BY = [{"resource": "pods", "name": "p", "uid": "u"}]
STATUS = [
    (claim(), claim(told()), ""),
    (claim(told(a=1)), claim(told(a=2)), ""),
    (claim(told(), THEIRS), claim(THEIRS), ""),
    (claim(reservedFor=BY), claim(told(), reservedFor=BY), ""),
    (claim(node=""), claim(told(), node=""), ""),
    ({}, claim(), "may not change the allocation"),
    (claim(), {"status": {}}, "may not change the allocation"),
    (claim(), claim(node="n2"), "may not change the allocation"),
    (claim(reservedFor=BY), claim(), "may not change the allocation"),
    (claim(), claim(reservedFor=BY), "may not change the allocation"),
    (claim(), claim(THEIRS), "may change status.devices of driver npu.example.com only"),
    (claim(THEIRS), claim(), "may change status.devices of driver npu.example.com only"),
    (claim(THEIRS), claim(told("gpu.example.com", a=2)), "may change status.devices of driver npu.example.com only"),
]


@pytest.mark.parametrize("who", [user(PLUGIN, "n1"), user(CONTROLLER)])
@pytest.mark.parametrize(("old", "new", "says"), STATUS)
def test_an_account_changes_the_status_of_its_own_devices_only(who: JSON, old: JSON, new: JSON, says: str) -> None:
    said = denials(policies({}), "resourceclaims/status", admission("UPDATE", who, new, old))
    assert [says in s for s in said] == ([True] if says else []), said


@pytest.mark.parametrize(("node", "denied"), [("n1", False), ("n2", True), ("n10", True), ("", False)])
def test_a_plugin_does_not_change_the_status_of_claims_for_other_nodes(node: str, denied: bool) -> None:
    change = claim(told(), node=node), claim(node=node)
    said = denials(policies({}), "resourceclaims/status", admission("UPDATE", user(PLUGIN, "n1"), *change))
    assert bool(said) is denied
    assert denials(policies({}), "resourceclaims/status", admission("UPDATE", user(CONTROLLER), *change)) == []


@pytest.mark.parametrize("who", [user("system:kube-scheduler"), user("admin"), user(FPGA, "n1")])
@pytest.mark.parametrize(("old", "new", "says"), STATUS)
def test_the_status_that_others_write_is_not_judged(who: JSON, old: JSON, new: JSON, says: str) -> None:
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
def test_a_plugin_writes_events_of_its_driver_only(old: JSON, new: JSON, denied: bool) -> None:
    who = user(PLUGIN, "n1")
    assert bool(denials(policies({}), "events", admission("UPDATE", who, new, old))) is denied
    assert bool(denials(policies({}), "events", admission("CREATE", who, new))) is (new != event())
    assert denials(policies({}), "events", admission("UPDATE", user("system:node:n1"), new, old)) == []


def test_policies_see_every_version_and_operation_and_fail_closed() -> None:
    for policy in policies({}):
        (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
        versions, operations = {
            "resourceslices": (["v1", "v1beta2", "v1beta1"], ["CREATE", "UPDATE", "DELETE"]),
            "resourceclaims/status": (["v1", "v1beta2", "v1beta1"], ["UPDATE"]),
            "events": (["v1"], ["CREATE", "UPDATE"]),
        }[rule["resources"][0]]
        assert (rule["apiVersions"], rule["operations"]) == (versions, operations)
        assert policy["spec"]["failurePolicy"] == "Fail"
