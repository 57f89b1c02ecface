"""Evaluates the ValidatingAdmissionPolicies of ``deploy/`` with Google's CEL implementation, as an API server evaluates them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional

from dra_devkit.packaging.manifests.values import merged
from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.packaging.manifests.rendering import LEAST, plain

EVERY_POLICY: JSON = {"features": {"controller": True, "deviceStatus": True, "events": True}}
_CHECK = cel.Type.Map(cel.Type.STRING, cel.Type.STRING)
"""The type of the API server's ``authorizer`` and its checks: a mapping with the parts of the check.

``may`` names the policies that the user may change.
"""


def _member(name: str, returns: Any, implementation: Callable[..., Any], *parameters: Any) -> Any:
    overload = cel.Overload(f"authorizer_{name}", returns, [_CHECK, *parameters], True, implementation)
    return cel.FunctionDecl(name, [overload])


def _check_part(name: str) -> Any:
    return _member(name, _CHECK, lambda check, value: {**check, name: value}, cel.Type.STRING)


def _is_allowed(check: dict[str, str]) -> bool:
    """Returns whether the user may change the policy: whether ``may`` contains its name."""
    target = check["group"], check["resource"], check["check"]
    assert target == ("admissionregistration.k8s.io", "validatingadmissionpolicies", "patch"), check
    return check["name"] in check["may"].split()


ENV = cel.NewEnv(
    variables=dict.fromkeys(("request", "object", "oldObject", "variables"), cel.Type.DYN) | {"authorizer": _CHECK},
    extensions=[ext_optional.ExtOptional()],
    functions=[
        *(_check_part(name) for name in ("group", "resource", "name", "check")),
        _member("allowed", cel.Type.BOOL, _is_allowed),
    ],
)


def policies(*drivers: JSON) -> list[JSON]:
    """Returns the policies of drivers with these values, which override :data:`LEAST`. Each policy has a binding that denies."""
    return _policies(json.dumps(drivers))


@functools.cache
def _policies(drivers: str) -> list[JSON]:
    found = [m for d in json.loads(drivers) for m in plain(merged(LEAST, merged(d, EVERY_POLICY)))]
    bindings = [m["spec"] for m in found if m["kind"] == "ValidatingAdmissionPolicyBinding"]
    out = [m for m in found if m["kind"] == "ValidatingAdmissionPolicy"]
    assert {b["policyName"] for b in bindings} == {p["metadata"]["name"] for p in out}
    assert all(b["validationActions"] == ["Deny"] for b in bindings)
    return out


@functools.cache
def _compiled(expression: str) -> Any:
    return ENV.compile(expression)


def value(expression: str, data: JSON) -> Any:
    return _compiled(expression).eval(data=data).plain_value()


def denials(policies: list[JSON], resource: str, request: JSON) -> list[str]:
    """Returns the message of each policy that denies a request on ``resource``.

    Args:
        request: ``operation``, ``userInfo``, ``object`` and ``oldObject`` of an admission request, and ``may``: the names of the policies
            that RBAC allows the user to change, separated by spaces.
    """
    out = []
    for policy in policies:
        spec = policy["spec"]
        (rule,) = spec["matchConstraints"]["resourceRules"]
        if resource not in rule["resources"] or request["operation"] not in rule["operations"]:
            continue
        data = {
            "request": {"operation": request["operation"], "userInfo": request["userInfo"]},
            "object": request.get("object"),
            "oldObject": request.get("oldObject"),
            "authorizer": {"may": request.get("may", "")},
        }
        if not all(value(c["expression"], data) for c in spec["matchConditions"]):
            continue
        data["variables"] = {}
        for variable in spec["variables"]:
            data["variables"][variable["name"]] = value(variable["expression"], data)
        for validation in spec["validations"]:
            if not value(validation["expression"], data):
                text = validation.get("message") or value(validation["messageExpression"], data)
                out.append(f"{policy['metadata']['name']}: {text}")
                break
    return out
