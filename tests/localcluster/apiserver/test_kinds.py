"""Kinds of a user's manifests on the real server's types: what is unknown, wrong, filled in, immutable; and what follows from it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import PODS
from dra_kubeletplugin.localcluster.apiserver.storage import HISTORY
from tests.helpers.api_server import ApiCaller, running_api_server

JSON = dict[str, Any]
CORE = "/api/v1/namespaces/default"
APPS = "/apis/apps/v1/namespaces/default"
MERGE = {"Content-Type": "application/merge-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


@pytest.fixture
async def curl() -> AsyncIterator[ApiCaller]:
    async with running_api_server() as curl:
        yield curl


def pod(name: str, **spec: Any) -> JSON:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def template(**spec: Any) -> JSON:
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}], **spec}}


DEPLOYMENT = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template()}}


async def test_unknown_fields_are_refused_warned_of_or_ignored_as_the_request_states(curl: ApiCaller) -> None:
    odd = pod("p", nodeNam="x")
    odd["spec"]["containers"][0]["imagee"] = "y"
    told = 'unknown field "spec.nodeNam", unknown field "spec.containers[0].imagee"'
    strict = await curl("POST", f"{CORE}/pods", odd, fieldValidation="Strict")
    assert strict.status == 400
    assert set(strict.message.partition("strict decoding error: ")[2].split(", ")) == set(told.split(", "))
    warned = await curl("POST", f"{CORE}/pods", odd)
    assert warned.status == 201
    assert '299 - "unknown field \\"spec.nodeNam\\""' in warned.headers["Warning"]
    assert "nodeNam" not in warned.json["spec"]
    ignored = await curl("POST", f"{CORE}/pods", {**odd, "metadata": {"name": "q"}}, fieldValidation="Ignore")
    assert (ignored.status, ignored.headers.get("Warning")) == (201, None)


async def test_a_field_that_comes_twice_is_reported_with_its_path(curl: ApiCaller) -> None:
    body = '{"metadata": {"name": "c"}, "data": {"a": "1", "a": "2"}}'
    answer = await curl("POST", f"{CORE}/configmaps", body, fieldValidation="Strict")
    assert (answer.status, 'duplicate field "data.a"' in answer.message) == (400, True)
    assert (await curl("POST", f"{CORE}/configmaps", body)).headers["Warning"] == '299 - "duplicate field \\"data.a\\""'


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"containers": {}},
            "cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            {"containers": [{"name": 1}]},
            "cannot unmarshal number into Go struct field Container.spec.containers.name of type string",
        ),
        ({"hostNetwork": "yes"}, "cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool"),
        (
            {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1x"}}}]},
            "quantities must match the regular expression",
        ),
    ],
)
async def test_a_value_of_another_type_is_refused_in_the_server_s_words(
    curl: ApiCaller, spec: JSON, words: str
) -> None:
    answer = await curl("POST", f"{CORE}/pods", {"metadata": {"name": "p"}, "spec": spec}, fieldValidation="Ignore")
    assert answer.status == 400
    assert words in answer.message


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"containers": []}, ("FieldValueRequired", "spec.containers")),
        ({"containers": [{"image": "i"}]}, ("FieldValueRequired", "spec.containers[0].name")),
        ({"containers": [{"name": "c"}]}, ("FieldValueRequired", "spec.containers[0].image")),
        ({"containers": [{"name": "c", "image": "i"}] * 2}, ("FieldValueDuplicate", "spec.containers[1].name")),
        ({"restartPolicy": "Sometimes"}, ("FieldValueNotSupported", "spec.restartPolicy")),
        ({"resourceClaims": [{"name": "x"}]}, ("FieldValueInvalid", "spec.resourceClaims[0]")),
        (
            {"resourceClaims": [{"name": "x", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}]},
            ("FieldValueInvalid", "spec.resourceClaims[0]"),
        ),
        (
            {"containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "no"}]}}]},
            ("FieldValueNotFound", "spec.containers[0].resources.claims[0]"),
        ),
        (
            {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"a.b/c": "1"}}}]},
            ("FieldValueRequired", "spec.containers[0].resources.limits"),
        ),
        ({"nodeSelector": {"a": "b c"}}, ("FieldValueInvalid", "spec.nodeSelector")),
        ({"tolerations": [{"operator": "Equal"}]}, ("FieldValueInvalid", "spec.tolerations[0].operator")),
        (
            {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            (
                "FieldValueRequired",
                "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey",
            ),
        ),
    ],
)
async def test_a_pod_that_breaks_a_rule_is_refused_with_the_path(
    curl: ApiCaller, change: JSON, cause: tuple[str, str]
) -> None:
    answer = await curl("POST", f"{CORE}/pods", pod("p", **change))
    assert answer.status == 422
    assert cause in answer.causes


async def test_a_pod_gets_what_kubernetes_fills_in(curl: ApiCaller) -> None:
    made = await curl.make(f"{CORE}/pods", pod("p"))
    spec = made["spec"]
    assert (spec["restartPolicy"], spec["dnsPolicy"], spec["schedulerName"]) == (
        "Always",
        "ClusterFirst",
        "default-scheduler",
    )
    assert (spec["terminationGracePeriodSeconds"], spec["enableServiceLinks"], spec["priority"]) == (30, True, 0)
    assert [t["key"] for t in spec["tolerations"]] == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    assert spec["containers"][0]["resources"] == {}
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    limited = {"resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}}
    made = await curl.make(f"{CORE}/pods", pod("q", containers=[{"name": "c", "image": "i:1", **limited}]))
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert made["status"]["qosClass"] == "Guaranteed"


async def test_hardly_anything_of_a_pod_can_be_changed(curl: ApiCaller) -> None:
    await curl.make(f"{CORE}/pods", pod("p", activeDeadlineSeconds=20))
    path = f"{CORE}/pods/p"
    ok: list[JSON] = [
        {"containers": [{"name": "c", "image": "j"}]},
        {"activeDeadlineSeconds": 10},
        {"tolerations": [{"key": "new", "operator": "Exists"}]},
    ]
    for spec in ok:
        before = (await curl("GET", path)).json["spec"]["tolerations"]
        change = {**spec, "tolerations": before + spec.get("tolerations", [])}
        answer = await curl("PATCH", path, {"spec": change}, STRATEGIC)
        assert answer.status == 200, answer.body
    for spec in (
        {"containers": [{"name": "c", "command": ["x"]}]},
        {"containers": [{"name": "other", "image": "i"}]},
        {"nodeSelector": {"a": "b"}},
        {"priority": 7},
        {"tolerations": None},
        {"activeDeadlineSeconds": 30},
        {"schedulingGates": [{"name": "a.b/c"}]},
        {"resourceClaims": [{"name": "x", "resourceClaimName": "y"}]},
    ):
        answer = await curl("PATCH", path, {"spec": spec}, STRATEGIC)
        assert answer.status == 422, (spec, answer.body)


async def test_a_gated_pod_may_lose_gates_and_become_more_narrow_and_is_not_bound(curl: ApiCaller) -> None:
    await curl.make(f"{CORE}/pods", pod("p", schedulingGates=[{"name": "a.b/c"}]))
    bind = {"target": {"kind": "Node", "name": "n"}}
    assert (await curl("POST", f"{CORE}/pods/p/binding", bind)).status == 409
    change = {"spec": {"schedulingGates": None, "nodeSelector": {"a": "b"}}}
    assert (await curl("PATCH", f"{CORE}/pods/p", change, MERGE)).status == 200
    assert (await curl("POST", f"{CORE}/pods/p/binding", bind)).status == 201
    again = await curl("POST", f"{CORE}/pods/p/binding", bind)
    assert (again.status, "already assigned" in again.message) == (409, True)


async def test_priorities_come_from_classes(curl: ApiCaller) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    await curl.make(classes, {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
    await curl.make(classes, {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True})
    made = await curl.make(f"{CORE}/pods", pod("p", priorityClassName="high"))
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (1000, "Never")
    assert (await curl.make(f"{CORE}/pods", pod("q")))["spec"]["priority"] == 7
    unknown = await curl("POST", f"{CORE}/pods", pod("r", priorityClassName="no"))
    assert unknown.message == 'pods "r" is forbidden: no PriorityClass with name no was found'
    assert (await curl("POST", f"{CORE}/pods", pod("s", priority=3))).status == 403


# --- other kinds ------------------------------------------------------------------------------------


async def test_workloads_are_filled_in_judged_and_scaled(curl: ApiCaller) -> None:
    made = await curl.make(f"{APPS}/deployments", DEPLOYMENT)
    assert made["spec"]["replicas"] == 1
    assert made["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
    }
    assert made["spec"]["template"]["spec"]["restartPolicy"] == "Always"
    wrong = {
        **DEPLOYMENT,
        "metadata": {"name": "e"},
        "spec": {**DEPLOYMENT["spec"], "selector": {"matchLabels": {"a": "c"}}},
    }
    assert ("FieldValueInvalid", "spec.template.metadata.labels") in (
        await curl("POST", f"{APPS}/deployments", wrong)
    ).causes
    scale = f"{APPS}/deployments/d/scale"
    assert (await curl("GET", scale)).json["spec"] == {"replicas": 1}
    assert (await curl("PATCH", scale, {"spec": {"replicas": 4}}, MERGE)).json["spec"] == {"replicas": 4}
    assert (await curl("GET", f"{APPS}/deployments/d")).json["spec"]["replicas"] == 4
    assert (await curl("PATCH", scale, {"spec": {"replicas": -1}}, MERGE)).status == 422


async def test_a_job_gets_the_selector_of_its_own_pods(curl: ApiCaller) -> None:
    """``kubectl logs job/NAME`` and ``describe`` go by it; without one they take the pods of all others."""
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    made = await curl.make(jobs, {"metadata": {"name": "j"}, "spec": {"template": template(restartPolicy="Never")}})
    uid = made["metadata"]["uid"]
    assert made["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert made["spec"]["template"]["metadata"]["labels"] == {
        "a": "b",
        "batch.kubernetes.io/controller-uid": uid,
        "controller-uid": uid,
        "batch.kubernetes.io/job-name": "j",
        "job-name": "j",
    }
    assert made["metadata"]["labels"] == made["spec"]["template"]["metadata"]["labels"]
    by_hand = {"selector": {"matchLabels": {"a": "b"}}, "template": template(restartPolicy="Never")}
    refused = await curl("POST", jobs, {"metadata": {"name": "k"}, "spec": by_hand})
    assert ("FieldValueInvalid", "spec.selector") in refused.causes
    meant = await curl.make(jobs, {"metadata": {"name": "k"}, "spec": {**by_hand, "manualSelector": True}})
    assert (meant["spec"]["selector"], meant["spec"]["template"]["metadata"]["labels"]) == (
        {"matchLabels": {"a": "b"}},
        {"a": "b"},
    )


async def test_who_goes_over_from_client_side_to_server_side_apply_meets_no_conflict_with_himself(
    curl: ApiCaller,
) -> None:
    def said(value: str) -> JSON:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": value}}

    def by(manager: str) -> str:
        return f"{CORE}/configmaps/c?fieldManager={manager}"

    note = {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(said("1"))}}
    await curl.make(
        f"{CORE}/configmaps?fieldManager=kubectl-client-side-apply", said("1") | {"metadata": {"name": "c", **note}}
    )
    assert (await curl("PATCH", by("other"), said("2"), APPLY)).status == 409
    assert (await curl("PATCH", by("kubectl"), said("2"), APPLY)).json["data"] == {"a": "2"}
    await curl("PATCH", by("editor"), {"data": {"a": "3"}}, MERGE)  # not what was applied any more
    await curl("PATCH", by("kubectl"), {"metadata": note}, MERGE)
    assert (await curl("PATCH", by("kubectl"), said("4"), APPLY)).status == 409


async def test_secrets_take_plain_text_and_maps_may_be_immutable(curl: ApiCaller) -> None:
    made = await curl.make(f"{CORE}/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    assert (made["data"], made["type"]) == ({"a": base64.b64encode(b"b").decode()}, "Opaque")
    bad = await curl("POST", f"{CORE}/secrets", {"metadata": {"name": "t"}, "data": {"a": "$"}})
    assert (bad.status, "illegal base64" in bad.message) == (400, True)
    await curl.make(f"{CORE}/configmaps", {"metadata": {"name": "c"}, "data": {"a": "b"}, "immutable": True})
    for change in ({"data": {"a": "c"}}, {"immutable": None}):
        assert (await curl("PATCH", f"{CORE}/configmaps/c", change, MERGE)).status == 422


async def test_an_eviction_asks_the_disruption_budget(curl: ApiCaller) -> None:
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    labelled = pod("p")
    labelled["metadata"]["labels"] = {"a": "b"}
    await curl.make(f"{CORE}/pods", labelled)
    await curl("PATCH", f"{CORE}/pods/p/status", {"status": {"phase": "Running"}}, MERGE)
    await curl.make(
        budgets, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}
    )
    evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    refused = await curl("POST", f"{CORE}/pods/p/eviction", evict)
    assert (refused.status, refused.json["details"]["causes"][0]["reason"]) == (429, "DisruptionBudget")
    allowed = {"status": {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}}
    await curl("PATCH", f"{budgets}/b/status", allowed, MERGE)
    assert (await curl("POST", f"{CORE}/pods/p/eviction", evict)).status == 201
    assert (await curl("GET", f"{CORE}/pods/p")).status == 404
    assert (await curl("GET", f"{budgets}/b")).json["status"]["disruptionsAllowed"] == 0


async def test_kinds_without_anybody_behind_them_are_refused_with_the_reason(curl: ApiCaller) -> None:
    for path, words in (
        (f"{CORE}/persistentvolumeclaims", "no persistent volumes"),
        (f"{APPS}/statefulsets", "no controller"),
    ):
        assert (await curl("GET", path)).json["items"] == []
        answer = await curl("POST", path, {"metadata": {"name": "x"}})
        assert (answer.status, words in answer.message) == (422, True)


async def test_one_event_has_two_groups(curl: ApiCaller) -> None:
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p"},
        "note": "hello",
        "reason": "Because",
        "type": "Normal",
        "reportingController": "me",
    }
    groups = "/apis/events.k8s.io/v1/namespaces/default/events"
    await curl.make(groups, event)
    core = (await curl("GET", f"{CORE}/events/e")).json
    assert (core["message"], core["involvedObject"]["name"], core["reportingComponent"]) == ("hello", "p", "me")
    assert (await curl("GET", f"{groups}/e")).json["note"] == "hello"
    assert len((await curl("GET", groups, fieldSelector="regarding.name=p")).json["items"]) == 1
    assert len((await curl("GET", f"{CORE}/events", fieldSelector="involvedObject.name=p")).json["items"]) == 1
    assert not (await curl("GET", f"{CORE}/events", fieldSelector="involvedObject.name=q")).json["items"]


def definition(**version: Any) -> JSON:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1},
                    "mode": {"type": "string", "default": "fast", "enum": ["fast", "slow"]},
                    "parts": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
                        },
                    },
                },
            }
        },
    }
    columns = [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]
    one = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    one |= {"subresources": {"status": {}}, "additionalPrinterColumns": columns, **version}
    names = {"plural": "foos", "kind": "Foo", "shortNames": ["fo"]}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [one]}
    return {"metadata": {"name": "foos.example.com"}, "spec": spec}


async def test_a_custom_kind_is_served_by_its_schema_and_goes_with_its_objects(curl: ApiCaller) -> None:
    definitions, foos = (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/example.com/v1/namespaces/default/foos",
    )
    made = await curl.make(definitions, definition())
    assert {c["type"] for c in made["status"]["conditions"]} == {"Established", "NamesAccepted"}
    foo = await curl.make(foos, {"metadata": {"name": "f"}, "spec": {"size": 2}})
    assert foo["spec"] == {"size": 2, "mode": "fast"}
    for spec, field in (({"size": 0}, "spec.size"), ({}, "spec.size"), ({"size": 1, "mode": "x"}, "spec.mode")):
        answer = await curl("POST", foos, {"metadata": {"name": "g"}, "spec": spec})
        assert (answer.status, answer.causes[0][1]) == (422, field)
    strict = await curl(
        "POST", foos, {"metadata": {"name": "g"}, "spec": {"size": 1, "no": 1}}, fieldValidation="Strict"
    )
    assert (strict.status, 'unknown field "spec.no"' in strict.message) == (400, True)
    assert (await curl("GET", foos, headers=TABLE)).json["rows"][0]["cells"] == ["f", 2]
    apply = {"Content-Type": "application/apply-patch+yaml"}
    head = {"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "f"}}
    for manager, part in (("a", {"name": "x", "n": 1}), ("b", {"name": "y", "n": 2})):
        answer = await curl("PATCH", f"{foos}/f", {**head, "spec": {"parts": [part]}}, apply, fieldManager=manager)
        assert answer.status == 200, answer.body
    assert [p["name"] for p in answer.json["spec"]["parts"]] == ["x", "y"]
    conflict = {**head, "spec": {"parts": [{"name": "x", "n": 9}]}}
    assert (await curl("PATCH", f"{foos}/f", conflict, apply, fieldManager="b")).status == 409
    assert (await curl("PATCH", f"{foos}/f/status", {"status": {"a": 1}}, MERGE)).status == 200
    assert "example.com" in [g["name"] for g in (await curl("GET", "/apis")).json["groups"]]
    assert (await curl("DELETE", f"{definitions}/foos.example.com")).status == 200
    assert (await curl("GET", foos)).status == 404
    await curl.make(definitions, definition())
    assert (await curl("GET", foos)).json["items"] == []


# --- namespaces, owners, lists, watches -------------------------------------------------------------


async def test_a_namespace_goes_with_all_that_is_in_it_once_nothing_holds_it(
    curl: ApiCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.localcluster.apiserver.deleting._NAMESPACE_WAIT", 3600.0)
    await curl.make("/api/v1/namespaces", {"metadata": {"name": "n"}})
    maps = "/api/v1/namespaces/n/configmaps"
    await curl.make(maps, {"metadata": {"name": "free"}})
    await curl.make(maps, {"metadata": {"name": "held", "finalizers": ["example.com/x"]}})
    assert [
        s["metadata"]["name"] for s in (await curl("GET", "/api/v1/namespaces/n/serviceaccounts")).json["items"]
    ] == ["default"]
    deleted = await curl("DELETE", "/api/v1/namespaces/n")
    assert deleted.json["status"]["phase"] == "Terminating"
    assert (await curl("DELETE", f"{maps}/free")).status == 200, "it is there for a while, as in Kubernetes"
    waiting = curl.server._deleter._timers["n"]
    waiting._run()  # the while is over
    waiting.cancel()
    assert not (await curl("GET", "/api/v1/namespaces/n/serviceaccounts")).json["items"]
    assert [m["metadata"]["name"] for m in (await curl("GET", maps)).json["items"]] == ["held"]
    late = await curl("POST", maps, {"metadata": {"name": "late"}})
    assert (late.status, late.json["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    await curl("PATCH", f"{maps}/held", {"metadata": {"finalizers": None}}, MERGE)
    assert (await curl("GET", "/api/v1/namespaces/n")).status == 404
    assert not (await curl("GET", "/api/v1/configmaps")).json["items"]


async def test_what_an_owner_leaves_behind_follows_the_propagation_that_was_requested(curl: ApiCaller) -> None:
    maps = f"{CORE}/configmaps"

    async def family(policy: str) -> list[str]:
        owner = await curl.make(maps, {"metadata": {"name": "owner"}})
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        await curl.make(maps, {"metadata": {"name": "child", "ownerReferences": [reference]}})
        held = {"name": "held", "ownerReferences": [reference], "finalizers": ["example.com/x"]}
        await curl.make(maps, {"metadata": held})
        assert (await curl("DELETE", f"{maps}/owner", {"propagationPolicy": policy})).status == 200
        return sorted(m["metadata"]["name"] for m in (await curl("GET", maps)).json["items"])

    async def release() -> list[str]:
        await curl("PATCH", f"{maps}/held", {"metadata": {"finalizers": None}}, MERGE)
        return sorted(m["metadata"]["name"] for m in (await curl("GET", maps)).json["items"])

    assert await family("Background") == ["held"]
    assert await release() == []
    assert await family("Foreground") == ["held", "owner"]
    assert await release() == []
    assert await family("Orphan") == ["child", "held"]
    assert all("ownerReferences" not in m["metadata"] for m in (await curl("GET", maps)).json["items"])


async def test_pages_of_a_list_show_one_moment_whatever_changes_meanwhile(curl: ApiCaller) -> None:
    maps = f"{CORE}/configmaps"
    for i in range(5):
        await curl.make(maps, {"metadata": {"name": f"c{i}"}, "data": {"v": "old"}})
    page = (await curl("GET", maps, limit="2")).json
    assert page["metadata"]["remainingItemCount"] == 3
    await curl("DELETE", f"{maps}/c3")
    await curl("PATCH", f"{maps}/c4", {"data": {"v": "new"}}, MERGE)
    await curl.make(maps, {"metadata": {"name": "c2a"}})
    seen = [(m["metadata"]["name"], m["data"]["v"]) for m in page["items"]]
    token = page["metadata"]["continue"]
    while page["metadata"].get("continue"):
        page = (await curl("GET", maps, limit="2", **{"continue": page["metadata"]["continue"]})).json
        seen += [(m["metadata"]["name"], m["data"]["v"]) for m in page["items"]]
    assert seen == [(f"c{i}", "old") for i in range(5)]
    for _ in range(HISTORY + 1):
        curl.server.storage.put("configmaps", {"metadata": {"name": "busy", "namespace": "default", "uid": "b"}})
    late = await curl("GET", maps, limit="2", **{"continue": token})
    assert (late.status, late.json["reason"]) == (410, "Expired")


async def test_versions_of_lists_are_exact_not_older_or_refused(curl: ApiCaller) -> None:
    maps = f"{CORE}/configmaps"
    made = await curl.make(maps, {"metadata": {"name": "a"}})
    then = made["metadata"]["resourceVersion"]
    await curl.make(maps, {"metadata": {"name": "b"}})
    exact = (await curl("GET", maps, resourceVersion=then, resourceVersionMatch="Exact")).json
    assert [m["metadata"]["name"] for m in exact["items"]] == ["a"]
    newer = (await curl("GET", maps, resourceVersion=then, resourceVersionMatch="NotOlderThan")).json
    assert [m["metadata"]["name"] for m in newer["items"]] == ["a", "b"]
    future = await curl("GET", maps, resourceVersion="999999")
    assert (future.status, future.json["details"]["causes"][0]["reason"]) == (504, "ResourceVersionTooLarge")


@pytest.mark.parametrize(
    ("path", "selector"),
    [
        (f"{CORE}/pods", "spec.bogus=1"),
        (f"{CORE}/configmaps", "data.a=1"),
        ("/apis/resource.k8s.io/v1/resourceslices", "spec.pool.name=x"),
        ("/apis/resource.k8s.io/v1/resourceclaims", "spec.devices=x"),
    ],
)
async def test_a_field_that_cannot_be_selected_is_refused_and_matches_not_nothing(
    curl: ApiCaller, path: str, selector: str
) -> None:
    for watch in ({}, {"watch": "1"}):
        answer = await curl("GET", path, fieldSelector=selector, **watch)
        assert (answer.status, answer.message) == (400, f"field label not supported: {selector.partition('=')[0]}")


async def test_a_watch_of_one_node_s_pods_is_not_woken_by_another_s(curl: ApiCaller) -> None:
    seen: list[tuple[str, str]] = []

    async def watch(client: KubeClient, ready: asyncio.Event) -> None:
        query = {"watch": "1", "fieldSelector": "spec.nodeName=n1"}
        async with client.stream(PODS.path(), query, 120, ready.set) as lines:
            async for line in lines:
                event = json.loads(line)
                seen.append((event["type"], event["object"]["metadata"]["name"]))

    async with KubeClient(curl.server.config) as client:
        ready = asyncio.Event()
        task = asyncio.create_task(watch(client, ready))
        await ready.wait()
        for i in range(20):
            await client.create(PODS, pod(f"other-{i}", nodeName="n2"), "default")
        await client.create(PODS, pod("mine"), "default")
        await client.call("POST", f"{CORE}/pods/mine/binding", {"target": {"name": "n1"}})
        await client.patch(PODS, "mine", {"metadata": {"labels": {"a": "b"}}}, "default")
        await client.delete(PODS, "mine", "default", grace=0)
        async with asyncio.timeout(30):
            while len(seen) < 3:
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert seen == [("ADDED", "mine"), ("MODIFIED", "mine"), ("DELETED", "mine")]


async def test_all_of_a_namespace_and_what_is_published_of_types(curl: ApiCaller) -> None:
    resources = (await curl("GET", "/apis/apps/v1")).json["resources"]
    assert {r["name"] for r in resources if "all" in r.get("categories", ())} >= {
        "deployments",
        "daemonsets",
        "replicasets",
    }
    document = (await curl("GET", "/openapi/v3/api/v1")).json
    spec = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]
    assert spec["resourceClaims"]["x-kubernetes-list-map-keys"] == ["name"]
    assert "go" not in spec["nodeName"]
    assert spec["resourceClaims"]["items"]["$ref"] in {
        f"#/components/schemas/{name}" for name in document["components"]["schemas"]
    }


async def test_limits_of_a_namespace_fill_in_and_refuse(curl: ApiCaller) -> None:
    item = {"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m"}, "max": {"cpu": "2"}}
    await curl.make(f"{CORE}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [item]}})
    made = await curl.make(f"{CORE}/pods", pod("p"))
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}}
    greedy = pod("q", containers=[{"name": "c", "image": "i", "resources": {"limits": {"cpu": "3"}}}])
    answer = await curl("POST", f"{CORE}/pods", greedy)
    assert (answer.status, "maximum cpu usage per Container is 2, but limit is 3" in answer.message) == (403, True)


async def test_what_is_kept_and_has_no_effect_is_reported_to_who_makes_it(curl: ApiCaller) -> None:
    group = "/apis/admissionregistration.k8s.io/v1"
    spec = {"policyName": "p", "validationActions": ["Audit"]}
    made = await curl("POST", f"{group}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": spec})
    assert "no audit log" in made.headers["Warning"]
    device = {"deviceSelector": {"driver": "d.example.com"}, "taint": {"key": "k", "effect": "NoExecute"}}
    made = await curl(
        "POST", "/apis/resource.k8s.io/v1beta2/devicetaintrules", {"metadata": {"name": "r"}, "spec": device}
    )
    assert (made.status, "stores DeviceTaintRules but ignores them" in made.headers["Warning"]) == (201, True)
    ruled = definition()
    schema = ruled["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["x-kubernetes-validations"] = [{"rule": "self.spec.parts.all(p, p.n < 5)"}]
    made = await curl("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", ruled)
    assert "x-kubernetes-validations" in made.headers["Warning"]
    assert "Warning" not in (await curl("POST", f"{CORE}/configmaps", {"metadata": {"name": "c"}})).headers


async def test_quotas_charge_claims_by_class_and_by_the_extended_resource_of_their_class(curl: ApiCaller) -> None:
    classes = "/apis/resource.k8s.io/v1/deviceclasses"
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    await curl.make(classes, {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}})
    hard = {
        "gpu.deviceclass.resource.k8s.io/devices": "3",
        "requests.example.com/gpu": "5",
        "requests.deviceclass.resource.kubernetes.io/gpu": "5",
        "count/pods": "1",
    }
    await curl.make(f"{CORE}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}})

    def claim(name: str, **exactly: Any) -> JSON:
        request = {"name": "r", "exactly": {"deviceClassName": "gpu", **exactly}}
        return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}

    async def used() -> JSON:
        return dict((await curl("GET", f"{CORE}/resourcequotas/q")).json["status"]["used"])

    await curl.make(claims, claim("a", count=2))
    assert await used() == {**dict.fromkeys(list(hard)[:3], "2"), "count/pods": "0"}
    refused = await curl("POST", claims, claim("b", allocationMode="All"))
    assert refused.message == (
        'resourceclaims.resource.k8s.io "b" is forbidden: exceeded quota: q, requested: '
        "gpu.deviceclass.resource.k8s.io/devices=32,requests.deviceclass.resource.kubernetes.io/gpu=32,"
        "requests.example.com/gpu=32, used: gpu.deviceclass.resource.k8s.io/devices=2,"
        "requests.deviceclass.resource.kubernetes.io/gpu=2,requests.example.com/gpu=2, limited: "
        "gpu.deviceclass.resource.k8s.io/devices=3,requests.deviceclass.resource.kubernetes.io/gpu=5,requests.example.com/gpu=5"
    )
    limited = {"resources": {"limits": {"example.com/gpu": "4"}}}
    asking = pod("p", containers=[{"name": "c", "image": "i", **limited}])
    assert (
        "exceeded quota: q, requested: requests.example.com/gpu=4"
        in (await curl("POST", f"{CORE}/pods", asking)).message
    )
    await curl("DELETE", f"{claims}/a")
    await curl.make(f"{CORE}/pods", asking)
    assert (await used())["requests.example.com/gpu"] == "4"
    assert "count/pods=1" in (await curl("POST", f"{CORE}/pods", pod("q"))).message


async def test_types_are_published_as_json_and_as_the_message_that_kubectl_reads(curl: ApiCaller) -> None:
    wanted = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    message = await curl("GET", "/openapi/v2", headers={"Accept": wanted})
    assert message.headers["Content-Type"] == "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    document = (await curl("GET", "/openapi/v2", headers={"Accept": "application/json"})).json
    assert "io.k8s.api.resource.v1.DeviceClass" in document["definitions"]
    assert all(name.encode() in message.body for name in document["definitions"])


async def test_generations_are_counted_where_kubernetes_counts_them(curl: ApiCaller) -> None:
    made = await curl.make(f"{APPS}/deployments", DEPLOYMENT)
    assert made["metadata"]["generation"] == 1
    await curl("PATCH", f"{APPS}/deployments/d/status", {"status": {"replicas": 1}}, MERGE)
    changed = await curl("PATCH", f"{APPS}/deployments/d", {"spec": {"replicas": 3}}, MERGE)
    assert changed.json["metadata"]["generation"] == 2
    assert "generation" not in (await curl.make(f"{CORE}/configmaps", {"metadata": {"name": "c"}}))["metadata"]
