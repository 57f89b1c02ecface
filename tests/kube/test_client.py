"""The request of each client call, when the client retries it, and how the client reads each kind of response."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import ApiConfig, KubeClient, Resource
from dra_kubeletplugin.kube import client as module
from dra_kubeletplugin.kube.credentials import Credentials
from dra_kubeletplugin.kube.decoding import (
    converting_errors,
    decode_list,
    decode_object,
    decode_page,
    identity,
    refusal,
)
from dra_kubeletplugin.kube.discovery import Discovery
from dra_kubeletplugin.kube.errors import api_error
from dra_kubeletplugin.kube.http1 import HttpResponse, MalformedResponseError
from dra_kubeletplugin.kube.resource import CLAIMS, PODS, SLICES

OBJECT = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}}
LIST = {"metadata": {"resourceVersion": "1"}, "items": [OBJECT]}


def response_of(body: Any = None, status: int = 200, **headers: str) -> HttpResponse:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpResponse(status, {k.replace("_", "-").encode(): v.encode() for k, v in headers.items()}, data)


class StubTransport:
    """A transport that records requests and returns ``responses`` in order. It repeats the last response."""

    server = "http://server"
    load = "the load"

    def __init__(self) -> None:
        self.responses: list[HttpResponse] = [response_of(OBJECT)]
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.done: list[str] = []
        self.slept: list[float] = []
        self.sends: list[bytes | Exception] = []
        self.closed_lines = False

    def _next(self) -> HttpResponse:
        return self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]

    async def request(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> HttpResponse:
        self.requests.append((method, target, dict(headers), body))
        return self._next()

    @contextlib.asynccontextmanager
    async def stream(self, target: str, headers: dict[str, str]) -> AsyncIterator[tuple[HttpResponse, Any]]:
        self.requests.append(("GET", target, dict(headers), b""))
        yield self._next(), self
        self.done.append("stream")

    async def lines(self, silence: float) -> AsyncIterator[bytes]:
        self.silence = silence
        try:
            for line in self.sends:
                if isinstance(line, Exception):
                    raise line
                yield line
        finally:
            self.closed_lines = True

    def forget_idle(self) -> None:
        self.done.append("idle connections closed")

    async def close(self) -> None:
        self.done.append("closed")


class StubCredentials(Credentials):
    def __init__(self, *headers: str) -> None:
        self.headers = list(headers)

    async def header(self) -> str:
        return self.headers[0] if self.headers else ""

    def rejected(self) -> None:
        if len(self.headers) > 1:
            self.headers.pop(0)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> StubTransport:
    transport = StubTransport()

    async def sleep(seconds: float) -> None:
        transport.slept.append(seconds)

    monkeypatch.setattr(module, "Transport", lambda *args, **kwargs: transport)
    names = {n: getattr(asyncio, n) for n in ("timeout", "get_running_loop")}
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep, **names))
    monkeypatch.setattr(module, "random", SimpleNamespace(uniform=lambda low, high: low))
    return transport


def client(*headers: str, **more: Any) -> KubeClient:
    return KubeClient(ApiConfig("http://server", credentials=StubCredentials(*headers)), **more)


# --- requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "place", "path"),
    [
        (CLAIMS, ("ns", "n"), "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/n"),
        (CLAIMS, ("ns", "n", "status"), "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/n/status"),
        (CLAIMS, (), "/apis/resource.k8s.io/v1/resourceclaims"),
        (SLICES, ("ns", "n"), "/apis/resource.k8s.io/v1/resourceslices/n"),
        (PODS, ("a/b", "c?d"), "/api/v1/namespaces/a%2Fb/pods/c%3Fd"),
    ],
)
def test_paths(resource: Resource, place: tuple[str, ...], path: str) -> None:
    assert resource.path(*place) == path


def test_the_api_version_of_a_resource_contains_group_and_version() -> None:
    assert (CLAIMS.api_version, PODS.api_version) == ("resource.k8s.io/v1", "v1")
    assert not Resource("g", "v", "p").namespaced


C = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims"
S = "/apis/resource.k8s.io/v1/resourceslices"
PLAIN = "application/json"
NAMED = {"metadata": {"name": "n", "namespace": "ns"}}
OPTIONS = {"kind": "DeleteOptions", "apiVersion": "v1"}


@pytest.mark.parametrize(
    ("do", "method", "target", "kind", "body"),
    [
        (lambda c: c.get(CLAIMS, "n", "ns"), "GET", f"{C}/n", "", None),
        (lambda c: c.get(CLAIMS, "n"), "GET", "/apis/resource.k8s.io/v1/resourceclaims/n", "", None),
        (lambda c: c.get(SLICES, "n"), "GET", f"{S}/n", "", None),
        (lambda c: c.list(CLAIMS), "GET", "/apis/resource.k8s.io/v1/resourceclaims", "", None),
        (lambda c: c.list(CLAIMS, "ns", fields="a=b", labels="c=d", limit=5, cont="e"), "GET", f"{C}?fieldSelector=a%3Db&labelSelector=c%3Dd&limit=5&continue=e", "", None),
        (lambda c: c.page(CLAIMS), "GET", "/apis/resource.k8s.io/v1/resourceclaims", "", None),
        (lambda c: c.page(CLAIMS, "ns", fields="a=b", labels="c=d", limit=5, cont="e"), "GET", f"{C}?fieldSelector=a%3Db&labelSelector=c%3Dd&limit=5&continue=e", "", None),
        (lambda c: c.create(CLAIMS, NAMED), "POST", C, PLAIN, NAMED),
        (lambda c: c.create(CLAIMS, {"metadata": {}}, "ns"), "POST", C, PLAIN, {"metadata": {}}),
        (lambda c: c.create(SLICES, {"metadata": {}}), "POST", S, PLAIN, {"metadata": {}}),
        (lambda c: c.update(CLAIMS, NAMED), "PUT", f"{C}/n", PLAIN, NAMED),
        (lambda c: c.update(SLICES, {"metadata": {"name": "n"}}, "status"), "PUT", f"{S}/n/status", PLAIN, {"metadata": {"name": "n"}}),
        (lambda c: c.patch(CLAIMS, "n", {"a": 1}, "ns", "status"), "PATCH", f"{C}/n/status", "application/merge-patch+json", {"a": 1}),
        (lambda c: c.patch(SLICES, "n", [{"op": "test"}]), "PATCH", f"{S}/n", "application/json-patch+json", [{"op": "test"}]),
        (lambda c: c.patch(CLAIMS, "n", {}), "PATCH", "/apis/resource.k8s.io/v1/resourceclaims/n", "application/merge-patch+json", {}),
        (lambda c: c.delete(CLAIMS, "n"), "DELETE", "/apis/resource.k8s.io/v1/resourceclaims/n", PLAIN, OPTIONS),
        (lambda c: c.delete(CLAIMS, "n", "ns"), "DELETE", f"{C}/n", PLAIN, OPTIONS),
        (lambda c: c.delete(SLICES, "n", uid="u", grace=0), "DELETE", f"{S}/n", PLAIN, {**OPTIONS, "preconditions": {"uid": "u"}, "gracePeriodSeconds": 0}),
        (lambda c: c.delete(SLICES, "n", uid="u", version="5"), "DELETE", f"{S}/n", PLAIN, {**OPTIONS, "preconditions": {"uid": "u", "resourceVersion": "5"}}),
        (lambda c: c.call("GET", "/x", query={"a": "", "b": "1"}), "GET", "/x?b=1", "", None),
        (lambda c: c.call("GET", "/x", query={"a": ""}), "GET", "/x", "", None),
        (lambda c: c.call("POST", "/x", {}), "POST", "/x", PLAIN, {}),
        (lambda c: c.call("POST", "/x", [], content_type="a/b"), "POST", "/x", "a/b", []),
    ],
)  # fmt: skip
async def test_each_call_sends_the_expected_request(
    do: Callable[[KubeClient], Any], method: str, target: str, kind: str, body: Any, sent: StubTransport
) -> None:
    if "list" in do.__code__.co_names or "page" in do.__code__.co_names:
        sent.responses = [response_of(LIST)]
    found = await do(client("Bearer t"))
    assert found if isinstance(found, dict) else found.items
    ((m, t, headers, data),) = sent.requests
    assert (m, t) == (method, target)
    expected = {"Accept": "application/json", "User-Agent": "dra-kubeletplugin", "Authorization": "Bearer t"}
    assert headers == (expected | {"Content-Type": kind} if kind else expected)
    assert (json.loads(data) if data else None) == body


async def test_headers_follow_the_credentials() -> None:
    credentials = StubCredentials("Bearer a", "Bearer b", "")
    c = KubeClient(ApiConfig("http://server", credentials=credentials))
    seen = []
    for _ in range(3):
        seen.append([(await c.headers()).get("Authorization") for _ in range(2)])
        credentials.rejected()
    assert seen == [["Bearer a"] * 2, ["Bearer b"] * 2, [None, None]]
    await c.close()


async def test_a_client_closes_its_transport(sent: StubTransport) -> None:
    async with client():
        pass
    assert sent.done == ["closed"]


async def test_closing_the_client_ends_a_version_request(sent: StubTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: Any) -> HttpResponse:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(sent, "request", never)
    c = client()
    waiting = asyncio.ensure_future(c.dra_version())
    for _ in range(3):
        await asyncio.sleep(0)
    await c.close()
    with pytest.raises(ApiError, match="the client was closed"):
        async with asyncio.timeout(30):
            await waiting


# --- retries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
async def test_the_client_retries_four_times_after_the_requested_wait(status: int, sent: StubTransport) -> None:
    sent.responses = [response_of({}, status, retry_after="2")]
    with pytest.raises(ApiError) as e:
        await client(timeout=1000).call("GET", "/x")
    assert e.value.status == status
    assert len(sent.requests) == 5
    assert sent.slept[:4] == [2.0] * 4


@pytest.mark.parametrize(
    ("retry_after", "waited"),
    [("0", 0.0), ("1.5", 1.5), ("30", 30.0), ("31", 30.0), ("1e9", 30.0), ("-1", 1.0), ("Wed, 21 Oct 2015", 1.0), ("nan", 1.0)],
)  # fmt: skip
async def test_the_wait_before_a_retry_follows_retry_after(
    retry_after: str, waited: float, sent: StubTransport
) -> None:
    sent.responses = [response_of({}, 429, retry_after=retry_after), response_of(OBJECT)]
    await client(timeout=1000).call("GET", "/x")
    assert sent.slept == [waited]


@pytest.mark.parametrize(
    ("status", "headers"), [(429, {}), (503, {}), (500, {"retry_after": "1"}), (409, {"retry_after": "1"})]
)
async def test_other_errors_are_not_retried(status: int, headers: dict[str, str], sent: StubTransport) -> None:
    sent.responses = [response_of({}, status, **headers)]
    with pytest.raises(ApiError):
        await client().call("GET", "/x")
    assert (len(sent.requests), sent.slept) == (1, [])


@pytest.mark.parametrize(("timeout", "requests"), [(5, 1), (60, 2)])
async def test_a_wait_longer_than_the_timeout_is_an_error_at_once(
    timeout: float, requests: int, sent: StubTransport
) -> None:
    sent.responses = [response_of({"message": "busy"}, 429, retry_after="10"), response_of(OBJECT)]
    with pytest.raises(ApiError, match="busy") if requests == 1 else contextlib.nullcontext():
        await client(timeout=7).call("GET", "/x", timeout=timeout)
    assert len(sent.requests) == requests


async def test_a_401_is_retried_once_with_new_credentials(sent: StubTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    sent.responses = [response_of({}, 401), response_of(OBJECT)]
    c = client("old", "new")
    monkeypatch.setattr(c.config.tls, "rejected", lambda: sent.done.append("certificates read again"))
    await c.call("GET", "/x")
    assert sent.done.pop(0) == "certificates read again"
    assert [h["Authorization"] for _, _, h, _ in sent.requests] == ["old", "new"]
    assert sent.done == ["idle connections closed"]
    sent.responses = [response_of({}, 401)]
    with pytest.raises(ApiError) as e:
        await client("old", "new").call("GET", "/x")
    assert e.value.status == 401
    assert len(sent.requests) == 4


async def test_a_401_after_a_wait_is_final(sent: StubTransport) -> None:
    sent.responses = [response_of({}, 429, retry_after="0"), response_of({}, 401)]
    with pytest.raises(ApiError) as e:
        await client().call("GET", "/x")
    assert (e.value.status, len(sent.requests)) == (401, 2)


async def test_a_timeout_reports_what_the_client_waited_for(
    sent: StubTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*args: Any) -> HttpResponse:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(sent, "request", never)
    for c, more in ((client(timeout=0.01), {}), (client(), {"timeout": 0.01})):
        with pytest.raises(ApiError, match=r"GET /x: no response from http://server within 0.01s \(the load\)") as e:
            await c.call("GET", "/x", **more)
        assert e.value.unreachable


# --- versions -----------------------------------------------------------------------------------------------


def group(*versions: str) -> HttpResponse:
    return response_of({"versions": [{"version": v} for v in versions]})


@pytest.mark.parametrize(
    ("path", "body", "group_requests"),
    [
        ("/apis/resource.k8s.io/v1/resourceslices", {}, 2),
        ("/apis/resource.k8s.io/v1/resourceslices/n", {"details": {}}, 2),
        ("/apis/resource.k8s.io/v1/resourceslices/n", {"details": {"name": ""}}, 2),
        ("/apis/resource.k8s.io/v1/resourceslices/n", {"details": "n"}, 2),
        ("/apis/resource.k8s.io/v1/resourceslices/n", {"details": {"name": "n"}}, 1),
        ("/apis/apps/v1/deployments", {}, 1),
        ("/apis/resource.k8s.io", {}, 1),
    ],
)
async def test_a_404_of_a_whole_resource_makes_the_client_request_versions_again(
    path: str, body: Any, group_requests: int, sent: StubTransport
) -> None:
    c = client()
    sent.responses = [group("v1"), response_of(body, 404), group("v1beta1")]
    assert await c.dra_version() == "v1"
    with pytest.raises(ApiError):
        await c.call("GET", path)
    assert await c.dra_version() == ("v1beta1" if group_requests == 2 else "v1")
    assert sum(t == "/apis/resource.k8s.io" for _, t, _, _ in sent.requests) == group_requests + (
        path == "/apis/resource.k8s.io"
    )


async def test_other_refusals_do_not_forget_the_version(sent: StubTransport) -> None:
    c = client()
    sent.responses = [group("v1"), response_of({}, 403), group("v1beta1")]
    await c.dra_version()
    with pytest.raises(ApiError):
        await c.call("GET", "/apis/resource.k8s.io/v1/resourceslices")
    assert await c.dra_version() == "v1"
    assert await c.refresh_version() == "v1beta1"
    c.forget_version()
    assert await c.dra_version() == "v1beta1"
    assert len(sent.requests) == 4


@pytest.mark.parametrize("plural", ["resourceslices", "deviceclasses", "resourceclaims", "resourceclaimtemplates"])
async def test_a_resource_has_the_newest_known_version_of_the_server(plural: str, sent: StubTransport) -> None:
    sent.responses = [group("v1beta1", "v1beta2")]
    found = await client().dra(plural)
    assert found == Resource("resource.k8s.io", "v1beta2", plural, plural.startswith("resourceclaim"))


@pytest.mark.parametrize(
    ("versions", "best"),
    [(["v1", "v1beta1"], "v1"), (["v1beta1"], "v1beta1"), (["v9", "v1beta2"], "v1beta2"), (["v9"], "v9"), ([], "none")],
)
async def test_discovery_selects_the_newest_version_that_server_and_client_have(versions: list[str], best: str) -> None:
    async def fetch() -> dict[str, Any]:
        return {"versions": [*({"version": v} for v in versions), "odd"]}

    discovery = Discovery(fetch)
    if best in {"v9", "none"}:
        with pytest.raises(ApiError, match=f"served: {best}") as e:
            await discovery.version()
        assert e.value.status == 404
    else:
        assert await discovery.version() == best


@pytest.mark.parametrize("status", [0, 403, 404, 500])
async def test_a_404_means_no_served_version_and_other_errors_are_raised_unchanged(status: int) -> None:
    async def fetch() -> dict[str, Any]:
        raise api_error("asked", status, {"a": 1})

    discovery = Discovery(fetch)
    for _ in range(2):
        with pytest.raises(ApiError, match="served: none" if status == 404 else "asked") as e:
            await discovery.version()
        assert e.value.status == status
    await discovery.close()


@pytest.mark.parametrize("body", [{}, {"versions": None}, {"versions": {"version": "v1"}}])
async def test_a_response_without_a_list_of_versions_is_an_error(body: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="lists no versions"):
        await Discovery(lambda: asyncio.sleep(0, body)).version()
    with pytest.raises(ApiError) as e:
        await Discovery(lambda: asyncio.sleep(0, {**body, "x": "x" * 1000})).version()
    assert len(str(e.value)) == len("/apis/resource.k8s.io: the response lists no versions: ") + 300


async def test_callers_share_one_version_request_and_a_cancelled_caller_does_not_end_it() -> None:
    group_requests, release = 0, asyncio.Event()

    async def fetch() -> dict[str, Any]:
        nonlocal group_requests
        group_requests += 1
        await release.wait()
        return {"versions": [{"version": "v1"}]}

    discovery = Discovery(fetch)
    tasks = [asyncio.create_task(discovery.version()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    release.set()
    assert await asyncio.gather(*tasks[1:]) == ["v1", "v1"]
    assert group_requests == 1
    assert await discovery.refresh() == "v1"
    assert group_requests == 2


async def test_a_change_of_the_served_version_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    versions = ["v1beta1", "v1beta1", "v1", "v1"]
    discovery = Discovery(lambda: asyncio.sleep(0, {"versions": [{"version": versions.pop(0)}]}))
    for _ in range(4):
        await discovery.refresh()
    assert [r.getMessage() for r in caplog.records] == [
        "the API server serves another version of resource.k8s.io: v1, before v1beta1"
    ]


async def test_a_failed_refresh_keeps_the_known_version_and_close_ends_a_refresh() -> None:
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    responses: list[Any] = [{"versions": [{"version": "v1"}]}, ApiError("away"), asyncio.Event()]

    async def fetch() -> dict[str, Any]:
        found = responses.pop(0)
        if isinstance(found, Exception):
            raise found
        if isinstance(found, asyncio.Event):
            await found.wait()
        return dict(found)

    discovery = Discovery(fetch)
    assert await discovery.version() == "v1"
    with pytest.raises(ApiError, match="away"):
        await discovery.refresh()
    assert await discovery.version() == "v1"
    waiting = asyncio.create_task(discovery.refresh())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await discovery.close()
        assert not [t for t in asyncio.all_tasks() if t.get_name() == "discovery"]
        with pytest.raises(ApiError, match="the client was closed"):
            await waiting
    assert unhandled == []


# --- streams ------------------------------------------------------------------------------------------------


async def test_a_stream_yields_the_lines_of_the_response(sent: StubTransport) -> None:
    sent.responses = [response_of()]
    sent.sends = [b"a", b"b"]
    opened: list[int] = []
    async with client("t").stream("/w", {"a": "1", "b": ""}, 7, lambda: opened.append(1)) as lines:
        assert opened == [1]
        assert [line async for line in lines] == [b"a", b"b"]
    assert sent.requests[0][1] == "/w?a=1"
    assert sent.requests[0][2]["Authorization"] == "t"
    assert (sent.silence, sent.done, sent.closed_lines) == (7, ["stream"], True)


@pytest.mark.parametrize("status", [201, 401, 410, 500])
async def test_a_refused_stream_raises_an_error_with_status_and_message(status: int, sent: StubTransport) -> None:
    sent.responses = [response_of({"message": "no"}, status)]
    with pytest.raises(ApiError, match=f"GET /w: {status} no") as e:
        async with client().stream("/w", {}, 7, lambda: pytest.fail("opened")):
            pytest.fail("opened")
    assert e.value.status == status
    assert ("idle connections closed" in sent.done) == (status == 401)


async def test_a_silent_stream_raises_an_error(sent: StubTransport) -> None:
    sent.responses = [response_of()]
    sent.sends = [b"a", TimeoutError()]
    with pytest.raises(ApiError, match="GET /w: http://server was silent for 7s"):
        async with client().stream("/w", {}, 7, lambda: None) as lines:
            async for _ in lines:
                pass


# --- responses ----------------------------------------------------------------------------------------------


def test_a_successful_response_is_decoded_to_an_object_or_an_empty_one() -> None:
    assert decode_object(response_of({"a": 1}, 201), "w") == {"a": 1}
    assert decode_object(response_of(b"", 204), "w") == {}
    assert decode_object(response_of({"a": 1}, 299), "w") == {"a": 1}


@pytest.mark.parametrize(
    ("response", "status", "message"),
    [
        (response_of(status=300, location="http://x"), 0, "w: 300, a redirect to 'http://x'"),
        (response_of(LIST, 300), 0, "w: 300, a redirect"),
        (response_of({"message": "m"}, 399), 0, "w: 399, a redirect"),
        (response_of({"message": "m"}, 400), 400, "w: 400 m"),
        (response_of({"reason": "r"}, 409), 409, "w: 409 r"),
        (response_of({}, 409), 409, "w: 409 "),
        (response_of([1], 409), 409, r"w: 409 \[1\]"),
        (response_of(b"<html>", 499, content_type="text/html; charset=x"), 0, "w: 499 <html>"),
        (response_of(b"<html>", 500, content_type="text/html"), 500, "w: 500 <html>"),
        (response_of(b"<html>", 403), 403, "w: 403 <html>"),
        (response_of(b"[]"), 0, r"w: the response is not a JSON object: \[\]"),
        (response_of(b"{"), 0, "w: the response is not JSON "),
    ],
)
def test_every_other_response_is_an_error(response: HttpResponse, status: int, message: str) -> None:
    for read in (decode_object, decode_page):
        with pytest.raises(ApiError) as e:
            read(response, "w")
        assert e.value.status == status
        if read is decode_object:
            assert e.match(message)
    if status == 409:
        assert refusal(response, "w").details == (json.loads(response.body) if response.body.startswith(b"{") else {})


def test_a_long_error_response_is_shortened_in_the_message() -> None:
    assert len(str(refusal(response_of(b"x" * 5000, 500), "w"))) == len("w: 500 ") + 300
    assert len(str(refusal(response_of({"message": "x" * 5000}, 500), "w"))) == len("w: 500 ") + 900


def lists(**more: Any) -> dict[str, Any]:
    return LIST | more


@pytest.mark.parametrize(
    ("page", "good"),
    [
        (lists(), True),
        (lists(items=[]), True),
        (lists(items=None), True),
        (lists(metadata={"resourceVersion": "1", "continue": "c"}), True),
        (lists(items={}), True),
        (lists(items={"a": 1}), False),
        (lists(metadata=None), False),
        (lists(metadata=[]), False),
        (lists(metadata={}), False),
        (lists(metadata={"resourceVersion": 1}), False),
        (lists(metadata={"resourceVersion": "1", "continue": 1}), False),
        (lists(items=[OBJECT, {}]), False),
    ],
)
def test_the_client_accepts_only_lists_of_objects(page: dict[str, Any], good: bool) -> None:
    if good:
        assert decode_list(page, "w") == page | {"items": page["items"] or []}
        if page["items"] != {}:
            found = decode_page(response_of(page), "w")
            assert [json.loads(bytes(i)) for i in found.items or []] == (page["items"] or [])
            assert found.metadata.cont == page["metadata"].get("continue", "")
        return
    with pytest.raises(ApiError, match="w: the response is "):
        decode_list(page, "w")
    with pytest.raises(ApiError, match="w: the response is not a list of objects"):
        decode_page(response_of(page), "w")


@pytest.mark.parametrize("missing", ["name", "uid"])
def test_an_item_without_name_or_uid_is_rejected(missing: str) -> None:
    item = {"metadata": OBJECT["metadata"] | {missing: ""}}
    with pytest.raises(ApiError, match="no name or no UID"):
        decode_page(response_of(lists(items=[OBJECT, item])), "w")
    with pytest.raises(ApiError):
        decode_list(lists(items=[OBJECT, item]), "w")


@pytest.mark.parametrize("of", ["name", "uid", "resourceVersion"])
@pytest.mark.parametrize("value", [None, 1, ""])
def test_an_object_without_name_uid_or_version_is_rejected(of: str, value: Any) -> None:
    assert identity(OBJECT) == ("u", "1")
    incomplete = {"metadata": OBJECT["metadata"] | {of: value}}
    if of == "resourceVersion" and value == "":
        assert identity(incomplete) == ("u", "")
    else:
        with pytest.raises(ValueError, match="not an object with name, UID and resourceVersion"):
            identity(incomplete)
    for invalid in (None, [], {}, {"metadata": []}):
        with pytest.raises(ValueError, match="not an object"):
            identity(invalid)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (ApiError("itself"), "^itself$"),
        (TimeoutError(), "w: late"),
        (TimeoutError(110, "Connection timed out"), "w: s cannot be reached: .*timed out"),
        (ConnectionResetError("reset"), "w: s cannot be reached: .*reset"),
        (MalformedResponseError("odd"), "w: the response of s is not HTTP of an API server: .*odd"),
        (KeyError("odd"), "w: the response of s cannot be used: .*odd"),
    ],
)
def test_every_external_failure_is_an_api_error(fault: Exception, message: str) -> None:
    with pytest.raises(ApiError, match=message) as e, converting_errors("w", "s", lambda: "late"):
        raise fault
    assert e.value.status == 0
