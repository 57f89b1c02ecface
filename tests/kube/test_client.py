"""The request of each client call, when the client retries it, the version that it discovers, and the class of each error."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import ApiConfig, KubeClient, Resource
from dra_kubeletplugin.kube.credentials import Token
from dra_kubeletplugin.kube.decoding import Page
from dra_kubeletplugin.kube.discovery import Discovery
from dra_kubeletplugin.kube.errors import (
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    api_error,
)
from dra_kubeletplugin.kube.resource import CLAIMS, PODS, SLICES
from tests.helpers.raw_server import RawServer, http_response, serve_replies

OBJECT = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}}
LIST = {"metadata": {"resourceVersion": "1"}, "items": [OBJECT]}
BUSY = "429 Too Many Requests"


@contextlib.asynccontextmanager
async def answering(*replies: bytes, **config: Any) -> AsyncIterator[tuple[KubeClient, RawServer]]:
    """Yields a client of a server that sends ``replies`` in order, and repeats the last one."""
    async with serve_replies(*replies) as peer, KubeClient(ApiConfig(peer.url, **config), timeout=60) as client:
        yield client, peer


def wait(seconds: str, status: str = BUSY) -> bytes:
    return http_response({"message": "busy"}, status, f"Retry-After: {seconds}\r\n")


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
    do: Callable[[KubeClient], Any], method: str, target: str, kind: str, body: Any
) -> None:
    is_list = "list" in do.__code__.co_names or "page" in do.__code__.co_names
    async with answering(http_response(LIST if is_list else OBJECT), credentials=Token("t")) as (client, peer):
        assert isinstance(await do(client), dict | Page)
    (request,) = peer.requests
    head, _, data = request.partition(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    assert first == f"{method} {target} HTTP/1.1"
    found = dict(line.split(": ") for line in headers if not line.startswith(("Host", "Content-Length")))
    expected = {"Accept": "application/json", "User-Agent": "dra-kubeletplugin", "Authorization": "Bearer t"}
    assert found == (expected | {"Content-Type": kind} if kind else expected)
    assert (json.loads(data) if data else None) == body


# --- retries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [BUSY, "503 Service Unavailable"])
async def test_the_client_retries_four_times_after_the_requested_wait(status: str) -> None:
    async with answering(wait("0.1", status)) as (client, peer):
        began = asyncio.get_running_loop().time()
        with pytest.raises(ApiError, match="busy") as e:
            await client.call("GET", "/x")
        assert (e.value.status, len(peer.requests)) == (int(status[:3]), 5)
        assert asyncio.get_running_loop().time() - began >= 0.4


@pytest.mark.parametrize(
    ("retry_after", "waited"), [("31", 30.0), ("1e9", 30.0), ("-1", 1.0), ("Wed, 21 Oct 2015", 1.0), ("nan", 1.0)]
)
async def test_a_wait_longer_than_the_timeout_is_an_error_at_once(retry_after: str, waited: float) -> None:
    """Odd values count as 1 s, and large ones as 30 s."""
    async with answering(wait(retry_after), http_response(OBJECT)) as (client, peer):
        with pytest.raises(ApiError, match="busy"):
            await client.call("GET", "/x", timeout=waited)
        assert len(peer.requests) == 1
    async with answering(wait(retry_after), http_response(OBJECT)) as (client, peer):
        retrying = asyncio.create_task(client.call("GET", "/x", timeout=waited + 20))
        assert not (await asyncio.wait({retrying}, timeout=0.3))[0]
        retrying.cancel()


@pytest.mark.parametrize(
    "reply",
    [http_response({}, BUSY), http_response({}, "503 -"), wait("1", "500 -"), wait("1", "409 Conflict")],
    ids=["429", "503", "500", "409"],
)
async def test_other_errors_are_not_retried(reply: bytes) -> None:
    async with answering(reply) as (client, peer):
        with pytest.raises(ApiError):
            await client.call("GET", "/x")
        assert len(peer.requests) == 1


# --- versions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plural", ["resourceslices", "deviceclasses", "resourceclaims", "resourceclaimtemplates"])
async def test_a_resource_has_the_newest_known_version_of_the_server(plural: str) -> None:
    async with answering(http_response({"versions": [{"version": "v1beta1"}, {"version": "v1beta2"}]})) as (client, _):
        found = await client.dra(plural)
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


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (400, "BadRequest", BadRequestError),
        (401, "Unauthorized", UnauthorizedError),
        (403, "Forbidden", ForbiddenError),
        (404, "NotFound", NotFoundError),
        (409, "Conflict", ConflictError),
        (409, "AlreadyExists", AlreadyExistsError),
        (410, "Expired", GoneError),
        (422, "Invalid", InvalidError),
        (429, "TooManyRequests", ApiError),
        (500, "InternalError", ApiError),
    ],
)
async def test_each_status_has_its_class_in_calls_and_streams(
    status: int, reason: str, expected: type[ApiError]
) -> None:
    body = {"kind": "Status", "reason": reason, "message": "why" * 1000}
    async with answering(http_response(body, f"{status} -")) as (client, _):
        for request in (client.call("GET", "/x"), client.stream("/x", {}, 9, lambda: None).__aenter__()):
            with pytest.raises(ApiError, match=f"GET /x: {status} why") as e:
                await request
            assert type(e.value) is expected
            assert (e.value.status, e.value.code, e.value.details) == (status, "DRA-E006", body)
            assert e.value.unreachable == (status in {429, 500})
            assert len(str(e.value)) < 1000, "a long message is shortened"
    async with answering(http_response(b"", f"{status} -")) as (client, _):
        with pytest.raises(ConflictError if status == 409 else expected, match=f"GET /x: {status}"):
            await client.call("GET", "/x")
