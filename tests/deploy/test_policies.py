"""The admission policies, judged by Google's CEL: a driver's accounts write their own slices, and nobody else's pods do."""

from __future__ import annotations

from typing import Any

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional

from dra_kubeletplugin.deploying.values import merged

from .rendering import JSON, LEAST, plain

NODE, POD = "authentication.kubernetes.io/node-name", "authentication.kubernetes.io/pod-name"
OTHER = {"name": "fpga", "namespace": "fpga-system", "driverName": "fpga.example.com", "deviceClasses": {}}
WITH_CONTROLLER: JSON = {"features": {"controller": True}}
ENV = cel.NewEnv(
    variables=dict.fromkeys(("request", "object", "oldObject", "variables"), cel.Type.DYN),
    extensions=[ext_optional.ExtOptional()],
)


def policies(*drivers: JSON) -> list[JSON]:
    found = [m for d in drivers for m in plain(merged(LEAST, merged(d, WITH_CONTROLLER)))]
    bound = {m["spec"]["policyName"] for m in found if m["kind"] == "ValidatingAdmissionPolicyBinding"}
    out = [m for m in found if m["kind"] == "ValidatingAdmissionPolicy"]
    assert bound == {p["metadata"]["name"] for p in out}
    return out


def value(expression: str, data: JSON) -> Any:
    return ENV.compile(expression).eval(data=data).plain_value()


def denials(policies: list[JSON], request: JSON) -> list[str]:
    """What each policy that denies says, as an API server evaluates it: conditions, variables, validations in order."""
    out = []
    for policy in policies:
        spec = policy["spec"]
        data = {
            "request": {"operation": request["operation"], "userInfo": request["userInfo"]},
            "object": request.get("object"),
            "oldObject": request.get("oldObject"),
        }
        if not all(value(c["expression"], data) for c in spec["matchConditions"]):
            continue
        data["variables"] = {}
        for variable in spec["variables"]:
            data["variables"][variable["name"]] = value(variable["expression"], data)
        for rule in spec["validations"]:
            if not value(rule["expression"], data):
                text = rule.get("message") or value(rule["messageExpression"], data)
                out.append(f"{policy['metadata']['name']}: {text}")
                break
    return out


def writes(
    operation: str, account: str, *, node: str = "n1", pod: bool = True, driver: str = "npu.example.com", at: str = "n1"
) -> JSON:
    extra = ({POD: ["p"]} if pod else {}) | ({NODE: [node]} if node else {})
    spec = {"driver": driver, "pool": {"name": "p"}} | ({"nodeName": at} if at else {"allNodes": True})
    user = {"username": account} | ({"extra": extra} if extra else {})
    which = "oldObject" if operation == "DELETE" else "object"
    return {"operation": operation, "userInfo": user, which: {"spec": spec}}


PLUGIN, CONTROLLER = "system:serviceaccount:npu-system:npu", "system:serviceaccount:npu-system:npu-controller"
RENAMED = "system:serviceaccount:acme:acme-npu"
FPGA = "system:serviceaccount:fpga-system:fpga"
OPERATIONS = ("CREATE", "UPDATE", "DELETE")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("account", "how", "says"),
    [
        (PLUGIN, {}, ""),
        (PLUGIN, {"at": "n2"}, "npu-resourceslices: pods on node n1 may not write ResourceSlices of other nodes"),
        (PLUGIN, {"at": ""}, "npu-resourceslices: pods on node n1 may not"),
        (PLUGIN, {"node": ""}, "npu-resourceslices: the token carries no node name"),
        (PLUGIN, {"node": "", "pod": False}, "npu-resourceslices: the token carries no node name"),
        (
            PLUGIN,
            {"driver": "gpu.example.com"},
            "npu-resourceslices: this service account may write ResourceSlices of its own",
        ),
        (CONTROLLER, {"at": ""}, ""),
        (
            CONTROLLER,
            {"at": "", "driver": "gpu.example.com"},
            "npu-controller-resourceslices: this service account may write",
        ),
        (CONTROLLER, {}, "npu-controller-resourceslices: slices of a node are written by the plugin on that node"),
    ],
)
def test_an_account_writes_what_is_its_own(operation: str, account: str, how: JSON, says: str) -> None:
    said = denials(policies({}), writes(operation, account, **how))
    assert any(s.startswith(says) for s in said) if says else not said, said


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("at", ["n1", ""])
def test_an_account_that_was_renamed_or_moved_is_told_so_and_not_let_through(operation: str, at: str) -> None:
    """A name prefix, or another namespace, on top of what was rendered."""
    (said,) = denials(policies({}), writes(operation, RENAMED, at=at))
    assert "are written by system:serviceaccount:npu-system:npu" in said


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "account", ["system:node:n1", "system:serviceaccount:kube-system:generic-garbage-collector", "admin"]
)
def test_who_is_no_pod_is_not_judged(operation: str, account: str) -> None:
    for at in ("n1", "n2", ""):
        assert denials(policies({}), writes(operation, account, node="", pod=False, at=at)) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_of_two_drivers_is_judged_by_its_own_policies_alone(operation: str) -> None:
    both = policies({}, OTHER)
    assert len({p["metadata"]["name"] for p in both}) == 4
    assert denials(both, writes(operation, PLUGIN)) == []
    assert denials(both, writes(operation, FPGA, driver="fpga.example.com")) == []
    stolen = denials(both, writes(operation, FPGA))
    assert any(s.startswith("fpga-resourceslices: this service account may write") for s in stolen)
    assert denials(both, writes(operation, "system:serviceaccount:x:gpu", driver="gpu.example.com")) == []


def test_a_pod_that_cleans_up_may_delete_anybodys_slices() -> None:
    assert denials(policies({}), writes("DELETE", RENAMED)) == []


def test_policies_see_every_version_of_slices_and_fail_closed() -> None:
    for policy in policies({}):
        (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
        assert rule["apiVersions"] == ["v1", "v1beta2", "v1beta1"]
        assert rule["operations"] == list(OPERATIONS)
        assert policy["spec"]["failurePolicy"] == "Fail"
