"""ValidatingAdmissionPolicies as the API server enforces them: matching, the variables of expressions, and messages."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin.base.json_types import JSON
from tests.helpers.api_server import ApiCaller, ApiResponse

GROUP = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
SLICES = "/apis/resource.k8s.io/{}/resourceslices"
POOL = {"name": "n", "generation": 1, "resourceSliceCount": 1}
SLICE = {"metadata": {"name": "t"}, "spec": {"driver": "d.example.com", "nodeName": "n", "pool": POOL}}
MERGE = {"Content-Type": "application/merge-patch+json"}
ON_SLICES = {
    "apiGroups": ["resource.k8s.io"],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["resourceslices"],
}
ON_MAPS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}


async def enforce(
    curl: ApiCaller, *expressions: str | JSON, rule: JSON = ON_MAPS, binding: JSON | None = None, **spec: Any
) -> None:
    """Creates a policy and a binding with the action Deny."""
    validations = [e if isinstance(e, dict) else {"expression": e} for e in expressions]
    constraints = {"resourceRules": [rule], **spec.pop("constraints", {})}
    body = {"matchConstraints": constraints, "validations": validations, **spec}
    await curl.make(f"{GROUP}/validatingadmissionpolicies", {"metadata": {"name": "p"}, "spec": body})
    binding_spec = {"policyName": "p", "validationActions": ["Deny"], **(binding or {})}
    await curl.make(f"{GROUP}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": binding_spec})


async def enforce_no_more(curl: ApiCaller) -> None:
    for plural, name in (("validatingadmissionpolicies", "p"), ("validatingadmissionpolicybindings", "b")):
        await curl("DELETE", f"{GROUP}/{plural}/{name}")


async def make_map(
    curl: ApiCaller, name: str = "m", data: JSON | None = None, path: str = MAPS, **meta: Any
) -> ApiResponse:
    return await curl("POST", path, {"metadata": {"name": name, **meta}, "data": data or {}})


async def test_a_denial_has_the_message_of_kubernetes(curl: ApiCaller) -> None:
    await enforce(curl, "size(object.data) < 2")
    assert (await make_map(curl, data={"a": "1"})).status == 201
    denied = await make_map(curl, "n", {"a": "1", "b": "2"})
    message = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed expression: size(object.data) < 2"
    assert (denied.status, denied.json["reason"]) == (422, "Invalid")
    assert denied.message == f'configmaps "n" is forbidden: {message}'
    assert denied.json["details"] == {"name": "n", "group": "", "kind": "configmaps", "causes": [{"message": message}]}


@pytest.mark.parametrize(
    ("validation", "code", "message"),
    [
        ({"message": "no maps"}, 422, "no maps"),
        ({"messageExpression": "'not ' + object.metadata.name"}, 422, "not m"),
        ({"messageExpression": "object.nothing", "message": "no maps"}, 422, "no maps"),
        ({"messageExpression": "''"}, 422, "failed expression: false"),
        ({"reason": "Forbidden"}, 403, "failed expression: false"),
        ({"reason": "RequestEntityTooLarge"}, 413, "failed expression: false"),
    ],
)
async def test_the_validation_sets_message_and_reason(
    curl: ApiCaller, validation: JSON, code: int, message: str
) -> None:
    await enforce(curl, {"expression": "false", **validation})
    denied = await make_map(curl)
    assert denied.status == code
    assert denied.message.endswith(f"denied request: {message}")


@pytest.mark.parametrize(("policy", "code"), [("Fail", 422), ("Ignore", 201)])
async def test_the_failure_policy_decides_about_a_failed_expression(curl: ApiCaller, policy: str, code: int) -> None:
    await enforce(curl, "object.nothing == 1", failurePolicy=policy)
    denied = await make_map(curl)
    assert denied.status == code
    if code != 201:
        assert "expression 'object.nothing == 1' resulted in error: no such key: nothing" in denied.message


async def test_expressions_see_the_new_and_the_old_object(curl: ApiCaller) -> None:
    rule = {**ON_MAPS, "operations": ["UPDATE", "DELETE"]}
    expression = "request.operation == 'DELETE' ? (object == null && !has(oldObject.data.keep)) : object.data.a == oldObject.data.a"
    await enforce(curl, expression, rule=rule)
    await make_map(curl, data={"a": "1", "keep": "x"})
    for patch in ({"data": {"a": "2"}}, {"data": {"b": "2"}}):
        response = await curl("PATCH", f"{MAPS}/m", patch, MERGE)
        assert response.status == (422 if "a" in patch["data"] else 200)
    assert (await curl("DELETE", f"{MAPS}/m")).status == 422
    assert (await curl("DELETE", MAPS)).status == 422
    await curl("PATCH", f"{MAPS}/m", {"data": {"keep": None}}, MERGE)
    assert (await curl("DELETE", f"{MAPS}/m")).status == 200


async def test_a_policy_applies_to_a_dry_run(curl: ApiCaller) -> None:
    await enforce(curl, "request.dryRun")
    assert (await make_map(curl)).status == 422
    body = {"metadata": {"name": "m"}}
    assert (await curl("POST", MAPS, body, dryRun="All")).status == 201


async def test_a_request_is_converted_to_the_version_of_the_policy(curl: ApiCaller) -> None:
    expression = "object.apiVersion == 'resource.k8s.io/v1' && request.kind.version == 'v1' && request.requestKind.version == 'v1beta1'"
    await enforce(curl, expression, rule=ON_SLICES)
    device = {"name": "a", "basic": {}}
    old = {"metadata": {"name": "s"}, "spec": {**SLICE["spec"], "devices": [device]}}
    assert (await curl("POST", SLICES.format("v1beta1"), old)).status == 201
    assert (await curl("POST", SLICES.format("v1"), SLICE)).status == 422


async def test_a_policy_with_match_policy_exact_applies_only_to_its_version(curl: ApiCaller) -> None:
    await enforce(curl, "false", rule=ON_SLICES, constraints={"matchPolicy": "Exact"})
    assert (await curl("POST", SLICES.format("v1"), SLICE)).status == 422
    assert (await curl("POST", SLICES.format("v1beta2"), SLICE)).status == 201


@pytest.mark.parametrize(
    ("constraints", "denied"),
    [
        ({}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}, False),
        ({"objectSelector": {"matchLabels": {"a": "b"}}}, True),
        ({"objectSelector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}}, False),
        ({"excludeResourceRules": [ON_MAPS]}, False),
        ({"excludeResourceRules": [{**ON_MAPS, "resourceNames": ["other"]}]}, True),
    ],
)
@pytest.mark.parametrize("location", ["policy", "binding"])
async def test_selectors_limit_the_policy(curl: ApiCaller, constraints: JSON, denied: bool, location: str) -> None:
    arguments: JSON = (
        {"constraints": constraints} if location == "policy" else {"binding": {"matchResources": constraints}}
    )
    await enforce(curl, "false", **arguments)
    assert (await make_map(curl, labels={"a": "b"})).status == (422 if denied else 201)


@pytest.mark.parametrize(
    ("change", "denied"),
    [
        ({"resources": ["*"]}, True),
        ({"resources": ["*/*"]}, True),
        ({"resources": ["configmaps/*"]}, True),
        ({"resources": ["*/status"]}, False),
        ({"resources": ["secrets"]}, False),
        ({"apiGroups": ["apps"]}, False),
        ({"apiVersions": ["v2"]}, False),
        ({"operations": ["UPDATE"]}, False),
        ({"scope": "Namespaced"}, True),
        ({"scope": "Cluster"}, False),
        ({"resourceNames": ["m"]}, True),
        ({"resourceNames": ["n"]}, False),
    ],
)
async def test_resource_rules_match_every_field(curl: ApiCaller, change: JSON, denied: bool) -> None:
    await enforce(curl, "false", rule={**ON_MAPS, **change})
    assert (await make_map(curl)).status == (422 if denied else 201)


async def test_a_rule_for_a_subresource_does_not_match_the_resource(curl: ApiCaller) -> None:
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments/scale"]}
    await enforce(curl, "object.spec.replicas < 3", rule=rule)
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 5, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    path = "/apis/apps/v1/namespaces/default/deployments"
    deployment = await curl.make(path, {"metadata": {"name": "d"}, "spec": spec})
    scale = {"metadata": {"name": "d", "namespace": "default"}, "spec": {"replicas": 4}}
    assert (await curl("PUT", f"{path}/d/scale", scale)).status == 422
    scale["spec"]["replicas"] = 2
    assert (await curl("PUT", f"{path}/d/scale", scale)).status == 200
    deployment["spec"]["replicas"] = 7
    deployment["metadata"].pop("resourceVersion")
    assert (await curl("PUT", f"{path}/d", deployment)).status == 200


async def test_a_policy_can_reject_exec(curl: ApiCaller) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"], "resources": ["pods/exec"]}
    await enforce(curl, "!('sh' in object.command)", rule=rule)
    await curl.make(
        "/api/v1/namespaces/default/pods",
        {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    )
    refused = await curl("POST", "/api/v1/namespaces/default/pods/x/exec", command="sh", container="c")
    assert refused.status == 422
    other = await curl("POST", "/api/v1/namespaces/default/pods/x/exec", command="ls", container="c")
    assert "does not have a host" in other.message


async def test_a_false_match_condition_skips_the_policy_and_a_failed_one_rejects(curl: ApiCaller) -> None:
    condition = {"name": "only-x", "expression": "object.metadata.name == 'x'"}
    await enforce(curl, "false", matchConditions=[condition])
    assert (await make_map(curl)).status == 201
    assert (await make_map(curl, "x")).status == 422
    await enforce_no_more(curl)
    await enforce(curl, "true", matchConditions=[{"name": "odd", "expression": "object.nothing"}])
    assert "no such key: nothing" in (await make_map(curl, "y")).message
    await curl("DELETE", f"{GROUP}/validatingadmissionpolicies/p")
    await curl("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b")
    failed_and_false = [{"name": "odd", "expression": "object.nothing"}, {"name": "no", "expression": "false"}]
    await enforce(curl, "false", matchConditions=failed_and_false)
    assert (await make_map(curl, "z")).status == 201


async def test_variables_can_use_earlier_variables_and_are_evaluated_lazily(curl: ApiCaller) -> None:
    variables = [
        {"name": "odd", "expression": "object.nothing"},
        {"name": "size", "expression": "size(object.data)"},
        {"name": "double", "expression": "variables.size * 2"},
    ]
    await enforce(curl, "variables.double < 3", "!has(object.data.odd) || variables.odd", variables=variables)
    assert (await make_map(curl, data={"a": "1"})).status == 201
    assert (await make_map(curl, "n", {"a": "1", "b": "2"})).status == 422
    assert 'composited variable "odd" fails to evaluate' in (await make_map(curl, "o", {"odd": "1"})).message


async def test_parameters_are_selected_by_name_or_by_labels(curl: ApiCaller) -> None:
    reference = {"name": "limit", "parameterNotFoundAction": "Deny"}
    await enforce(
        curl,
        "size(object.data) <= int(params.data.most)",
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
        matchConditions=[{"name": "others", "expression": "object.metadata.name != 'limit'"}],
        binding={"paramRef": reference},
    )
    missing = await make_map(curl, "none")
    assert "no params found for policy binding with `Deny` parameterNotFoundAction" in missing.message
    await curl("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b")
    await make_map(curl, "limit", {"most": "1"}, labels={"limits": "maps"})
    for parameter_reference in (
        reference,
        {"selector": {"matchLabels": {"limits": "maps"}}, "parameterNotFoundAction": "Deny"},
    ):
        spec = {"policyName": "p", "validationActions": ["Deny"], "paramRef": parameter_reference}
        await curl.make(f"{GROUP}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": spec})
        assert (await make_map(curl, "good", {"a": "1"})).status == 201
        assert (await make_map(curl, "bad", {"a": "1", "b": "2"})).status == 422
        await curl("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b")
        await curl("DELETE", f"{MAPS}/good")
    absent = {"name": "absent", "parameterNotFoundAction": "Allow"}
    spec = {"policyName": "p", "validationActions": ["Deny"], "paramRef": absent}
    await curl.make(f"{GROUP}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": spec})
    assert (await make_map(curl, "free", {"a": "1", "b": "2"})).status == 201


async def test_an_unknown_parameter_kind_fails_the_policy(curl: ApiCaller) -> None:
    reference = {"name": "limit", "parameterNotFoundAction": "Allow"}
    kind = {"apiVersion": "example.com/v1", "kind": "Limit"}
    await enforce(curl, "true", paramKind=kind, binding={"paramRef": reference})
    assert "paramKind: 'example.com/v1, Kind=Limit'" in (await make_map(curl)).message


async def test_expressions_can_use_the_namespace_and_the_authorizer(curl: ApiCaller) -> None:
    can_get_secrets = (
        "authorizer.group('').resource('secrets').namespace(object.metadata.namespace).check('get').allowed()"
    )
    has_custom_verb = "authorizer.requestResource.check('maps-of-others').allowed()"
    await enforce(
        curl,
        f"namespaceObject.metadata.labels['kubernetes.io/metadata.name'] == 'default' && ({can_get_secrets} || {has_custom_verb})",
    )
    assert (await make_map(curl)).status == 201
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]
    role = "/apis/rbac.authorization.k8s.io/v1"
    await curl.make(f"{role}/clusterroles", {"metadata": {"name": "r"}, "rules": rules})
    binding = {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}}
    subjects = [{"kind": "User", "name": "me", "apiGroup": "rbac.authorization.k8s.io"}]
    await curl.make(f"{role}/clusterrolebindings", {"metadata": {"name": "b"}, **binding, "subjects": subjects})
    me = {"Impersonate-User": "me"}
    assert (await curl("POST", MAPS, {"metadata": {"name": "n"}}, headers=me)).status == 422
    rules.append({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["maps-of-others"]})
    await curl("PUT", f"{role}/clusterroles/r", {"metadata": {"name": "r"}, "rules": rules})
    assert (await curl("POST", MAPS, {"metadata": {"name": "n"}}, headers=me)).status == 201


async def test_the_action_warn_returns_a_warning_and_rejects_nothing(curl: ApiCaller) -> None:
    await enforce(
        curl, {"expression": "false", "message": "not like this"}, binding={"validationActions": ["Warn", "Audit"]}
    )
    created = await make_map(curl)
    assert created.status == 201
    message = "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': not like this"
    assert message in created.headers["Warning"]


async def test_an_expression_above_the_cost_limit_fails(curl: ApiCaller) -> None:
    await enforce(curl, "lists.range(2000).all(x, lists.range(2000).all(y, x >= 0 && y >= 0))")
    assert "cost limit exceeded" in (await make_map(curl)).message


async def test_a_policy_without_a_binding_denies_nothing(curl: ApiCaller) -> None:
    await enforce(curl, "false")
    await curl("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b")
    assert (await make_map(curl)).status == 201


@pytest.mark.parametrize(
    ("part", "item", "field", "message"),
    [
        ("validations", {"expression": "object."}, "expression", "Syntax error"),
        ("validations", {"expression": "1 + 1"}, "expression", "must evaluate to bool"),
        ("validations", {"expression": "params.x"}, "expression", "undeclared reference to 'params'"),
        ("validations", {"expression": "request.user"}, "expression", "undefined field 'user'"),
        ("validations", {"expression": "variables.x"}, "expression", "undefined field 'x'"),
        (
            "validations",
            {"expression": "true", "messageExpression": "1"},
            "messageExpression",
            "must evaluate to string",
        ),
        ("validations", {"expression": "true", "reason": "No"}, "reason", "Unsupported value"),
        ("matchConditions", {"name": "c", "expression": "'x'"}, "expression", "evaluate to bool"),
        ("variables", {"name": "v", "expression": "nothing"}, "expression", "undeclared reference"),
    ],
)
async def test_a_policy_with_an_invalid_expression_is_rejected(
    curl: ApiCaller, part: str, item: JSON, field: str, message: str
) -> None:
    body = {"matchConstraints": {"resourceRules": [ON_MAPS]}, "validations": [{"expression": "true"}], part: [item]}
    response = await curl("POST", f"{GROUP}/validatingadmissionpolicies", {"metadata": {"name": "p"}, "spec": body})
    assert response.status == 422
    assert f"spec.{part}[0].{field}" in [f for _, f in response.causes]
    assert message in response.message
