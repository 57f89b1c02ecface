"""The server is nobody else's: not other users' of the machine, not web pages', and an account's only as far as its roles go."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.helpers.api_server import ApiCaller, running_api_server

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.fixture
async def curl() -> AsyncIterator[ApiCaller]:
    async with running_api_server() as curl:
        yield curl


@pytest.mark.parametrize("path", ["/api/v1/pods", "/version", "/api", "/healthz", "/openapi/v3", "/nowhere"])
@pytest.mark.parametrize("given", ["", "Bearer wrong", "Basic eDp5", "Bearer"])
async def test_without_the_token_nothing_is_answered_on_the_loopback_either(
    curl: ApiCaller, path: str, given: str
) -> None:
    answer = await curl("GET", path, headers={"Authorization": given})
    assert (answer.status, answer.json["reason"]) == (401, "Unauthorized")


@pytest.mark.parametrize("host", ["evil.example.com", "evil.example.com:6443", "localhost.evil.example.com", "[x]", ""])
async def test_a_request_under_a_foreign_name_is_refused_even_with_the_token(curl: ApiCaller, host: str) -> None:
    answer = await curl("GET", "/api/v1/pods", headers={"Host": host or "-"})
    assert answer.status == 403
    assert "host" in answer.message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "[::1]:9", "192.168.1.7", "kubernetes.default.svc"])
async def test_its_addresses_and_own_names_are_served(curl: ApiCaller, host: str) -> None:
    assert (await curl("GET", "/api/v1/pods", headers={"Host": host})).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", "http://localhost:8080"])
async def test_a_web_page_gets_nothing_whichever_it_is(curl: ApiCaller, origin: str) -> None:
    answer = await curl("GET", "/api/v1/pods", headers={"Origin": origin})
    assert answer.status == 403
    assert "web page" in answer.message


async def test_an_account_gets_what_its_roles_allow_and_no_more(curl: ApiCaller) -> None:
    await curl.make("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "reader"}})
    made = await curl.make("/api/v1/namespaces/default/serviceaccounts/reader/token", {"spec": {}})
    bearer = {"Authorization": f"Bearer {made['status']['token']}"}
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
    asked = {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "default"}}}
    review = await curl("POST", REVIEWS, asked, headers=bearer)
    assert review.json["status"]["allowed"] is True
    asked["spec"]["resourceAttributes"]["verb"] = "delete"
    assert (await curl("POST", REVIEWS, asked, headers=bearer)).json["status"]["allowed"] is False
    as_other = await curl("GET", pods, headers={**bearer, "Impersonate-User": "admin"})
    assert as_other.status == 403
