"""Webhooks are really called: over HTTPS, with what Kubernetes sends, and their answers are followed, whatever they are."""

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
from dra_kubeletplugin.localcluster.apiserver import ApiServer
from tests.helpers.api_server import ApiCaller, ApiResponse
from tests.helpers.certificates import authority, server_side, signed

JSON = dict[str, Any]
GROUP = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}


class Hook:
    """A webhook of ours. ``answer`` makes a response of a request; what came is in ``seen``."""

    def __init__(self, folder: Path) -> None:
        ca = authority(folder)
        self.bundle = base64.b64encode(ca.cert.read_bytes()).decode()
        self._server = HttpServer(self._handle, tls=server_side(signed(folder, ca, "hook")))
        self.answer: Callable[[JSON], JSON] = lambda _: {"allowed": True}
        self.raw: Response | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.seen: list[JSON] = []
        self.paths: list[str] = []
        self.url = ""

    async def _handle(self, request: Request) -> Response:
        review = json.loads(request.body)
        self.seen.append(review["request"])
        self.paths.append(request.path)
        await self.gate.wait()
        if self.raw is not None:
            return self.raw
        response = {"uid": review["request"]["uid"], **self.answer(review["request"])}
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

    def configuration(self, **changed: Any) -> JSON:
        client = {"url": f"{self.url}/check", "caBundle": self.bundle}
        one = {"name": "hook.example.com", "clientConfig": client, "rules": [RULE], "sideEffects": "None"}
        return {"metadata": {"name": "hooks"}, "webhooks": [{**one, "admissionReviewVersions": ["v1"], **changed}]}


def patch(*operations: JSON) -> JSON:
    return {
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(json.dumps(operations).encode()).decode(),
    }


@pytest.fixture
async def curl() -> AsyncIterator[ApiCaller]:
    server = ApiServer()
    await server.start()
    yield ApiCaller(server)
    await server.close()


@pytest.fixture
async def hook(tmp_path: Path) -> AsyncIterator[Hook]:
    async with Hook(tmp_path).serving() as hook:
        yield hook


async def validating(curl: ApiCaller, hook: Hook, **changed: Any) -> JSON:
    return await curl.make(f"{GROUP}/validatingwebhookconfigurations", hook.configuration(**changed))


async def mutating(curl: ApiCaller, hook: Hook, **changed: Any) -> JSON:
    return await curl.make(f"{GROUP}/mutatingwebhookconfigurations", hook.configuration(**changed))


async def make_map(curl: ApiCaller, name: str = "m", **query: str) -> ApiResponse:
    return await curl("POST", MAPS, {"metadata": {"name": name}, "data": {"a": "1"}}, **query)


async def test_a_webhook_gets_what_kubernetes_sends(curl: ApiCaller, hook: Hook) -> None:
    await validating(curl, hook)
    assert (await make_map(curl)).status == 201
    (request,) = hook.seen
    assert hook.paths == ["/check"]
    assert request["kind"] == request["requestKind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert (request["name"], request["namespace"], request["operation"], request["dryRun"]) == (
        "m",
        "default",
        "CREATE",
        False,
    )
    assert request["userInfo"]["username"] == "kubernetes-admin"
    assert request["object"]["data"] == {"a": "1"} and request["object"]["metadata"]["uid"]
    assert request["oldObject"] is None
    assert request["options"]["kind"] == "CreateOptions"
    await curl("PATCH", f"{MAPS}/m", {"data": {"a": "2"}}, headers={"Content-Type": "application/merge-patch+json"})
    await curl("DELETE", f"{MAPS}/m", {"gracePeriodSeconds": 0})
    update, delete = hook.seen[1:]
    assert (update["object"]["data"], update["oldObject"]["data"], update["options"]["kind"]) == (
        {"a": "2"},
        {"a": "1"},
        "PatchOptions",
    )
    assert (delete["object"], delete["oldObject"]["data"], delete["options"]["gracePeriodSeconds"]) == (
        None,
        {"a": "2"},
        0,
    )


