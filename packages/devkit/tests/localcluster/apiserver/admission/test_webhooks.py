"""The API server calls webhooks over HTTPS with the requests of Kubernetes, and handles valid and invalid responses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.base.http_server.server import HttpServer, Request, Response
from dra_kubeletplugin.base.json_types import JSON
from tests.helpers.api_server import ApiCaller, ApiResponse
from tests.helpers.certificates import authority, server_side, signed

GROUP = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}


class Hook:
    """A webhook server. ``respond`` creates a response from a request; ``seen`` contains the received requests."""

    def __init__(self, folder: Path) -> None:
        ca = authority(folder)
        self.bundle = base64.b64encode(ca.cert.read_bytes()).decode()
        self._server = HttpServer(self._handle, tls=server_side(signed(folder, ca, "hook")))
        self.respond: Callable[[JSON], JSON] = lambda _: {"allowed": True}
        self.raw: Response | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self.seen: list[JSON] = []
        self.paths: list[str] = []
        self.url = ""

    async def _handle(self, request: Request) -> Response:
        review = json.loads(request.body)
        self.seen.append(review["request"])
        self.called.set()
        self.paths.append(request.path)
        await self.gate.wait()
        if self.raw is not None:
            return self.raw
        response = {"uid": review["request"]["uid"], **self.respond(review["request"])}
        head = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
        return Response(body=json.dumps({**head, "response": response}).encode())

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Hook]:
        self.url = await self._server.start()
        try:
            yield self
        finally:
            self.gate.set()
            await self._server.close()

    def configuration(self, **fields: Any) -> JSON:
        client = {"url": f"{self.url}/check", "caBundle": self.bundle}
        webhook = {"name": "hook.example.com", "clientConfig": client, "rules": [RULE], "sideEffects": "None"}
        return {"metadata": {"name": "hooks"}, "webhooks": [{**webhook, "admissionReviewVersions": ["v1"], **fields}]}


def patch(*operations: JSON) -> JSON:
    encoded = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


@pytest.fixture
async def hook(tmp_path: Path) -> AsyncIterator[Hook]:
    async with Hook(tmp_path).serving() as hook:
        yield hook


async def validating(curl: ApiCaller, hook: Hook, **fields: Any) -> JSON:
    return await curl.make(f"{GROUP}/validatingwebhookconfigurations", hook.configuration(**fields))


async def mutating(curl: ApiCaller, hook: Hook, **fields: Any) -> JSON:
    return await curl.make(f"{GROUP}/mutatingwebhookconfigurations", hook.configuration(**fields))


async def make_map(curl: ApiCaller, name: str = "m", **query: str) -> ApiResponse:
    return await curl("POST", MAPS, {"metadata": {"name": name}, "data": {"a": "1"}}, **query)


async def test_a_webhook_gets_the_request_of_kubernetes(curl: ApiCaller, hook: Hook) -> None:
    await validating(curl, hook)
    assert (await make_map(curl)).status == 201
    (request,) = hook.seen
    assert hook.paths == ["/check"]
    assert request["kind"] == request["requestKind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    names = (request["name"], request["namespace"], request["operation"], request["dryRun"])
    assert names == ("m", "default", "CREATE", False)
    assert request["userInfo"]["username"] == "kubernetes-admin"
    assert request["object"]["data"] == {"a": "1"} and request["object"]["metadata"]["uid"]
    assert request["oldObject"] is None
    assert request["options"]["kind"] == "CreateOptions"
    await curl("PATCH", f"{MAPS}/m", {"data": {"a": "2"}}, headers={"Content-Type": "application/merge-patch+json"})
    await curl("DELETE", f"{MAPS}/m", {"gracePeriodSeconds": 0})
    update, delete = hook.seen[1:]
    assert (update["object"]["data"], update["oldObject"]["data"]) == ({"a": "2"}, {"a": "1"})
    assert (delete["object"], delete["oldObject"]["data"]) == (None, {"a": "2"})
    assert (update["options"]["kind"], delete["options"]["gracePeriodSeconds"]) == ("PatchOptions", 0)


@pytest.mark.parametrize(
    ("response", "code", "message"),
    [
        ({"allowed": False}, 400, 'admission webhook "hook.example.com" denied the request without explanation'),
        ({"allowed": False, "status": {"message": "no"}}, 400, '"hook.example.com" denied the request: no'),
        ({"allowed": False, "status": {"reason": "Forbidden", "code": 403}}, 403, "denied the request: Forbidden"),
        ({"allowed": False, "status": {"code": 200, "message": "no"}}, 400, "denied the request: no"),
    ],
)
async def test_a_denial_has_the_message_and_code_of_the_webhook(
    curl: ApiCaller, hook: Hook, response: JSON, code: int, message: str
) -> None:
    await validating(curl, hook)
    hook.respond = lambda _: response
    denied = await make_map(curl)
    assert denied.status == code
    assert message in denied.message


async def test_warnings_of_a_webhook_are_returned(curl: ApiCaller, hook: Hook) -> None:
    await validating(curl, hook)
    hook.respond = lambda _: {"allowed": True, "warnings": ["think again"]}
    assert "think again" in (await make_map(curl)).headers["Warning"]


async def test_a_webhooks_patch_is_applied_before_validation(curl: ApiCaller, hook: Hook) -> None:
    await mutating(curl, hook)
    hook.respond = lambda _: patch(
        {"op": "add", "path": "/data/b", "value": "2"}, {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}
    )
    created = await make_map(curl)
    assert (created.json["data"], created.json["metadata"]["labels"]) == ({"a": "1", "b": "2"}, {"x": "y"})
    hook.respond = lambda _: patch({"op": "add", "path": "/metadata/labels", "value": {"not a label": "!"}})
    assert (await make_map(curl, "n")).status == 422
    hook.respond = lambda _: patch({"op": "replace", "path": "/metadata/name", "value": 7})
    assert (await make_map(curl, "o")).status == 400


async def test_a_webhook_is_reinvoked_after_a_later_webhook_changed_the_object(curl: ApiCaller, hook: Hook) -> None:
    configuration = hook.configuration(reinvocationPolicy="IfNeeded")
    first = configuration["webhooks"][0]
    configuration["webhooks"].append({**first, "name": "later.example.com", "reinvocationPolicy": "Never"})
    await curl.make(f"{GROUP}/mutatingwebhookconfigurations", configuration)
    hook.respond = lambda r: (
        patch({"op": "add", "path": "/data/late", "value": "x"}) if len(hook.seen) == 2 else {"allowed": True}
    )
    await make_map(curl)
    assert ["late" in r["object"]["data"] for r in hook.seen] == [False, False, True]


@pytest.mark.cases(7)
@pytest.mark.parametrize(
    "raw",
    [
        Response(500, b"oops"),
        Response(200, b"no json"),
        Response(200, b"[]"),
        Response(200, b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}'),
        Response(200, b'{"apiVersion": "admission.k8s.io/v1", "response": {"uid": "other", "allowed": true}}'),
        Response(200, b'{"apiVersion": "admission.k8s.io/v1beta1", "response": {"allowed": true}}'),
        Response(302, b"", headers={"Location": "https://127.0.0.1:1/"}),
    ],
)
@pytest.mark.parametrize("kind", ["validating", "mutating"])
async def test_the_failure_policy_decides_about_an_invalid_response(
    curl: ApiCaller, hook: Hook, raw: Response, kind: str
) -> None:
    hook.raw = raw
    plural = f"{GROUP}/{kind}webhookconfigurations"
    await curl.make(plural, hook.configuration())
    denied = await make_map(curl)
    assert (denied.status, denied.json["reason"]) == (500, "InternalError")
    failed = 'failed calling webhook "hook.example.com": failed to call webhook: '
    assert denied.message.startswith(f"Internal error occurred: {failed}")
    await curl("DELETE", f"{plural}/hooks")
    await curl.make(plural, hook.configuration(failurePolicy="Ignore"))
    assert (await make_map(curl)).status == 201


@pytest.mark.parametrize(
    "response",
    [
        {"allowed": "yes"},
        {"allowed": True, "patch": "e30=", "patchType": "Other"},
        {"allowed": True, "patch": "no base64!", "patchType": "JSONPatch"},
        {"allowed": True, "patchType": "JSONPatch"},
        patch({"op": "remove", "path": "/data/nothing"}),
        patch({"op": "dance"}),
    ],
)
async def test_an_invalid_response_or_patch_fails_the_call(curl: ApiCaller, hook: Hook, response: JSON) -> None:
    await mutating(curl, hook)
    hook.respond = lambda _: response
    assert (await make_map(curl)).status == 500


async def test_a_webhook_call_ends_at_its_timeout(curl: ApiCaller, hook: Hook) -> None:
    await validating(curl, hook, timeoutSeconds=1)
    hook.gate.clear()
    denied = await make_map(curl)
    assert (denied.status, "context deadline exceeded" in denied.message) == (500, True)


async def test_a_certificate_of_another_authority_is_rejected(curl: ApiCaller, hook: Hook, tmp_path: Path) -> None:
    other = authority(tmp_path, "other")
    client = {"url": hook.url, "caBundle": base64.b64encode(other.cert.read_bytes()).decode()}
    await validating(curl, hook, clientConfig=client)
    denied = await make_map(curl)
    assert (denied.status, "certificate" in denied.message) == (500, True)
    assert not hook.seen


@pytest.mark.parametrize(("policy", "code"), [("Fail", 500), ("Ignore", 201)])
async def test_a_webhook_with_a_service_is_reported_as_unreachable(
    curl: ApiCaller, hook: Hook, policy: str, code: int
) -> None:
    client = {"service": {"namespace": "default", "name": "hook"}}
    body = hook.configuration(clientConfig=client, failurePolicy=policy)
    created = await curl("POST", f"{GROUP}/validatingwebhookconfigurations", body)
    assert "no service network" in created.headers["Warning"]
    response = await make_map(curl)
    assert response.status == code
    if code != 201:
        assert "cannot reach service default/hook" in response.message


async def test_selectors_and_match_conditions_limit_the_requests(curl: ApiCaller, hook: Hook) -> None:
    condition = {"name": "only", "expression": "object.metadata.name.startsWith('x')"}
    unlabelled = {"matchExpressions": [{"key": "no", "operator": "DoesNotExist"}]}
    await validating(curl, hook, matchConditions=[condition], objectSelector=unlabelled)
    await make_map(curl)
    assert not hook.seen
    await make_map(curl, "x1")
    await curl("POST", MAPS, {"metadata": {"name": "x2", "labels": {"no": ""}}})
    assert [r["name"] for r in hook.seen] == ["x1"]


async def test_a_webhook_request_contains_dry_run(curl: ApiCaller, hook: Hook) -> None:
    await validating(curl, hook)
    assert (await make_map(curl, dryRun="All")).status == 201
    assert hook.seen[0]["dryRun"] is True
    assert (await curl("GET", f"{MAPS}/m")).status == 404


async def test_a_patch_is_reviewed_again_after_a_change_during_the_webhook_call(curl: ApiCaller, hook: Hook) -> None:
    await make_map(curl)
    await validating(curl, hook)
    hook.gate.clear()
    merge = {"Content-Type": "application/merge-patch+json"}
    slow = asyncio.create_task(curl("PATCH", f"{MAPS}/m", {"data": {"slow": "1"}}, headers=merge))
    await hook.called.wait()
    storage = curl.server.storage
    old = storage.get("configmaps", "default", "m")
    assert old is not None
    storage.put("configmaps", {**old, "data": {"quick": "1"}})
    hook.gate.set()
    response = await slow
    assert response.status == 200
    assert response.json["data"] == {"quick": "1", "slow": "1"}
    assert [sorted(r["object"]["data"]) for r in hook.seen] == [["a", "slow"], ["quick", "slow"]]


async def test_a_put_with_a_version_conflicts_with_a_change_during_the_webhook_call(
    curl: ApiCaller, hook: Hook
) -> None:
    created = (await make_map(curl)).json
    await validating(curl, hook)
    hook.gate.clear()
    slow = asyncio.create_task(curl("PUT", f"{MAPS}/m", {**created, "data": {"slow": "1"}}))
    await hook.called.wait()
    curl.server.storage.put("configmaps", {**curl.server.storage.list("configmaps")[0], "data": {"quick": "1"}})
    hook.gate.set()
    assert (await slow).status == 409


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"clientConfig": {"url": "http://127.0.0.1/"}}, "webhooks[0].clientConfig.url"),
        ({"clientConfig": {"url": "https://me@127.0.0.1/"}}, "webhooks[0].clientConfig.url"),
        ({"clientConfig": {}}, "webhooks[0].clientConfig"),
        ({"clientConfig": {"url": "https://127.0.0.1/", "caBundle": "bm8="}}, "webhooks[0].clientConfig.caBundle"),
        ({"name": "hook"}, "webhooks[0].name"),
        ({"sideEffects": "Some"}, "webhooks[0].sideEffects"),
        ({"admissionReviewVersions": ["v2"]}, "webhooks[0].admissionReviewVersions"),
        ({"timeoutSeconds": 31}, "webhooks[0].timeoutSeconds"),
        ({"matchConditions": [{"name": "x", "expression": "1"}]}, "webhooks[0].matchConditions[0].expression"),
    ],
)
async def test_an_invalid_configuration_is_rejected(curl: ApiCaller, hook: Hook, fields: JSON, field: str) -> None:
    response = await curl("POST", f"{GROUP}/mutatingwebhookconfigurations", hook.configuration(**fields))
    assert response.status == 422, response.body
    assert field in [f for _, f in response.causes]
