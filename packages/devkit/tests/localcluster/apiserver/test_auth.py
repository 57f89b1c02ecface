"""The API server rejects requests without the token and requests of web pages. Roles limit service accounts."""

from __future__ import annotations

import pytest

from tests.helpers.api_server import ApiCaller

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.mark.parametrize("path", ["/api/v1/pods", "/version", "/api", "/healthz", "/openapi/v3", "/nowhere"])
@pytest.mark.parametrize("authorization", ["", "Bearer wrong", "Basic eDp5", "Bearer"])
async def test_a_request_without_a_valid_token_is_rejected_also_on_loopback(
    curl: ApiCaller, path: str, authorization: str
) -> None:
    response = await curl("GET", path, headers={"Authorization": authorization})
    assert (response.status, response.json["reason"]) == (401, "Unauthorized")


@pytest.mark.parametrize("host", ["evil.example.com", "evil.example.com:6443", "localhost.evil.example.com", "[x]", ""])
async def test_a_request_with_a_foreign_host_header_is_rejected_even_with_the_token(curl: ApiCaller, host: str) -> None:
    response = await curl("GET", "/api/v1/pods", headers={"Host": host or "-"})
    assert response.status == 403
    assert "host" in response.message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "[::1]:9", "192.168.1.7", "kubernetes.default.svc"])
async def test_requests_to_the_servers_own_addresses_and_names_are_served(curl: ApiCaller, host: str) -> None:
    assert (await curl("GET", "/api/v1/pods", headers={"Host": host})).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", "http://localhost:8080"])
async def test_every_request_with_an_origin_header_is_rejected(curl: ApiCaller, origin: str) -> None:
    response = await curl("GET", "/api/v1/pods", headers={"Origin": origin})
    assert response.status == 403
    assert "web page" in response.message


async def test_roles_limit_the_requests_of_a_service_account(curl: ApiCaller) -> None:
    await curl.make("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "reader"}})
    token_request = await curl.make("/api/v1/namespaces/default/serviceaccounts/reader/token", {"spec": {}})
    bearer = {"Authorization": f"Bearer {token_request['status']['token']}"}
    pods = "/api/v1/namespaces/default/pods"
    refused = await curl("GET", pods, headers=bearer)
    assert refused.status == 403
    assert refused.message == (
        'pods is forbidden: User "system:serviceaccount:default:reader" cannot list resource "pods" in API group "" '
        'in the namespace "default"'
    )
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    await curl.make(f"{RBAC}/namespaces/default/roles", {"metadata": {"name": "r"}, "rules": rules})
    binding = {
        "metadata": {"name": "b"},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
    }
    await curl.make(f"{RBAC}/namespaces/default/rolebindings", binding)
    assert (await curl("GET", pods, headers=bearer)).status == 200
    assert (await curl("GET", "/api/v1/pods", headers=bearer)).status == 403
    assert (await curl("DELETE", pods, headers=bearer)).status == 403
    review_request = {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "default"}}}
    review = await curl("POST", REVIEWS, review_request, headers=bearer)
    assert review.json["status"]["allowed"] is True
    review_request["spec"]["resourceAttributes"]["verb"] = "delete"
    assert (await curl("POST", REVIEWS, review_request, headers=bearer)).json["status"]["allowed"] is False
    impersonated = await curl("GET", pods, headers={**bearer, "Impersonate-User": "admin"})
    assert impersonated.status == 403


PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
GET_POD = {"verb": "get", "resource": "pods", "name": "a"}
STATUS = {"verb": "get", "resource": "pods", "subresource": "status", "name": "a"}


@pytest.mark.parametrize(
    ("rule", "asked", "allowed"),
    [
        (PODS, GET_POD, True),
        ({**PODS, "verbs": ["list"]}, GET_POD, False),
        ({**PODS, "verbs": ["*"]}, GET_POD, True),
        ({**PODS, "apiGroups": ["apps"]}, GET_POD, False),
        ({**PODS, "apiGroups": ["*"]}, GET_POD, True),
        ({**PODS, "resourceNames": ["a", "b"]}, GET_POD, True),
        ({**PODS, "resourceNames": ["b"]}, GET_POD, False),
        ({**PODS, "resourceNames": ["a"]}, {"verb": "get", "resource": "pods"}, False),
        ({**PODS, "resourceNames": ["*"]}, GET_POD, False),
        (PODS, STATUS, False),
        ({**PODS, "resources": ["pods/status"]}, STATUS, True),
        ({**PODS, "resources": ["pods/status"]}, GET_POD, False),
        ({**PODS, "resources": ["*/status"]}, STATUS, True),
        ({**PODS, "resources": ["*/status"]}, GET_POD, False),
        ({**PODS, "resources": ["*"]}, STATUS, True),
        ({**PODS, "resources": ["pods/*"]}, STATUS, False),
    ],
)
async def test_a_rule_covers_the_requests_that_it_covers_in_kubernetes(
    curl: ApiCaller, rule: dict[str, list[str]], asked: dict[str, str], allowed: bool
) -> None:
    await curl.make(f"{RBAC}/clusterroles", {"metadata": {"name": "r"}, "rules": [rule]})
    binding = {
        "metadata": {"name": "b"},
        "roleRef": {"kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "User", "name": "jane"}],
    }
    await curl.make(f"{RBAC}/clusterrolebindings", binding)
    review_request = {"spec": {"user": "jane", "resourceAttributes": asked}}
    review = await curl.make("/apis/authorization.k8s.io/v1/subjectaccessreviews", review_request)
    assert review["status"]["allowed"] is allowed
