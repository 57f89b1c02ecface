"""Tests with a stub server, clock and random source which request the reflector sends next, and how long it waits."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient, Reflector, Resource
from dra_kubeletplugin.kube import reflector as module
from dra_kubeletplugin.kube.decoding import Page
from dra_kubeletplugin.kube.errors import ForbiddenError, GoneError, NotFoundError, api_error
from dra_kubeletplugin.kube.resource import NODES

SYNCED = ("SYNCED", "")


class Enough(BaseException):
    """The script has ended."""


def obj(name: str, version: str = "1", **more: Any) -> JSON:
    return {"metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": version}, **more}


def listing(*items: JSON, version: str = "7", more: str = "") -> JSON:
    return {"metadata": {"resourceVersion": version, **({"continue": more} if more else {})}, "items": list(items)}


def line(kind: str, of: Any) -> bytes:
    return json.dumps({"type": kind, "object": of}).encode()


class Server:
    """Serves lists and watches in the order of ``script``: an error, a list, or a watch's lines and duration."""

    def __init__(self, *script: Any, versions: Sequence[str | ApiError] = (), chance: int = 1) -> None:
        self.script = list(script)
        self.chance = chance  # the random value, from 0 to 1
        self.versions = list(versions)
        self.asked: list[Any] = []
        self.slept: list[float] = []
        self.objects: dict[str, JSON] = {}  # as the events describe them
        self.now = 1000.0
        self.transport = SimpleNamespace(server="http://server")

    def _next(self) -> Any:
        if not self.script:
            raise Enough
        found = self.script.pop(0)
        if isinstance(found, ApiError):
            raise found
        return found

    async def page(
        self, resource: Resource, namespace: str, *, fields: str, limit: int, cont: str, checked: bool
    ) -> Page:
        self.asked.append(("list", resource.version, namespace, fields, limit, cont))
        return msgspec.json.decode(json.dumps(self._next()), type=Page)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: JSON, silence: float, opened: Callable[[], None]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked.append(("watch", path, query["resourceVersion"]))
        self.query, self.silence = query, silence
        lines, seconds = self._next()
        opened()

        async def read() -> AsyncIterator[bytes]:
            for found in lines:
                if isinstance(found, ApiError):
                    raise found
                self.now += 0.5
                yield found

        yield read()
        self.now += seconds

    async def dra(self, plural: str) -> Resource:
        return Resource("resource.k8s.io", self._version(), plural)

    async def refresh_version(self) -> str:
        self.asked.append("version")
        self.versions.pop(0)
        return self._version()

    def _version(self) -> str:
        if not self.versions:
            raise Enough
        if isinstance(found := self.versions[0], ApiError):
            raise found
        return found


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Follows a server to the end of its script. Returns the reflector and its events."""

    async def followed(server: Server, resource: Any = NODES, *args: Any, **more: Any) -> tuple[Reflector, list[Any]]:
        async def sleep(seconds: float) -> None:
            server.slept.append(seconds)

        monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: server.now))
        monkeypatch.setattr("random.uniform", lambda *ends: ends[server.chance])
        reflector = Reflector(cast(KubeClient, server), resource, *args, **more)
        seen: list[Any] = []
        with contextlib.suppress(Enough):
            async for event in reflector.events():
                seen.append((event.type, event.name))
                server.objects.pop(event.uid, None)
                if event.type in {"ADDED", "MODIFIED"}:
                    server.objects[event.uid] = json.loads(bytes(event.encoded))
        return reflector, seen

    return followed


def request_log(server: Server) -> list[str]:
    return [a if isinstance(a, str) else " ".join([a[0], a[2]] if a[0] == "watch" else [a[0]]) for a in server.asked]


async def test_a_watch_begins_at_the_resource_version_of_the_list(follow: Any) -> None:
    server = Server(listing(obj("a")), ([line("DELETED", obj("a", "8")), line("ADDED", obj("b", "8"))], 0))
    _, seen = await follow(server, NODES, "ns", "f=1")
    assert seen == [("ADDED", "a"), SYNCED, ("DELETED", "a"), ("ADDED", "b")]
    assert server.asked[:2] == [("list", "v1", "ns", "f=1", 500, ""), ("watch", "/api/v1/nodes", "7")]
    assert server.query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "8",
        "timeoutSeconds": "290",
        "fieldSelector": "f=1",
    }
    assert server.objects == {"u-b": obj("b", "8")}


async def test_a_list_is_read_to_its_last_page_and_reports_additions_changes_and_deletions(follow: Any) -> None:
    first = [listing(obj("a"), more="c1"), listing(obj("b"), more="c2"), listing(obj("c"), version="9")]
    server = Server(*first, GoneError("gone"), listing(obj("b", "2"), obj("c"), obj("d"), version="20"))
    _, seen = await follow(server)
    assert seen == [("ADDED", n) for n in "abc"] + [SYNCED, ("MODIFIED", "b"), ("ADDED", "d"), ("DELETED", ""), SYNCED]
    assert [a[-1] for a in server.asked] == ["", "c1", "c2", "9", "", "20"]
    assert server.objects == {"u-b": obj("b", "2"), "u-c": obj("c"), "u-d": obj("d")}


@pytest.mark.parametrize(
    ("ends", "calls"),
    [
        ([([], 289.5)], 0),
        ([([], 100)], 1),
        ([([], 1)], 1),
        ([([ApiError("reset")], 0)], 1),
        ([([ApiError("reset")], 0), ApiError("away"), ApiError("away"), listing()], 1),
        ([([], 100), ([], 289.5)], 1),
        ([([], 100), ([], 100)], 2),
    ],
    ids=["in time", "early", "at once", "reset", "away for a while", "early, then in time", "early twice"],
)
async def test_the_reflector_reports_a_resumed_watch_once(follow: Any, ends: list[Any], calls: int) -> None:
    """Another server may serve the next watch."""
    told: list[int] = []
    server = Server(listing(), *ends, ([], 0))
    await follow(server, cut=lambda: told.append(1))
    assert len(told) == calls


async def test_the_next_list_does_not_report_objects_of_the_watch_again(follow: Any) -> None:
    events = [line("ADDED", obj("b", "8")), line("MODIFIED", obj("a", "9")), line("DELETED", obj("c", "10"))]
    server = Server(listing(obj("a"), obj("c")), (events, 9), GoneError("gone"), listing(obj("a", "9"), obj("b", "8")))
    _, seen = await follow(server)
    assert seen[3:] == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "c"), SYNCED]
    assert request_log(server) == ["list", "watch 7", "watch 10", "list", "watch 7"]


async def test_a_bookmark_moves_the_resume_version_and_is_not_an_event(follow: Any) -> None:
    server = Server(listing(), ([line("BOOKMARK", {"metadata": {"resourceVersion": "55"}})], 9))
    _, seen = await follow(server)
    assert seen == [SYNCED]
    assert request_log(server) == ["list", "watch 7", "watch 55"]


async def test_a_cut_watch_restarts_within_a_second_and_a_short_watch_after_a_growing_pause(
    follow: Any,
) -> None:
    server = Server(listing(), ([], 5), ([], 300), ([], 4.9), ([], 0), ([], 0), ([], 5), ([], 0))
    await follow(server)
    assert server.slept == [1.0, 0.1, 0.2, 0.4, 1.0, 0.1], "no pause after a watch that ended at its timeout"
    assert request_log(server) == ["list"] + ["watch 7"] * 8


async def test_a_short_watch_with_an_event_resets_the_number_of_failures(follow: Any) -> None:
    server = Server(listing(), ([], 0), ([], 0), ([line("ADDED", obj("a"))], 0), ([], 0))
    await follow(server)
    assert server.slept == [0.1, 0.2, 0.1, 0.2]


async def test_pauses_grow_to_at_most_half_a_minute(follow: Any) -> None:
    server = Server(*[ApiError("away")] * 14)
    await follow(server)
    assert server.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6] + [30.0] * 5


@pytest.mark.parametrize("status", [0, 429, 500, 503])
async def test_the_reflector_retries_a_failed_watch_and_lists_at_the_third_attempt(status: int, follow: Any) -> None:
    away = api_error("away", status)
    server = Server(listing(), away, away, away, listing(version="8"), away, away, away)
    await follow(server)
    assert request_log(server) == ["list", *["watch 7"] * 3, "list", *["watch 8"] * 3, "list"]
    assert server.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]


@pytest.mark.parametrize("status", [400, 403, 404, 410])
async def test_a_refused_watch_is_followed_by_a_list(status: int, follow: Any) -> None:
    server = Server(listing(), api_error("no", status), listing(version="8"))
    reflector, _ = await follow(server)
    assert request_log(server) == ["list", "watch 7", "list", "watch 8"]
    assert reflector.fault == "", "the list succeeded"


@pytest.mark.parametrize(
    ("watch_line", "next_request"),
    [
        (line("ERROR", {"code": 410, "message": "too old"}), "list"),
        (line("ERROR", {"message": "?"}), "watch 8"),
        (line("ERROR", {"code": 429}), "watch 8"),
        (line("RENAMED", obj("b", "9")), "watch 8"),
        (line("ADDED", {"metadata": {}}), "watch 8"),
        (b"<html>", "watch 8"),
    ],
)
async def test_an_error_in_a_watch_keeps_the_events_before_it(
    watch_line: bytes, next_request: str, follow: Any
) -> None:
    server = Server(listing(), ([line("ADDED", obj("a", "8")), watch_line, line("ADDED", obj("c", "10"))], 0))
    reflector, seen = await follow(server)
    assert seen == [SYNCED, ("ADDED", "a")]
    assert request_log(server) == ["list", "watch 7", next_request]
    assert server.slept == [0.1]
    assert "watch nodes" in reflector.fault
    assert list(server.objects) == ["u-a"]


async def test_an_error_keeps_its_class_and_a_failed_list_reports_no_objects(follow: Any) -> None:
    refused = api_error("no", 403)
    reflector, _ = await follow(Server(listing(obj("a"), more="next"), refused))
    assert isinstance(reflector.error, ForbiddenError)
    assert (reflector.error.status, reflector.fault) == (403, "no")
    assert reflector.error.__traceback__ is None


async def test_the_first_the_fifth_and_every_twentieth_failure_are_logged(
    follow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await follow(Server(*[ApiError("away")] * 40))
    told = [n for n, r in enumerate(caplog.records, 1) if r.levelno == logging.WARNING]
    assert (len(caplog.records), told) == (40, [1, 5, 20, 40])


# --- versions -----------------------------------------------------------------------------------------------


async def test_the_version_is_requested_after_a_cut_watch_and_a_new_version_causes_a_list(
    follow: Any,
) -> None:
    server = Server(listing(), ([], 9), ([], 9), listing(), versions=["v1beta1", "v1beta1", "v1", "v1", "v1"])
    reflector, _ = await follow(server, "resourceslices")
    paths = [a if isinstance(a, str) else a[1] for a in server.asked]
    slices = "/apis/resource.k8s.io/{}/resourceslices"
    old, new = slices.format("v1beta1"), slices.format("v1")
    assert paths[:7] == ["v1beta1", old, "version", old, "version", "v1", new]
    assert reflector.plural == "resourceslices"


async def test_a_watch_that_ended_at_its_timeout_causes_no_version_request(follow: Any) -> None:
    server = Server(listing(), ([], 290), ([], 290), ([], 9), NotFoundError("gone"), versions=["v1"] * 5)
    await follow(server, "resourceslices")
    assert request_log(server)[:7] == ["list", "watch 7", "watch 7", "watch 7", "version", "watch 7", "version"]


async def test_the_reflector_keeps_the_version_if_the_version_request_fails(follow: Any) -> None:
    versions = ["v1", ApiError("away"), api_error("slow", 500), "v1"]
    server = Server(listing(), ([], 9), ([], 9), ([], 9), versions=versions)
    _, seen = await follow(server, "resourceslices")
    assert seen == [SYNCED]
    assert request_log(server)[:7] == ["list", "watch 7", "version", "watch 7", "version", "watch 7", "version"]


async def test_a_server_without_a_supported_version_is_an_error_after_it_had_one(follow: Any) -> None:
    fault = NotFoundError("no version")
    server = Server(listing(), ([], 9), versions=["v1", fault])
    reflector, seen = await follow(server, "resourceslices")
    assert (seen, reflector.fault, server.slept) == ([SYNCED], "no version", [1.0, 0.1])


async def test_the_reflector_waits_until_the_versions_are_known(follow: Any) -> None:
    class Late(Server):
        async def dra(self, plural: str) -> Resource:
            if len(self.slept) < 2:
                raise ApiError("away")
            return await super().dra(plural)

    server = Late(listing(), versions=["v1"])
    reflector, seen = await follow(server, "resourceslices")
    assert (seen, reflector.fault, server.slept) == ([SYNCED], "", [0.1, 0.2])


async def test_an_idle_watch_outlives_the_first_bookmark_of_a_real_server(follow: Callable[..., Any]) -> None:
    """A real server sent the first bookmark of an idle watch after 120 s. A watch that ends earlier logs a warning on each idle node."""
    server = Server(listing(), ([], 0))
    await follow(server)
    assert 120 * 1.25 < server.silence < int(server.query["timeoutSeconds"])