@pytest.mark.parametrize(
    ("response", "code", "said"),
    [
        ({"allowed": False}, 400, 'admission webhook "hook.example.com" denied the request without explanation'),
        (
            {"allowed": False, "status": {"message": "no"}},
            400,
            'admission webhook "hook.example.com" denied the request: no',
        ),
        ({"allowed": False, "status": {"reason": "Forbidden", "code": 403}}, 403, "denied the request: Forbidden"),
        ({"allowed": False, "status": {"code": 200, "message": "no"}}, 400, "denied the request: no"),
        ({"allowed": "yes"}, 400, "denied the request without explanation"),
    ],
)
async def test_a_denial_has_the_webhooks_words_and_code(
    curl: ApiCaller, hook: Hook, response: JSON, code: int, said: str
) -> None:
    await validating(curl, hook)
    hook.answer = lambda _: response
    denied = await make_map(curl)
    assert denied.status == code
    assert said in denied.message


async def test_warnings_are_handed_on(curl: ApiCaller, hook: Hook) -> None:
    await validating(curl, hook)
    hook.answer = lambda _: {"allowed": True, "warnings": ["think again"]}
    assert "think again" in (await make_map(curl)).headers["Warning"]


async def test_a_patch_changes_the_object_before_its_rules_and_the_policies_look(curl: ApiCaller, hook: Hook) -> None:
    await mutating(curl, hook)
    hook.answer = lambda _: patch(
        {"op": "add", "path": "/data/b", "value": "2"}, {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}
    )
    made = await make_map(curl)
    assert (made.json["data"], made.json["metadata"]["labels"]) == ({"a": "1", "b": "2"}, {"x": "y"})
    hook.answer = lambda _: patch({"op": "add", "path": "/metadata/labels", "value": {"not a label": "!"}})
    assert (await make_map(curl, "n")).status == 422
    hook.answer = lambda _: patch({"op": "replace", "path": "/metadata/name", "value": 7})
    assert (await make_map(curl, "o")).status == 400


