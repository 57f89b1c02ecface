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


async def test_a_401_after_a_wait_is_final(sent: StubTransport) -> None:
    sent.responses = [response_of({}, 429, retry_after="0"), response_of({}, 401)]
    with pytest.raises(ApiError) as e:
        await client().call("GET", "/x")
    assert (e.value.status, len(sent.requests)) == (401, 2)


# --- versions -----------------------------------------------------------------------------------------------


def group(*versions: str) -> HttpResponse:
    return response_of({"versions": [{"version": v} for v in versions]})


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


@pytest.mark.parametrize("status", [201, 401, 410, 500])
async def test_a_refused_stream_raises_an_error_with_status_and_message(status: int, sent: StubTransport) -> None:
    sent.responses = [response_of({"message": "no"}, status)]
    with pytest.raises(ApiError, match=f"GET /w: {status} no") as e:
        async with client().stream("/w", {}, 7, lambda: pytest.fail("opened")):
            pytest.fail("opened")
    assert e.value.status == status
    assert ("idle connections closed" in sent.done) == (status == 401)


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
