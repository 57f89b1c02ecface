"""A client that sends protobuf gets the same results as a client that sends JSON. The Accept header decides the form of a response."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver.kinds import KINDS
from dra_devkit.schemas import protobuf
from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.localcluster.apiserver.custom_resources import definition
from packages.devkit.tests.localcluster.apiserver.samples import collection
from tests.helpers.api_server import ApiCaller, ApiResponse, running_api_server
from tests.helpers.protobuf_wire import MALFORMED, envelope, field, varint
from tests.helpers.recordings import recorded_lines

SENT = {"Content-Type": protobuf.MEDIA_TYPE}
FEATURES = Features.of("1.36", {"GenericWorkload": True}, {"api/all": True})
BY_GROUP_AND_KIND = {(k.group, k.kind): k for k in KINDS}


@pytest.fixture
async def curl() -> AsyncIterator[ApiCaller]:
    async with running_api_server(FEATURES) as curl:
        yield curl


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


async def test_subresources_read_protobuf(curl: ApiCaller) -> None:
    path = "/api/v1/namespaces/default/pods"
    await curl.make(path, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    body = envelope("v1", "Binding", field(1, field(1, "p")) + field(2, field(1, "Node") + field(3, "n")))
    assert (await curl("POST", f"{path}/p/binding", body, SENT)).status == 201
    assert (await curl("GET", f"{path}/p")).json["spec"]["nodeName"] == "n"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/*;q=0.1", "application/json"),
        ("application/vnd.kubernetes.protobuf,application/json", "application/json"),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/json"),
        ("application/yaml", "application/yaml"),
        ("application/json;q=0, application/*;q=0.5", "application/yaml"),
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
        ("/api/v1/namespaces", protobuf.MEDIA_TYPE, {}),
    ],
)
async def test_a_client_that_accepts_no_form_gets_406(curl: ApiCaller, path: str, accept: str, query: JSON) -> None:
    response = await curl("GET", path, headers={"Accept": accept}, **query)
    assert response.status == 406
    assert response.json["reason"] == "NotAcceptable"
    assert response.message.startswith("only the following media types are accepted: application/json")


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
    spec = field(2, (varint(2 << 3 | 2) + b"\0") * 200_000)
    body = protobuf.MAGIC + field(1, field(1, "v1") + field(2, "Pod")) + field(2, spec)
    assert (await curl("POST", "/api/v1/namespaces/default/pods", body, SENT)).status == 422
