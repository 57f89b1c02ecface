"""A client that sends or accepts only protobuf gets the same results as a client that uses JSON."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver.kinds import KINDS, Registry, ServedKind
from dra_devkit.schemas import protobuf
from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.localcluster.apiserver.custom_resources import definition
from packages.devkit.tests.localcluster.apiserver.samples import collection, sample
from tests.helpers.api_server import ApiCaller, ApiResponse, running_api_server
from tests.helpers.protobuf_wire import MALFORMED, field, varint
from tests.helpers.recordings import recorded_lines

ONLY = {"Accept": protobuf.MEDIA_TYPE}
SENT = {"Content-Type": protobuf.MEDIA_TYPE}
RELEASES = [Features.of(r, {"GenericWorkload": True}, {"api/all": True}) for r in ("1.36", "1.37")]
Case = tuple[Features, ServedKind, str]
SERVED: dict[str, Case] = {
    f"{kind.key}/{version}": (features, kind, version)
    for features in RELEASES
    for kind in Registry(features)
    if not kind.refused
    for version in kind.versions
}
"""Every kind and version that one of two releases serves."""
BY_GROUP_AND_KIND = {(k.group, k.kind): k for k in KINDS}


@pytest.fixture
async def curl() -> AsyncIterator[ApiCaller]:
    async with running_api_server(RELEASES[0]) as curl:
        yield curl


def sample_of(kind: ServedKind) -> JSON:
    if kind.kind == "PodGroup":
        return {"metadata": {"name": "good"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}
    return sample(kind, "good")


def decoded(response: ApiResponse) -> JSON:
    assert response.headers["Content-Type"] == protobuf.MEDIA_TYPE, response.body
    return protobuf.decode(response.body)


def events(body: bytes) -> Iterator[tuple[str, JSON]]:
    """Yields type and object of each event of a watch in protobuf."""
    while body:
        size = int.from_bytes(body[:4], "big")
        event, body = body[4 : 4 + size], body[4 + size :]
        type_size = event[1]
        type_ = event[2 : 2 + type_size].decode()
        raw = event[event.index(protobuf.MAGIC) :]
        assert event == field(1, type_) + field(2, field(1, raw))
        yield type_, protobuf.decode(raw)


def comparable(response: ApiResponse) -> tuple[int, str, Any]:
    """Returns status, message and causes of an error, or the spec of an object."""
    body = response.json
    return response.status, body.get("message", ""), body.get("details", {}).get("causes") or body.get("spec")


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for c in recorded_lines("protobuf")])
async def test_a_recorded_body_of_a_go_client_gets_the_response_of_the_same_json(curl: ApiCaller, case: JSON) -> None:
    obj = case["object"]
    group, _, version = obj["apiVersion"].rpartition("/")
    if (kind := BY_GROUP_AND_KIND.get((group, obj["kind"]))) is None:
        return  # a body of a subresource; another test sends these bodies
    path = collection(kind, version)
    as_json = await curl("POST", path, obj, dryRun="All")
    as_protobuf = await curl("POST", path, base64.b64decode(case["protobuf"]), SENT, dryRun="All")
    assert comparable(as_protobuf) == comparable(as_json)


@pytest.mark.parametrize("name", SERVED)
async def test_each_kind_is_written_and_read_in_protobuf(name: str) -> None:
    features, kind, version = SERVED[name]
    async with running_api_server(features) as curl:
        await write_and_read(curl, kind, version)


async def write_and_read(curl: ApiCaller, kind: ServedKind, version: str) -> None:
    path = collection(kind, version)
    good = {"apiVersion": kind.api_version(version), "kind": kind.kind, **sample_of(kind)}
    if version != "v1" and kind.structured:
        await curl("POST", collection(kind, "v1"), sample_of(kind))
        good = (await curl("GET", f"{path}/good")).json
        good["metadata"] = {"name": "good"}
        await curl("DELETE", f"{path}/good")
    created = await curl("POST", path, protobuf.encode(good), {**SENT, **ONLY})
    assert created.status == 201, decoded(created)
    found = decoded(created)
    assert found["kind"] == kind.kind
    if kind.virtual:
        return
    name = f"{path}/{found['metadata']['name']}"
    stored = (await curl("GET", name)).json
    assert decoded(await curl("GET", name, headers=ONLY)) == protobuf.decode(protobuf.encode(stored))
    items = decoded(await curl("GET", path, headers=ONLY))
    assert items["kind"] == f"{kind.kind}List"
    assert found["metadata"]["uid"] in [i["metadata"]["uid"] for i in items["items"]]
    replaced = await curl("PUT", name, protobuf.encode(stored), {**SENT, **ONLY})
    assert (replaced.status, decoded(replaced)["metadata"]["uid"]) == (200, found["metadata"]["uid"])
    options = {"apiVersion": kind.api_version(version), "kind": "DeleteOptions", "preconditions": {"uid": "other"}}
    kept = await curl("DELETE", name, protobuf.encode(options), {**SENT, **ONLY})
    assert (kept.status, decoded(kept)["reason"]) == (409, "Conflict")
    options["preconditions"] = {"uid": found["metadata"]["uid"]}
    assert (await curl("DELETE", name, protobuf.encode(options), {**SENT, **ONLY})).status == 200


@pytest.mark.parametrize("name", [n for n, case in SERVED.items() if not case[1].virtual])
async def test_a_watch_in_protobuf_has_the_events_of_the_watch_in_json(name: str) -> None:
    features, kind, version = SERVED[name]
    path = collection(kind, version)
    query = {"watch": "true", "allowWatchBookmarks": "true", "sendInitialEvents": "true"}
    query["resourceVersionMatch"] = "NotOlderThan"
    async with running_api_server(features) as curl:
        await curl.make(collection(kind, kind.versions[0]), sample_of(kind))
        found = await asyncio.to_thread(first_events, curl, f"{path}?{urlencode(query)}")
        objects = [(await curl("GET", path)).json]
    expected = [{"apiVersion": o["apiVersion"], "kind": kind.kind, **i} for o in objects for i in o["items"]]
    assert found == [("ADDED", protobuf.decode(protobuf.encode(o))) for o in expected]


def first_events(curl: ApiCaller, target: str) -> list[tuple[str, JSON]]:
    """Reads the frames of a watch until the bookmark after the existing objects. Returns the events before it."""
    headers = {"Authorization": f"Bearer {curl.server.token}", "Accept": f"{protobuf.MEDIA_TYPE};stream=watch"}
    connection = http.client.HTTPConnection(urlsplit(curl.server.url).netloc, timeout=60)
    out: list[tuple[str, JSON]] = []
    with contextlib.closing(connection):
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        assert response.headers["Content-Type"] == f"{protobuf.MEDIA_TYPE};stream=watch"
        while True:
            head = response.read(4)
            [(type_, obj)] = events(head + response.read(int.from_bytes(head, "big")))
            if type_ == "BOOKMARK":
                assert obj["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
                return out
            out.append((type_, obj))


async def test_an_error_inside_a_watch_is_a_status_in_protobuf(curl: ApiCaller) -> None:
    response = await curl("GET", "/api/v1/configmaps", headers=ONLY, watch="true", resourceVersion="999999")
    [(type_, status)] = events(response.body)
    assert (type_, status["kind"], status["code"], status["reason"]) == ("ERROR", "Status", 410, "Expired")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/api", "APIVersions"),
        ("/apis", "APIGroupList"),
        ("/apis/apps", "APIGroup"),
        ("/apis/apps/v1", "APIResourceList"),
    ],
)
async def test_discovery_documents_are_written_in_protobuf(curl: ApiCaller, path: str, kind: str) -> None:
    found = decoded(await curl("GET", path, headers=ONLY))
    assert found["kind"] == kind
    expected = (await curl("GET", path)).json
    assert {k: v for k, v in found.items() if k not in {"kind", "apiVersion"}} == {
        k: v for k, v in protobuf.decode(protobuf.encode(expected)).items() if k not in {"kind", "apiVersion"}
    }


async def test_subresources_read_and_write_protobuf(curl: ApiCaller) -> None:
    async def send(method: str, path: str, api_version: str, kind: str, **body: Any) -> JSON:
        sent = protobuf.encode({"apiVersion": api_version, "kind": kind, **body})
        response = await curl(method, path, sent, {**SENT, **ONLY})
        assert response.status in {200, 201}, decoded(response)
        return decoded(response)

    by_kind = {k.kind: k for k in KINDS}
    namespaced = "/api/v1/namespaces/default"
    token = await send(
        "POST", f"{namespaced}/serviceaccounts/default/token", "authentication.k8s.io/v1", "TokenRequest",
        spec={"audiences": ["a"], "expirationSeconds": 600},
    )  # fmt: skip
    assert token["status"]["token"] and token["spec"]["audiences"] == ["a"]
    await curl.make("/apis/apps/v1/namespaces/default/deployments", sample(by_kind["Deployment"], "d"))
    scale = await send(
        "PUT", "/apis/apps/v1/namespaces/default/deployments/d/scale", "autoscaling/v1", "Scale",
        metadata={"name": "d", "namespace": "default"}, spec={"replicas": 7},
    )  # fmt: skip
    assert scale["spec"] == {"replicas": 7}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await curl.make(f"{namespaced}/pods", pod)
    meta = {"name": "p", "namespace": "default"}
    await send(
        "POST", f"{namespaced}/pods/p/binding", "v1", "Binding", metadata=meta, target={"kind": "Node", "name": "n"}
    )
    assert (await curl("GET", f"{namespaced}/pods/p")).json["spec"]["nodeName"] == "n"
    options = {"gracePeriodSeconds": 3}
    await send("POST", f"{namespaced}/pods/p/eviction", "policy/v1", "Eviction", metadata=meta, deleteOptions=options)
    assert (await curl("GET", f"{namespaced}/pods/p")).json["metadata"]["deletionGracePeriodSeconds"] == 3


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/*;q=0.1", "application/json"),
        ("application/vnd.kubernetes.protobuf,application/json", "application/json"),
        ("application/vnd.kubernetes.protobuf, application/json;q=0", protobuf.MEDIA_TYPE),
        ("application/json;q=0,*/*", protobuf.MEDIA_TYPE),
        ("text/html, application/vnd.kubernetes.protobuf;q=0.5", protobuf.MEDIA_TYPE),
        ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/vnd.kubernetes.protobuf", protobuf.MEDIA_TYPE),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/json"),
        ("application/yaml", "application/yaml"),
    ],
)  # fmt: skip
async def test_the_accept_header_decides_the_form(curl: ApiCaller, accept: str, form: str) -> None:
    for path in ("/api/v1/namespaces", "/api/v1/namespaces/absent"):
        assert (await curl("GET", path, headers={"Accept": accept})).headers["Content-Type"] == form


@pytest.mark.parametrize(
    ("path", "accept", "query"),
    [
        ("/api/v1/namespaces", "text/html", {}),
        ("/api/v1/namespaces", "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", {}),
        ("/api/v1/namespaces", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", {}),
        ("/api/v1/namespaces", "application/yaml", {"watch": "true"}),
        ("/api/v1", "text/html", {}),
        ("/apis/example.com/v1/foos", protobuf.MEDIA_TYPE, {}),
        ("/apis/example.com/v1/foos", protobuf.MEDIA_TYPE, {"watch": "true"}),
        ("/apis/apps/v1/namespaces/default/statefulsets", protobuf.MEDIA_TYPE, {}),
    ],
)
async def test_a_client_that_accepts_no_form_gets_406(curl: ApiCaller, path: str, accept: str, query: JSON) -> None:
    await curl.make("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition({"type": "object"}))
    response = await curl("GET", path, headers={"Accept": accept}, **query)
    assert response.status == 406
    status = decoded(response) if accept == protobuf.MEDIA_TYPE else response.json
    assert status["reason"] == "NotAcceptable"
    assert status["message"].startswith("only the following media types are accepted: application/json")


async def test_a_request_that_accepts_no_form_changes_nothing(curl: ApiCaller) -> None:
    body = {"metadata": {"name": "c"}}
    path = "/api/v1/namespaces/default/configmaps"
    assert (await curl("POST", path, body, {"Accept": "text/html"})).status == 406
    assert (await curl("GET", f"{path}/c")).status == 404


async def test_a_custom_resource_in_protobuf_is_an_unsupported_media_type(curl: ApiCaller) -> None:
    await curl.make("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition({"type": "object"}))
    meta = field(1, field(1, "example.com/v1") + field(2, "Foo"))
    response = await curl("POST", "/apis/example.com/v1/foos", protobuf.MAGIC + meta, SENT)
    assert (response.status, response.json["reason"]) == (415, "UnsupportedMediaType")
    assert "example.com/v1 Foo has no protobuf message: use JSON" in response.message


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_body_is_a_bad_request(curl: ApiCaller, name: str) -> None:
    response = await curl("POST", "/api/v1/namespaces/default/pods", MALFORMED[name][0], SENT)
    assert (response.status, response.json["reason"]) == (400, "BadRequest")
    assert "the protobuf body cannot be read: " in response.message


async def test_many_empty_parts_are_read_in_bounded_time(curl: ApiCaller) -> None:
    spec = field(2, (varint(2 << 3 | 2) + b"\0") * 50_000)
    body = protobuf.MAGIC + field(1, field(1, "v1") + field(2, "Pod")) + field(2, spec)
    assert (await curl("POST", "/api/v1/namespaces/default/pods", body, SENT)).status == 422


async def test_a_null_in_a_map_is_read_as_the_zero_value(curl: ApiCaller) -> None:
    """Go's JSON decoder accepts null as a value of a map, and its protobuf encoder leaves the value out."""
    path = "/api/v1/namespaces/default/secrets"
    await curl.make(path, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": None}})
    assert decoded(await curl("GET", f"{path}/s", headers=ONLY))["data"] == {"k": ""}
    assert len(decoded(await curl("GET", path, headers=ONLY))["items"]) == 1