async def test_a_webhook_that_wants_it_is_asked_again_when_a_later_one_changed_the_object(
    curl: ApiCaller, hook: Hook
) -> None:
    configuration = hook.configuration(reinvocationPolicy="IfNeeded")
    first = configuration["webhooks"][0]
    configuration["webhooks"].append({**first, "name": "later.example.com", "reinvocationPolicy": "Never"})
    await curl.make(f"{GROUP}/mutatingwebhookconfigurations", configuration)
    hook.answer = lambda r: (
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
async def test_an_answer_that_is_none_is_decided_by_the_failure_policy(
    curl: ApiCaller, hook: Hook, raw: Response, kind: str
) -> None:
    hook.raw = raw
    plural = f"{GROUP}/{kind}webhookconfigurations"
    await curl.make(plural, hook.configuration())
    denied = await make_map(curl)
    assert (denied.status, denied.json["reason"]) == (500, "InternalError")
    assert denied.message.startswith(
        'Internal error occurred: failed calling webhook "hook.example.com": failed to call webhook: '
    )
    await curl("DELETE", f"{plural}/hooks")
    await curl.make(plural, hook.configuration(failurePolicy="Ignore"))
    assert (await make_map(curl)).status == 201


@pytest.mark.parametrize(
    "response",
    [
        {"allowed": True, "patch": "e30=", "patchType": "Other"},
        {"allowed": True, "patch": "no base64!", "patchType": "JSONPatch"},
        {"allowed": True, "patchType": "JSONPatch"},
        patch({"op": "remove", "path": "/data/nothing"}),
        patch({"op": "dance"}),
    ],
)
async def test_a_patch_that_cannot_be_applied_fails_the_call(curl: ApiCaller, hook: Hook, response: JSON) -> None:
    await mutating(curl, hook)
    hook.answer = lambda _: response
    assert (await make_map(curl)).status == 500


async def test_one_that_does_not_answer_in_time_is_not_waited_for(curl: ApiCaller, hook: Hook) -> None:
    await validating(curl, hook, timeoutSeconds=1)
    hook.gate.clear()
    denied = await make_map(curl)
    assert (denied.status, "context deadline exceeded" in denied.message) == (500, True)


async def test_a_certificate_of_nobody_that_the_bundle_names_is_not_believed(
    curl: ApiCaller, hook: Hook, tmp_path: Path
) -> None:
    other = authority(tmp_path, "other")
    client = {"url": hook.url, "caBundle": base64.b64encode(other.cert.read_bytes()).decode()}
    await validating(curl, hook, clientConfig=client)
    denied = await make_map(curl)
    assert (denied.status, "certificate" in denied.message) == (500, True)
    assert not hook.seen


@pytest.mark.parametrize(("policy", "code"), [("Fail", 500), ("Ignore", 201)])
async def test_a_service_cannot_be_reached_and_that_is_reported(
    curl: ApiCaller, hook: Hook, policy: str, code: int
) -> None:
    client = {"service": {"namespace": "default", "name": "hook"}}
    body = hook.configuration(clientConfig=client, failurePolicy=policy)
    made = await curl("POST", f"{GROUP}/validatingwebhookconfigurations", body)
    assert "no service network" in made.headers["Warning"]
    answer = await make_map(curl)
    assert answer.status == code
    if code != 201:
        assert "cannot reach service default/hook" in answer.message


async def test_selectors_and_conditions_choose_what_it_is_asked(curl: ApiCaller, hook: Hook) -> None:
    only = {"name": "only", "expression": "object.metadata.name.startsWith('x')"}
    await validating(
        curl,
        hook,
        matchConditions=[only],
        objectSelector={"matchExpressions": [{"key": "no", "operator": "DoesNotExist"}]},
    )
    await make_map(curl)
    assert not hook.seen
    await make_map(curl, "x1")
    await curl("POST", MAPS, {"metadata": {"name": "x2", "labels": {"no": ""}}})
    assert [r["name"] for r in hook.seen] == ["x1"]


async def test_a_dry_run_is_reported(curl: ApiCaller, hook: Hook) -> None:
    await validating(curl, hook)
    assert (await make_map(curl, dryRun="All")).status == 201
    assert hook.seen[0]["dryRun"] is True
    assert (await curl("GET", f"{MAPS}/m")).status == 404


async def test_an_object_that_changed_while_a_webhook_thought_is_judged_again(curl: ApiCaller, hook: Hook) -> None:
    await make_map(curl)
    await validating(curl, hook)
    hook.gate.clear()
    merge = {"Content-Type": "application/merge-patch+json"}
    slow = asyncio.create_task(curl("PATCH", f"{MAPS}/m", {"data": {"slow": "1"}}, headers=merge))
    async with asyncio.timeout(30):
        while not hook.seen:
            await asyncio.sleep(0)
    storage = curl.server.storage
    old = storage.get("configmaps", "default", "m")
    assert old is not None
    storage.put("configmaps", {**old, "data": {"quick": "1"}})
    hook.gate.set()
    answer = await slow
    assert answer.status == 200
    assert answer.json["data"] == {"quick": "1", "slow": "1"}
    assert [sorted(r["object"]["data"]) for r in hook.seen] == [["a", "slow"], ["quick", "slow"]]


async def test_a_put_that_names_a_version_conflicts_with_what_changed_meanwhile(curl: ApiCaller, hook: Hook) -> None:
    made = (await make_map(curl)).json
    await validating(curl, hook)
    hook.gate.clear()
    slow = asyncio.create_task(curl("PUT", f"{MAPS}/m", {**made, "data": {"slow": "1"}}))
    async with asyncio.timeout(30):
        while not hook.seen:
            await asyncio.sleep(0)
    curl.server.storage.put("configmaps", {**curl.server.storage.list("configmaps")[0], "data": {"quick": "1"}})
    hook.gate.set()
    assert (await slow).status == 409


@pytest.mark.parametrize(
    ("changed", "field"),
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
async def test_a_configuration_that_cannot_work_is_not_kept(
    curl: ApiCaller, hook: Hook, changed: JSON, field: str
) -> None:
    answer = await curl("POST", f"{GROUP}/mutatingwebhookconfigurations", hook.configuration(**changed))
    assert answer.status == 422, answer.body
    assert field in [f for _, f in answer.causes]
