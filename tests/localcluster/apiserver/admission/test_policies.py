"""ValidatingAdmissionPolicies as a real server enforces them: what they match, what their expressions see, and what they say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.helpers.api_server import ApiCaller, ApiResponse, running_api_server

JSON = dict[str, Any]
GROUP = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
SLICES = "/apis/resource.k8s.io/{}/resourceslices"
ON_MAPS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}


@pytest.fixture
async def curl() -> AsyncIterator[ApiCaller]:
    async with running_api_server() as curl:
        yield curl


async def enforce(
    curl: ApiCaller, *expressions: str | JSON, rule: JSON = ON_MAPS, binding: JSON | None = None, **spec: Any
) -> None:
    """A policy, and a binding that denies."""
    validations = [e if isinstance(e, dict) else {"expression": e} for e in expressions]
    constraints = {"resourceRules": [rule], **spec.pop("constraints", {})}
    body = {"matchConstraints": constraints, "validations": validations, **spec}
    await curl.make(f"{GROUP}/validatingadmissionpolicies", {"metadata": {"name": "p"}, "spec": body})
    bound = {"policyName": "p", "validationActions": ["Deny"], **(binding or {})}
    await curl.make(f"{GROUP}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": bound})


async def make_map(
    curl: ApiCaller, name: str = "m", data: JSON | None = None, path: str = MAPS, **meta: Any
) -> ApiResponse:
    return await curl("POST", path, {"metadata": {"name": name, **meta}, "data": data or {}})


async def test_a_denial_reads_as_kubernetes_words_it(curl: ApiCaller) -> None:
    await enforce(curl, "size(object.data) < 2")
    assert (await make_map(curl, data={"a": "1"})).status == 201
    denied = await make_map(curl, "n", {"a": "1", "b": "2"})
    said = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed expression: size(object.data) < 2"
    assert (denied.status, denied.json["reason"]) == (422, "Invalid")
    assert denied.message == f'configmaps "n" is forbidden: {said}'
    assert denied.json["details"] == {"name": "n", "group": "", "kind": "configmaps", "causes": [{"message": said}]}


@pytest.mark.parametrize(
    ("validation", "code", "said"),
    [
        ({"message": "no maps"}, 422, "no maps"),
        ({"messageExpression": "'not ' + object.metadata.name"}, 422, "not m"),
        ({"messageExpression": "object.nothing", "message": "no maps"}, 422, "no maps"),
        ({"messageExpression": "''"}, 422, "failed expression: false"),
        ({"reason": "Forbidden"}, 403, "failed expression: false"),
        ({"reason": "RequestEntityTooLarge"}, 413, "failed expression: false"),
    ],
)
async def test_message_and_reason_are_the_validations(curl: ApiCaller, validation: JSON, code: int, said: str) -> None:
    await enforce(curl, {"expression": "false", **validation})
    denied = await make_map(curl)
    assert denied.status == code
    assert denied.message.endswith(f"denied request: {said}")


@pytest.mark.parametrize(("policy", "code"), [("Fail", 422), ("Ignore", 201)])
async def test_an_expression_that_fails_is_decided_by_the_failure_policy(
    curl: ApiCaller, policy: str, code: int
) -> None:
    await enforce(curl, "object.nothing == 1", failurePolicy=policy)
    denied = await make_map(curl)
    assert denied.status == code
    if code != 201:
        assert "expression 'object.nothing == 1' resulted in error: no such key: nothing" in denied.message


async def test_updates_see_both_objects_and_deletions_the_old_one(curl: ApiCaller) -> None:
    rule = {**ON_MAPS, "operations": ["UPDATE", "DELETE"]}
    expression = "request.operation == 'DELETE' ? (object == null && !has(oldObject.data.keep)) : object.data.a == oldObject.data.a"
    await enforce(curl, expression, rule=rule)
    await make_map(curl, data={"a": "1", "keep": "x"})
    for patch in ({"data": {"a": "2"}}, {"data": {"b": "2"}}):
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = await curl("PATCH", f"{MAPS}/m", patch, headers=headers)
        assert answer.status == (422 if "a" in patch["data"] else 200)
    assert (await curl("DELETE", f"{MAPS}/m")).status == 422
    assert (await curl("DELETE", MAPS)).status == 422
    await curl("PATCH", f"{MAPS}/m", {"data": {"keep": None}}, headers={"Content-Type": "application/merge-patch+json"})
    assert (await curl("DELETE", f"{MAPS}/m")).status == 200


async def test_a_dry_run_is_judged_too_and_reports_it(curl: ApiCaller) -> None:
    await enforce(curl, "request.dryRun")
    assert (await make_map(curl)).status == 422
    body = {"metadata": {"name": "m"}}
    assert (await curl("POST", MAPS, body, dryRun="All")).status == 201


async def test_what_is_asked_in_another_version_is_judged_in_the_policys(curl: ApiCaller) -> None:
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["resourceslices"],
    }
    seen = "object.apiVersion == 'resource.k8s.io/v1' && request.kind.version == 'v1' && request.requestKind.version == 'v1beta1'"
    await enforce(curl, seen, rule=rule)
    spec = {"driver": "d.example.com", "nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}}
    device = {"name": "a", "basic": {}}
    made = await curl(
        "POST", SLICES.format("v1beta1"), {"metadata": {"name": "s"}, "spec": {**spec, "devices": [device]}}
    )
    assert made.status == 201, made.body
    denied = await curl("POST", SLICES.format("v1"), {"metadata": {"name": "t"}, "spec": spec})
    assert denied.status == 422


async def test_an_exact_policy_is_for_its_version_only(curl: ApiCaller) -> None:
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["resourceslices"],
    }
    await enforce(curl, "false", rule=rule, constraints={"matchPolicy": "Exact"})
    spec = {"driver": "d.example.com", "nodeName": "n", "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}}
    assert (await curl("POST", SLICES.format("v1"), {"metadata": {"name": "t"}, "spec": spec})).status == 422
    assert (await curl("POST", SLICES.format("v1beta2"), {"metadata": {"name": "t"}, "spec": spec})).status == 201


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
@pytest.mark.parametrize("place", ["policy", "binding"])
async def test_selectors_choose_what_is_judged(curl: ApiCaller, constraints: JSON, denied: bool, place: str) -> None:
    given: JSON = {"constraints": constraints} if place == "policy" else {"binding": {"matchResources": constraints}}
    await enforce(curl, "false", **given)
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
async def test_rules_name_groups_versions_operations_resources_scope_and_names(
    curl: ApiCaller, change: JSON, denied: bool
) -> None:
    await enforce(curl, "false", rule={**ON_MAPS, **change})
    assert (await make_map(curl)).status == (422 if denied else 201)


async def test_a_rule_of_a_resource_is_not_one_of_its_subresources(curl: ApiCaller) -> None:
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments/scale"]}
    await enforce(curl, "object.spec.replicas < 3", rule=rule)
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 5, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    path = "/apis/apps/v1/namespaces/default/deployments"
    made = await curl.make(path, {"metadata": {"name": "d"}, "spec": spec})
    scale = {"metadata": {"name": "d", "namespace": "default"}, "spec": {"replicas": 4}}
    assert (await curl("PUT", f"{path}/d/scale", scale)).status == 422
    scale["spec"]["replicas"] = 2
    assert (await curl("PUT", f"{path}/d/scale", scale)).status == 200
    made["spec"]["replicas"] = 7
    made["metadata"].pop("resourceVersion")
    assert (await curl("PUT", f"{path}/d", made)).status == 200


async def test_a_command_in_a_container_can_be_refused(curl: ApiCaller) -> None:
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


async def test_conditions_skip_a_policy_and_one_that_fails_is_a_failure(curl: ApiCaller) -> None:
    condition = {"name": "only-x", "expression": "object.metadata.name == 'x'"}
    await enforce(curl, "false", matchConditions=[condition])
    assert (await make_map(curl)).status == 201
    assert (await make_map(curl, "x")).status == 422
    await curl("DELETE", f"{GROUP}/validatingadmissionpolicies/p")
    await curl("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b")
    await enforce(curl, "true", matchConditions=[{"name": "odd", "expression": "object.nothing"}])
    assert "no such key: nothing" in (await make_map(curl, "y")).message
    await curl("DELETE", f"{GROUP}/validatingadmissionpolicies/p")
    await curl("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b")
    outweighed = [{"name": "odd", "expression": "object.nothing"}, {"name": "no", "expression": "false"}]
    await enforce(curl, "false", matchConditions=outweighed)
    assert (await make_map(curl, "z")).status == 201


async def test_variables_see_those_before_them_and_are_computed_only_when_they_are_read(curl: ApiCaller) -> None:
    variables = [
        {"name": "odd", "expression": "object.nothing"},
        {"name": "size", "expression": "size(object.data)"},
        {"name": "double", "expression": "variables.size * 2"},
    ]
    await enforce(curl, "variables.double < 3", "!has(object.data.odd) || variables.odd", variables=variables)
    assert (await make_map(curl, data={"a": "1"})).status == 201
    assert (await make_map(curl, "n", {"a": "1", "b": "2"})).status == 422
    assert 'composited variable "odd" fails to evaluate' in (await make_map(curl, "o", {"odd": "1"})).message


async def test_parameters_are_objects_of_any_kind_by_name_or_by_labels(curl: ApiCaller) -> None:
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
    for given in (reference, {"selector": {"matchLabels": {"limits": "maps"}}, "parameterNotFoundAction": "Deny"}):
        spec = {"policyName": "p", "validationActions": ["Deny"], "paramRef": given}
        await curl.make(f"{GROUP}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": spec})
        assert (await make_map(curl, "good", {"a": "1"})).status == 201
        assert (await make_map(curl, "bad", {"a": "1", "b": "2"})).status == 422
        await curl("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b")
        await curl("DELETE", f"{MAPS}/good")
    absent = {"name": "absent", "parameterNotFoundAction": "Allow"}
    spec = {"policyName": "p", "validationActions": ["Deny"], "paramRef": absent}
    await curl.make(f"{GROUP}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": spec})
    assert (await make_map(curl, "free", {"a": "1", "b": "2"})).status == 201


async def test_a_kind_of_parameters_that_there_is_not_fails_the_policy(curl: ApiCaller) -> None:
    reference = {"name": "limit", "parameterNotFoundAction": "Allow"}
    kind = {"apiVersion": "example.com/v1", "kind": "Limit"}
    await enforce(curl, "true", paramKind=kind, binding={"paramRef": reference})
    assert "paramKind: 'example.com/v1, Kind=Limit'" in (await make_map(curl)).message


async def test_the_namespace_and_the_authorizer_can_be_asked(curl: ApiCaller) -> None:
    may = "authorizer.group('').resource('secrets').namespace(object.metadata.namespace).check('get').allowed()"
    custom = "authorizer.requestResource.check('maps-of-others').allowed()"
    await enforce(
        curl, f"namespaceObject.metadata.labels['kubernetes.io/metadata.name'] == 'default' && ({may} || {custom})"
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


async def test_a_warning_is_reported_and_refuses_nothing(curl: ApiCaller) -> None:
    await enforce(
        curl, {"expression": "false", "message": "not like this"}, binding={"validationActions": ["Warn", "Audit"]}
    )
    made = await make_map(curl)
    assert made.status == 201
    said = "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': not like this"
    assert said in made.headers["Warning"]


async def test_an_expression_that_costs_too_much_is_a_failure(curl: ApiCaller) -> None:
    await enforce(curl, "lists.range(2000).all(x, lists.range(2000).all(y, x >= 0 && y >= 0))")
    assert "cost limit exceeded" in (await make_map(curl)).message


async def test_a_policy_without_a_binding_and_one_that_is_gone_deny_nothing(curl: ApiCaller) -> None:
    await enforce(curl, "false")
    await curl("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b")
    assert (await make_map(curl)).status == 201


@pytest.mark.parametrize(
    ("spec", "field", "said"),
    [
        ({"validations": [{"expression": "object."}]}, "spec.validations[0].expression", "Syntax error"),
        ({"validations": [{"expression": "1 + 1"}]}, "spec.validations[0].expression", "must evaluate to bool"),
        (
            {"validations": [{"expression": "params.x"}]},
            "spec.validations[0].expression",
            "undeclared reference to 'params'",
        ),
        ({"validations": [{"expression": "request.user"}]}, "spec.validations[0].expression", "undefined field 'user'"),
        ({"validations": [{"expression": "variables.x"}]}, "spec.validations[0].expression", "undefined field 'x'"),
        (
            {"validations": [{"expression": "true", "messageExpression": "1"}]},
            "spec.validations[0].messageExpression",
            "must evaluate to string",
        ),
        ({"validations": [{"expression": "true", "reason": "No"}]}, "spec.validations[0].reason", "Unsupported value"),
        (
            {"matchConditions": [{"name": "c", "expression": "'x'"}]},
            "spec.matchConditions[0].expression",
            "evaluate to bool",
        ),
        (
            {"variables": [{"name": "v", "expression": "nothing"}]},
            "spec.variables[0].expression",
            "undeclared reference",
        ),
    ],
)
async def test_a_policy_that_cannot_be_evaluated_is_not_kept(
    curl: ApiCaller, spec: JSON, field: str, said: str
) -> None:
    body = {"matchConstraints": {"resourceRules": [ON_MAPS]}, "validations": [{"expression": "true"}], **spec}
    answer = await curl("POST", f"{GROUP}/validatingadmissionpolicies", {"metadata": {"name": "p"}, "spec": body})
    assert answer.status == 422
    assert field in [f for _, f in answer.causes]
    assert said in answer.message
