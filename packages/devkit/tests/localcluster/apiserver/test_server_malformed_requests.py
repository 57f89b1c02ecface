"""The response to every malformed request is a Status with a message, never an internal error."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from dra_devkit.localcluster.apiserver.kinds import Registry, ServedKind
from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.localcluster.apiserver.custom_resources import definition
from packages.devkit.tests.localcluster.apiserver.samples import collection, sample
from tests.helpers.api_server import FEATURES, ApiCaller, ApiResponse

ROUNDS = 12
DEEP = b'{"metadata": {"name": "deep"}, "data": ' + b"[" * 3000 + b"]" * 3000 + b"}"
ODD_VALUES: tuple[Any, ...] = (
    None, [], {}, "", 0, -1, 1.5, True, 2**63, 2**70, "x" * 300, "\x00", "é", " ", "a/b/c", "1e999999", "-1", "$", "..",
    [None], [[]], [1], [{}], {"": None}, {"a": {"b": []}}, {"name": []}, [{"name": "x"}, {"name": "x"}], "2026-99-99T00:00:00Z",
)  # fmt: skip
PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml")


def locations(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every location in an object: the container and the key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from locations(item)


def mutate(obj: JSON, dice: random.Random) -> JSON:
    out = copy.deepcopy(obj)
    for _ in range(dice.randint(1, 3)):
        holder, key = dice.choice(list(locations(out)))
        match dice.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[dice.choice(["x", "", "$patch", "name", "-", "a" * 300])] = copy.deepcopy(
                    dice.choice(ODD_VALUES)
                )
            case _:
                holder[key] = copy.deepcopy(dice.choice(ODD_VALUES))
        if not out:
            return out
    return out


def assert_valid_response(response: ApiResponse) -> None:
    """Accepts an object or a Status with a message. The only allowed code 500 is a schema error of an apply, as in Kubernetes."""
    assert response.body != b"internal error"
    body = response.json
    if response.status >= 400:
        assert body["kind"] == "Status" and body["message"] and body["code"] == response.status
    if response.status == 500:
        assert body["message"].startswith("failed to create typed patch object")


@pytest.mark.cases(16)
@pytest.mark.parametrize("kind", list(Registry(FEATURES)), ids=lambda k: k.key)
async def test_mutated_objects_are_stored_or_rejected_with_a_message(curl: ApiCaller, kind: ServedKind) -> None:
    dice = random.Random(kind.key)
    version = kind.versions[0]
    path = collection(kind, version)
    good = sample(kind, "good")
    created = await curl("POST", path, good)
    assert created.status == 201 or kind.refused, created.body
    name = f"{path}/{good['metadata']['name']}"
    for number in range(ROUNDS):
        malformed = mutate(sample(kind, f"odd-{number}"), dice)
        assert_valid_response(
            await curl("POST", path, malformed, fieldValidation=dice.choice(["Strict", "Warn", "Ignore", "odd"]))
        )
        if kind.virtual or kind.refused:
            continue
        changed = mutate({**good, "apiVersion": kind.api_version(version), "kind": kind.kind}, dice)
        sub = dice.choice(["", "/status"] if kind.status else [""])
        assert_valid_response(await curl("PUT", f"{name}{sub}", changed))
        headers = {"Content-Type": dice.choice(PATCHES)}
        assert_valid_response(
            await curl("PATCH", f"{name}{sub}", changed, headers, fieldManager="m", force=dice.choice(["", "true"]))
        )
        assert_valid_response(
            await curl("GET", path, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
        )
    assert_valid_response(await curl("GET", path))
    assert_valid_response(
        await curl(
            "DELETE", name, {"gracePeriodSeconds": dice.choice(ODD_VALUES), "preconditions": dice.choice(ODD_VALUES)}
        )
    )


ITEM = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
ITEM_RULE = {"rule": "self.name != 'b'", "message": "m", "messageExpression": "'x'"}
LIST = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": ITEM}
SCHEMA: JSON = {
    "type": "object",
    "required": ["a"],
    "properties": {
        "a": {"type": "string", "pattern": "^x$", "enum": ["x", "y"], "default": "x", "maxLength": 5},
        "b": {"type": "integer", "minimum": 1, "maximum": 5, "format": "int32"},
        "c": {**LIST, "items": {**ITEM, "x-kubernetes-validations": [ITEM_RULE]}},
        "d": {"type": "object", "additionalProperties": {"type": "number"}},
        "e": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        "f": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "n": {"type": "string", "nullable": True},
    },
}
SPEC = {"a": "x", "b": 2, "c": [{"name": "a"}], "d": {"q": 1.5}, "e": 3, "f": {"x": [1]}, "n": None}


@pytest.mark.cases(4)
@pytest.mark.parametrize("seed", range(16))
async def test_mutated_schemas_are_rejected_or_serve_objects(curl: ApiCaller, seed: int) -> None:
    dice = random.Random(seed)
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for _ in range(ROUNDS * 2):
        response = await curl("POST", definitions, definition(mutate(SCHEMA, dice)))
        assert_valid_response(response)
        if response.status == 201:
            for number in range(4):
                spec = mutate(SPEC, dice) if number else SPEC
                foo = {"kind": "Foo", "apiVersion": "example.com/v1", "metadata": {"name": f"f{number}"}, "spec": spec}
                assert_valid_response(await curl("POST", "/apis/example.com/v1/foos", foo))
            assert_valid_response(await curl("GET", "/apis/example.com/v1/foos"))
            await curl("DELETE", f"{definitions}/foos.example.com")


DUPLICATE_KEY = b'{"metadata":{"name":"x"},"metadata":{"name":"y"}}'
BODIES: tuple[bytes, ...] = (
    b"", b"[]", b"null", b"1", b'"x"', b"{", b"{}", b"[{}]", b"\xff\xfe", b"a: [", b"a: &x [*x]", b"{a: b}", b"- 1", b"\x00",
    b'{"metadata": []}', b'{"metadata": {"name": {}}}', b'{"metadata": {"name": "\\ud800"}}', b'{"kind": 1, "apiVersion": []}',
    DEEP, b"k8s\x00", b"k8s\x00\x0a\xff\xff\xff\xff\x0f", b"k8s\x00\x0a\x00\x12\x02\x08\x01",
    b"!!python/object/apply:os.system [id]", b"a: 2026-01-01", b"? [a]: b", b'{"a": NaN}', DUPLICATE_KEY,
)  # fmt: skip
VALID_OBJECTS = (DEEP, DUPLICATE_KEY)
"""Without strict validation, the server ignores unknown fields and uses the last of equal keys, so these can be created."""
TYPES = (
    "", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/html", "application/json-patch+json",
    *PATCHES, "application/cbor",
)  # fmt: skip


@pytest.mark.cases(10)
@pytest.mark.parametrize(
    "path", ["/api/v1/namespaces/default/configmaps", "/api/v1/namespaces", "/apis/resource.k8s.io/v1/deviceclasses"]
)
@pytest.mark.parametrize("type_", TYPES)
async def test_invalid_bodies_are_rejected(curl: ApiCaller, path: str, type_: str) -> None:
    for body in BODIES:
        headers = {"Content-Type": type_}
        for method, target in (
            ("POST", path),
            ("PUT", f"{path}/default"),
            ("PATCH", f"{path}/default"),
            ("DELETE", f"{path}/nobody"),
        ):
            response = await curl(method, target, body, headers, fieldManager="m")
            assert_valid_response(response)
            can_succeed = method == "PATCH" or (method == "POST" and body in VALID_OBJECTS)
            assert response.status >= 400 or can_succeed, (
                method,
                body,
                response.body,
            )


TOO_DEEP = (400, "the object is nested too deeply: exceeded max depth 200")


def deep_class(levels: int) -> str:
    parameters: JSON = {}
    for _ in range(levels - 6):  # the class, spec, config, its entry, opaque and the outermost object of the parameters
        parameters = {"a": parameters}
    config = [{"opaque": {"driver": "toy.example.com", "parameters": parameters}}]
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    return json.dumps({**kind, "metadata": {"name": "deep"}, "spec": {"config": config}})


@pytest.mark.parametrize("type_", ["application/json", "application/yaml", *PATCHES])
async def test_bodies_of_more_than_200_levels_are_rejected(curl: ApiCaller, type_: str) -> None:
    path = "/apis/resource.k8s.io/v1/deviceclasses"
    response = await curl("POST", path, deep_class(201), {"Content-Type": type_})
    assert (response.status, response.json["message"]) == TOO_DEEP
    response = await curl("POST", path, deep_class(200))
    assert response.status == 201, response.body
    if type_ in PATCHES:  # an object of as many levels is merged
        response = await curl("PATCH", f"{path}/deep", deep_class(200), {"Content-Type": type_}, fieldManager="m")
        assert response.status == 200, response.body


async def test_a_json_patch_does_not_nest_an_object_too_deeply(curl: ApiCaller) -> None:
    path = "/apis/resource.k8s.io/v1/deviceclasses"
    assert (await curl("POST", path, deep_class(150))).status == 201
    deepest = "/spec/config/0/opaque/parameters" + "/a" * 144
    patch = [{"op": "copy", "from": "/spec/config/0/opaque/parameters", "path": f"{deepest}/b"}]
    response = await curl("PATCH", f"{path}/deep", patch, {"Content-Type": "application/json-patch+json"})
    assert (response.status, response.json["message"]) == TOO_DEEP
    unchanged = await curl("GET", f"{path}/deep")
    assert (await curl("PUT", f"{path}/deep", unchanged.body)).status == 200


async def test_yaml_aliases_count_as_nested_levels(curl: ApiCaller) -> None:
    chain = "".join(f"- &a{i} [*a{i - 1}]\n" for i in range(1, 300))
    response = await curl("POST", "/api/v1/namespaces", f"- &a0 []\n{chain}", {"Content-Type": "application/yaml"})
    assert (response.status, response.json["message"]) == TOO_DEEP


async def test_a_body_above_the_size_limit_is_rejected(curl: ApiCaller) -> None:
    body = json.dumps({"metadata": {"name": "x"}, "data": {"a": "b" * 4_000_000}})
    response = await curl("POST", "/api/v1/namespaces/default/configmaps", body)
    assert (response.status, response.json["reason"]) == (413, "RequestEntityTooLarge")


QUERIES = (
    "limit", "continue", "resourceVersion", "resourceVersionMatch", "fieldSelector", "labelSelector", "timeoutSeconds", "watch",
    "sendInitialEvents", "allowWatchBookmarks", "dryRun", "fieldManager", "fieldValidation", "force", "gracePeriodSeconds",
    "propagationPolicy", "includeObject", "pretty",
)  # fmt: skip
VALUES = (
    "abc",
    "-1",
    "99999999999999999999",
    "1.5",
    "",
    "true",
    "=",
    "!",
    "a=b,",
    "metadata.name=\\",
    "x in (",
    "é",
    "\x00",
    "0",
    "\u0661",
)


@pytest.mark.cases(8)
@pytest.mark.parametrize("name", QUERIES)
async def test_malformed_options_are_rejected_or_ignored(curl: ApiCaller, name: str) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    await curl.make(path, {"metadata": {"name": "x"}})
    for value in VALUES:
        if name == "watch" and value in {"true", "1"}:
            continue
        for method, target, body in (
            ("GET", path, None),
            ("GET", f"{path}/x", None),
            ("POST", path, {"metadata": {"generateName": "y"}}),
            ("PATCH", f"{path}/x", {"data": {"a": value}}),
            ("DELETE", path, None),
        ):
            headers = {"Content-Type": "application/merge-patch+json"}
            assert_valid_response(
                await curl(method, target, body, headers if method == "PATCH" else None, **{name: value})
            )
    if name == "resourceVersion":
        for value in ("abc", "-1", "99999999999999999999"):
            assert_valid_response(await curl("GET", path, watch="1", timeoutSeconds="1", **{name: value}))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        "/api/v1/",
        "//",
        "/apis/x/v1/y",
        "/api/v1/namespaces/default",
        "/api/v1/namespaces/default/pods/x/y/z",
        "/api/v1/pods/x",
        "/apis/apps/v1",
        "/api/v2/pods",
        "/%00",
        "/api/v1/namespaces/%2e%2e/pods",
        "/openapi/v3/apis/x/v1",
        "/api/v1/namespaces/default/pods/p/exec",
        "/api/v1/nodes/n/proxy/x",
    ],
)
async def test_malformed_paths_have_a_valid_status(curl: ApiCaller, path: str) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"):
        response = await curl(method, path, {} if method in {"POST", "PUT", "PATCH"} else None)
        assert response.status in {200, 400, 403, 404, 405, 415, 422, 501} and response.body != b"internal error", (
            method,
            response.status,
            response.body,
        )
