"""Whatever a client sends, the answer is a sentence about it: never an error of the server's own, never a stop."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from dra_kubeletplugin.localcluster.apiserver.kinds import Registry, ServedKind
from tests.helpers.api_server import FEATURES, ApiCaller, ApiResponse, running_api_server

JSON = dict[str, Any]
ROUNDS = 12
DEEP = b'{"metadata": {"name": "deep"}, "data": ' + b"[" * 3000 + b"]" * 3000 + b"}"
ODD: tuple[Any, ...] = (
    None, [], {}, "", 0, -1, 1.5, True, 2**63, 2**70, "x" * 300, "\x00", "é", " ", "a/b/c", "1e999999", "-1", "$", "..",
    [None], [[]], [1], [{}], {"": None}, {"a": {"b": []}}, {"name": []}, [{"name": "x"}, {"name": "x"}], "2026-99-99T00:00:00Z",
)  # fmt: skip
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
SELECTOR = {"matchLabels": {"a": "b"}}
POD = {
    "containers": [
        {
            "name": "c",
            "image": "i",
            "ports": [{"containerPort": 80}],
            "env": [{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"limits": {"cpu": "1", "x.example.com/gpu": "1"}, "claims": [{"name": "d"}]},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }
    ],
    "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}],
    "volumes": [{"name": "v", "emptyDir": {}}],
    "resourceClaims": [{"name": "d", "resourceClaimName": "x"}],
    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}],
    "schedulingGates": [{"name": "example.com/gate"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
            }
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "t", "labelSelector": SELECTOR}]
        },
    },
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}],
}
RULES = {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}
REFERENCE = {"roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]}
POOL = {"name": "n", "generation": 1, "resourceSliceCount": 1}
HOOKS = {
    "webhooks": [
        {
            "name": "w.example.com",
            "clientConfig": {"url": "https://x"},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        }
    ]
}
VERSIONS = [
    {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": "S", "type": "date", "jsonPath": ".spec.size"}],
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 1}}}},
            }
        },
    }
]
QUESTION = {
    "spec": {
        "user": "u",
        "groups": ["g"],
        "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"},
    }
}
CLAIM = {
    "devices": {
        "requests": [
            {"name": "r", "exactly": {"deviceClassName": "c", "tolerations": [{"key": "k", "operator": "Exists"}]}},
            {"name": "l", "firstAvailable": [{"name": "a", "deviceClassName": "c", "count": 2}]},
        ],
        "constraints": [{"requests": ["r"], "matchAttribute": "d.example.com/i"}],
        "config": [{"opaque": {"driver": "d.example.com", "parameters": {"a": 1}}}],
    }
}
SAMPLES: dict[str, JSON] = {
    "Pod": {"spec": POD, "status": {"phase": "Running"}},
    "Node": {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {"capacity": {"cpu": "1"}}},
    "ConfigMap": {"data": {"a": "b"}, "binaryData": {"c": "ZA=="}},
    "Secret": {"stringData": {"a": "b"}, "data": {"c": "ZA=="}},
    "Service": {"spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}},
    "Event": {"involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "r", "message": "m"},
    "ResourceQuota": {"spec": {"hard": {"pods": "1000", "x.deviceclass.resource.k8s.io/devices": "1k"}, "scopes": ["BestEffort"]}},
    "Deployment": {"spec": {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}},
    "ReplicaSet": {"spec": {"selector": SELECTOR, "template": TEMPLATE, "replicas": 1}},
    "DaemonSet": {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
    "Job": {"spec": {"template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}},
    "Lease": {"spec": {"holderIdentity": "h", "leaseDurationSeconds": 3, "renewTime": "2026-01-01T00:00:00.000000Z"}},
    "Role": RULES, "ClusterRole": RULES, "RoleBinding": REFERENCE, "ClusterRoleBinding": REFERENCE,
    "ValidatingAdmissionPolicy": {
        "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]},
            "validations": [{"expression": "true"}],
        }
    },
    "ValidatingAdmissionPolicyBinding": {"spec": {"policyName": "p", "validationActions": ["Deny"]}},
    "ValidatingWebhookConfiguration": HOOKS, "MutatingWebhookConfiguration": HOOKS,
    "PriorityClass": {"value": 5},
    "SelfSubjectAccessReview": QUESTION, "SubjectAccessReview": QUESTION, "LocalSubjectAccessReview": QUESTION,
    "PodDisruptionBudget": {"spec": {"minAvailable": 1, "selector": SELECTOR}},
    "CustomResourceDefinition": {
        "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "samples", "kind": "Sample"}, "versions": VERSIONS}
    },
    "ResourceSlice": {"spec": {"driver": "d.example.com", "nodeName": "n", "pool": POOL, "devices": [{"name": "d0", "attributes": {"i": {"int": 1}}, "capacity": {"m": {"value": "1Gi"}}}]}},
    "ResourceClaim": {"spec": CLAIM},
    "ResourceClaimTemplate": {"spec": {"spec": CLAIM}},
    "DeviceClass": {"spec": {"selectors": [{"cel": {"expression": "device.driver == \"d\""}}], "extendedResourceName": "example.com/gpu"}},
    "SelfSubjectRulesReview": {"spec": {"namespace": "default"}},
    "DeviceTaintRule": {"spec": {"taint": {"key": "k", "effect": "NoExecute"}, "deviceSelector": {"driver": "d"}}},
}  # fmt: skip
PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml")


@pytest.fixture
async def curl() -> AsyncIterator[ApiCaller]:
    async with running_api_server() as curl:
        yield curl


def collection(kind: ServedKind, version: str) -> str:
    head = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
    return f"{head}/namespaces/default/{kind.plural}" if kind.namespaced else f"{head}/{kind.plural}"


def sample(kind: ServedKind, name: str) -> JSON:
    if kind.kind == "CustomResourceDefinition":
        name = "samples.example.com"
    return {"metadata": {"name": name}, **copy.deepcopy(SAMPLES.get(kind.kind, {}))}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in an object: what holds it, and the key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from places(item)


def mutated(obj: JSON, dice: random.Random) -> JSON:
    out = copy.deepcopy(obj)
    for _ in range(dice.randint(1, 3)):
        holder, key = dice.choice(list(places(out)))
        match dice.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[dice.choice(["x", "", "$patch", "name", "-", "a" * 300])] = copy.deepcopy(dice.choice(ODD))
            case _:
                holder[key] = copy.deepcopy(dice.choice(ODD))
        if not out:
            return out
    return out


def sensible(answer: ApiResponse) -> None:
    """A Status with a sentence, or an object; a schema error of an apply is the one 500 that Kubernetes has."""
    assert answer.body != b"internal error"
    found = answer.json
    if answer.status >= 400:
        assert found["kind"] == "Status" and found["message"] and found["code"] == answer.status
    if answer.status == 500:
        assert found["message"].startswith("failed to create typed patch object")


@pytest.mark.cases(16)
@pytest.mark.parametrize("kind", list(Registry(FEATURES)), ids=lambda k: k.key)
async def test_mutated_objects_are_taken_or_refused_with_a_sentence(curl: ApiCaller, kind: ServedKind) -> None:
    dice = random.Random(kind.key)
    version = kind.versions[0]
    path = collection(kind, version)
    good = sample(kind, "good")
    made = await curl("POST", path, good)
    assert made.status == 201 or kind.refused, made.body
    name = f"{path}/{good['metadata']['name']}"
    for number in range(ROUNDS):
        odd = mutated(sample(kind, f"odd-{number}"), dice)
        sensible(await curl("POST", path, odd, fieldValidation=dice.choice(["Strict", "Warn", "Ignore", "odd"])))
        if kind.virtual or kind.refused:
            continue
        same = mutated({**good, "apiVersion": kind.api_version(version), "kind": kind.kind}, dice)
        sub = dice.choice(["", "/status"] if kind.status else [""])
        sensible(await curl("PUT", f"{name}{sub}", same))
        headers = {"Content-Type": dice.choice(PATCHES)}
        sensible(await curl("PATCH", f"{name}{sub}", same, headers, fieldManager="m", force=dice.choice(["", "true"])))
        sensible(await curl("GET", path, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}))
    sensible(await curl("GET", path))
    sensible(await curl("DELETE", name, {"gracePeriodSeconds": dice.choice(ODD), "preconditions": dice.choice(ODD)}))


BODIES: tuple[bytes, ...] = (
    b"", b"[]", b"null", b"1", b'"x"', b"{", b"{}", b"[{}]", b"\xff\xfe", b"a: [", b"a: &x [*x]", b"{a: b}", b"- 1", b"\x00",
    b'{"metadata": []}', b'{"metadata": {"name": {}}}', b'{"metadata": {"name": "\\ud800"}}', b'{"kind": 1, "apiVersion": []}',
    DEEP, b"k8s\x00", b"k8s\x00\x0a\xff\xff\xff\xff\x0f", b"k8s\x00\x0a\x00\x12\x02\x08\x01",
    b"!!python/object/apply:os.system [id]", b"a: 2026-01-01", b"? [a]: b", b'{"a": NaN}', b'{"metadata":{"name":"x"},"metadata":{"name":"y"}}',
)  # fmt: skip
TYPES = (
    "", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/html", "application/json-patch+json",
    *PATCHES, "application/cbor",
)  # fmt: skip


@pytest.mark.cases(10)
@pytest.mark.parametrize(
    "path", ["/api/v1/namespaces/default/configmaps", "/api/v1/namespaces", "/apis/resource.k8s.io/v1/deviceclasses"]
)
@pytest.mark.parametrize("type_", TYPES)
async def test_bodies_that_are_no_objects_are_reported_from_objects(curl: ApiCaller, path: str, type_: str) -> None:
    for body in BODIES:
        headers = {"Content-Type": type_}
        for method, place in (
            ("POST", path),
            ("PUT", f"{path}/default"),
            ("PATCH", f"{path}/default"),
            ("DELETE", f"{path}/nobody"),
        ):
            answer = await curl(method, place, body, headers, fieldManager="m")
            sensible(answer)
            assert answer.status >= 400 or (body, method) in {(b"", "DELETE")} or b"{" in body or method == "PATCH", (
                method,
                body,
                answer.body,
            )


async def test_a_body_beyond_the_limit_is_refused_with_the_limit(curl: ApiCaller) -> None:
    body = json.dumps({"metadata": {"name": "x"}, "data": {"a": "b" * 4_000_000}})
    answer = await curl("POST", "/api/v1/namespaces/default/configmaps", body)
    assert (answer.status, answer.json["reason"]) == (413, "RequestEntityTooLarge")


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
async def test_malformed_options_are_refused_or_ignored_and_never_break_anything(curl: ApiCaller, name: str) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    await curl.make(path, {"metadata": {"name": "x"}})
    for value in VALUES:
        if name == "watch" and value in {"true", "1"}:
            continue
        for method, place, body in (
            ("GET", path, None),
            ("GET", f"{path}/x", None),
            ("POST", path, {"metadata": {"generateName": "y"}}),
            ("PATCH", f"{path}/x", {"data": {"a": value}}),
            ("DELETE", path, None),
        ):
            headers = {"Content-Type": "application/merge-patch+json"}
            sensible(await curl(method, place, body, headers if method == "PATCH" else None, **{name: value}))
    if name == "resourceVersion":
        for value in ("abc", "-1", "99999999999999999999"):
            sensible(await curl("GET", path, watch="1", timeoutSeconds="1", **{name: value}))


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
async def test_malformed_paths_are_found_or_not(curl: ApiCaller, path: str) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"):
        answer = await curl(method, path, {} if method in {"POST", "PUT", "PATCH"} else None)
        assert answer.status in {200, 400, 403, 404, 405, 415, 422, 501} and answer.body != b"internal error", (
            method,
            answer.status,
            answer.body,
        )
