"""Built-in and custom kinds on the API server's types: unknown fields, validation, defaulting, immutable fields, and their effects."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from dra_devkit.localcluster.apiserver.storage import HISTORY
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import PODS
from packages.devkit.tests.localcluster.apiserver.custom_resources import definition
from tests.helpers.api_server import ApiCaller

CORE = "/api/v1/namespaces/default"
APPS = "/apis/apps/v1/namespaces/default"
MERGE = {"Content-Type": "application/merge-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


def pod(name: str, **spec: Any) -> JSON:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def template(**spec: Any) -> JSON:
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}], **spec}}


DEPLOYMENT = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template()}}


async def test_field_validation_rejects_warns_about_or_ignores_unknown_fields(curl: ApiCaller) -> None:
    body = pod("p", nodeNam="x")
    body["spec"]["containers"][0]["imagee"] = "y"
    unknown_fields = 'unknown field "spec.nodeNam", unknown field "spec.containers[0].imagee"'
    strict = await curl("POST", f"{CORE}/pods", body, fieldValidation="Strict")
    assert strict.status == 400
    assert set(strict.message.partition("strict decoding error: ")[2].split(", ")) == set(unknown_fields.split(", "))
    warned = await curl("POST", f"{CORE}/pods", body)
    assert warned.status == 201
    assert '299 - "unknown field \\"spec.nodeNam\\""' in warned.headers["Warning"]
    assert "nodeNam" not in warned.json["spec"]
    ignored = await curl("POST", f"{CORE}/pods", {**body, "metadata": {"name": "q"}}, fieldValidation="Ignore")
    assert (ignored.status, ignored.headers.get("Warning")) == (201, None)


async def test_a_duplicate_field_is_reported_with_its_path(curl: ApiCaller) -> None:
    body = '{"metadata": {"name": "c"}, "data": {"a": "1", "a": "2"}}'
    response = await curl("POST", f"{CORE}/configmaps", body, fieldValidation="Strict")
    assert (response.status, 'duplicate field "data.a"' in response.message) == (400, True)
    assert (await curl("POST", f"{CORE}/configmaps", body)).headers["Warning"] == '299 - "duplicate field \\"data.a\\""'


@pytest.mark.parametrize(
    ("spec", "expected_message"),
    [
        (
            {"containers": {}},
            "cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            {"containers": [{"name": 1}]},
            "cannot unmarshal number into Go struct field Container.spec.containers.name of type string",
        ),
        (
            {"containers": [1]},
            "cannot unmarshal number into Go struct field PodSpec.spec.containers of type v1.Container",
        ),
        ({"hostNetwork": "yes"}, "cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool"),
        (
            {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1x"}}}]},
            "quantities must match the regular expression",
        ),
    ],
)
async def test_a_value_of_the_wrong_type_is_rejected_with_the_api_servers_message(
    curl: ApiCaller, spec: JSON, expected_message: str
) -> None:
    response = await curl("POST", f"{CORE}/pods", {"metadata": {"name": "p"}, "spec": spec}, fieldValidation="Ignore")
    assert response.status == 400
    assert expected_message in response.message


async def test_a_pod_gets_the_defaults_of_kubernetes(curl: ApiCaller) -> None:
    created = await curl.make(f"{CORE}/pods", pod("p"))
    spec = created["spec"]
    names = (spec["restartPolicy"], spec["dnsPolicy"], spec["schedulerName"])
    assert names == ("Always", "ClusterFirst", "default-scheduler")
    assert (spec["terminationGracePeriodSeconds"], spec["enableServiceLinks"], spec["priority"]) == (30, True, 0)
    assert [t["key"] for t in spec["tolerations"]] == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    assert spec["containers"][0]["resources"] == {}
    assert created["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    limited = {"resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}}
    created = await curl.make(f"{CORE}/pods", pod("q", containers=[{"name": "c", "image": "i:1", **limited}]))
    assert created["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert created["status"]["qosClass"] == "Guaranteed"


async def test_most_fields_of_a_pod_are_immutable(curl: ApiCaller) -> None:
    await curl.make(f"{CORE}/pods", pod("p", activeDeadlineSeconds=20))
    path = f"{CORE}/pods/p"
    allowed_specs: list[JSON] = [
        {"containers": [{"name": "c", "image": "j"}]},
        {"activeDeadlineSeconds": 10},
        {"tolerations": [{"key": "new", "operator": "Exists"}]},
    ]
    for spec in allowed_specs:
        before = (await curl("GET", path)).json["spec"]["tolerations"]
        change = {**spec, "tolerations": before + spec.get("tolerations", [])}
        response = await curl("PATCH", path, {"spec": change}, STRATEGIC)
        assert response.status == 200, response.body
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
        response = await curl("PATCH", path, {"spec": spec}, STRATEGIC)
        assert response.status == 422, (spec, response.body)


async def test_a_gated_pod_is_not_bound_and_may_lose_gates_and_gain_selectors(curl: ApiCaller) -> None:
    await curl.make(f"{CORE}/pods", pod("p", schedulingGates=[{"name": "a.b/c"}]))
    bind = {"target": {"kind": "Node", "name": "n"}}
    assert (await curl("POST", f"{CORE}/pods/p/binding", bind)).status == 409
    change = {"spec": {"schedulingGates": None, "nodeSelector": {"a": "b"}}}
    assert (await curl("PATCH", f"{CORE}/pods/p", change, MERGE)).status == 200
    assert (await curl("POST", f"{CORE}/pods/p/binding", bind)).status == 201
    second_binding = await curl("POST", f"{CORE}/pods/p/binding", bind)
    assert (second_binding.status, "already assigned" in second_binding.message) == (409, True)


async def test_a_pod_gets_its_priority_from_a_priority_class(curl: ApiCaller) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    await curl.make(classes, {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
    await curl.make(classes, {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True})
    created = await curl.make(f"{CORE}/pods", pod("p", priorityClassName="high"))
    assert (created["spec"]["priority"], created["spec"]["preemptionPolicy"]) == (1000, "Never")
    assert (await curl.make(f"{CORE}/pods", pod("q")))["spec"]["priority"] == 7
    unknown = await curl("POST", f"{CORE}/pods", pod("r", priorityClassName="no"))
    assert unknown.message == 'pods "r" is forbidden: no PriorityClass with name no was found'
    assert (await curl("POST", f"{CORE}/pods", pod("s", priority=3))).status == 403


# --- other kinds ------------------------------------------------------------------------------------


async def test_workloads_are_defaulted_validated_and_scaled(curl: ApiCaller) -> None:
    created = await curl.make(f"{APPS}/deployments", DEPLOYMENT)
    assert created["spec"]["replicas"] == 1
    assert created["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
    }
    assert created["spec"]["template"]["spec"]["restartPolicy"] == "Always"
    wrong = {"metadata": {"name": "e"}, "spec": {**DEPLOYMENT["spec"], "selector": {"matchLabels": {"a": "c"}}}}
    rejected = await curl("POST", f"{APPS}/deployments", wrong)
    assert ("FieldValueInvalid", "spec.template.metadata.labels") in rejected.causes
    scale = f"{APPS}/deployments/d/scale"
    assert (await curl("GET", scale)).json["spec"] == {"replicas": 1}
    assert (await curl("PATCH", scale, {"spec": {"replicas": 4}}, MERGE)).json["spec"] == {"replicas": 4}
    assert (await curl("GET", f"{APPS}/deployments/d")).json["spec"]["replicas"] == 4
    assert (await curl("PATCH", scale, {"spec": {"replicas": -1}}, MERGE)).status == 422


_PERCENT = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)


@pytest.mark.parametrize(
    ("surge", "unavailable", "faults"),
    [
        ("150%", 0, ['maxSurge: Invalid value: "150%": must not be greater than 100%']),
        ("0" * 5000 + "100%", 0, []),
        (-1, 0, ["maxSurge: Invalid value: -1: must be greater than or equal to 0"]),
        (0, "x", [f'maxUnavailable: Invalid value: "x": {_PERCENT}', "Required value: cannot be 0 when maxSurge is 0"]),
        ("00%", 0, ["maxUnavailable: Required value: cannot be 0 when maxSurge is 0"]),
        (1, "10%", ["maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero"]),
    ],
)
async def test_numbers_of_a_daemon_sets_rolling_update_are_validated(
    curl: ApiCaller, surge: int | str, unavailable: int | str, faults: list[str]
) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    spec = {**DEPLOYMENT["spec"], "updateStrategy": rolling}
    response = await curl("POST", f"{APPS}/daemonsets", {"metadata": {"name": "d"}, "spec": spec})
    assert response.status == (422 if faults else 201)
    assert all(fault in response.message for fault in faults)


@pytest.mark.parametrize(
    ("surge", "unavailable", "fault"),
    [
        ("150%", 0, ""),
        (1, "101%", 'maxUnavailable: Invalid value: "101%": must not be greater than 100%'),
        (0, "0%", 'maxUnavailable: Invalid value: "0%": may not be 0 when `maxSurge` is 0'),
        ("x", 1, f'maxSurge: Invalid value: "x": {_PERCENT}'),
    ],
)
async def test_numbers_of_a_deployments_rolling_update_are_validated(
    curl: ApiCaller, surge: int | str, unavailable: int | str, fault: str
) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    deployment = {"metadata": {"name": "d"}, "spec": {**DEPLOYMENT["spec"], "strategy": strategy}}
    response = await curl("POST", f"{APPS}/deployments", deployment)
    assert response.status == (422 if fault else 201)
    assert fault in response.json.get("message", "")


async def test_a_job_gets_a_selector_for_its_own_pods(curl: ApiCaller) -> None:
    """``kubectl logs job/NAME`` and ``kubectl describe`` use this selector. Without it they select the pods of all jobs."""
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    created = await curl.make(jobs, {"metadata": {"name": "j"}, "spec": {"template": template(restartPolicy="Never")}})
    uid = created["metadata"]["uid"]
    assert created["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    own = {
        f"{prefix}{k}": v
        for prefix in ("", "batch.kubernetes.io/")
        for k, v in (("controller-uid", uid), ("job-name", "j"))
    }
    assert created["spec"]["template"]["metadata"]["labels"] == {"a": "b", **own}
    assert created["metadata"]["labels"] == created["spec"]["template"]["metadata"]["labels"]
    job_spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template(restartPolicy="Never")}
    refused = await curl("POST", jobs, {"metadata": {"name": "k"}, "spec": job_spec})
    assert ("FieldValueInvalid", "spec.selector") in refused.causes
    manual = await curl.make(jobs, {"metadata": {"name": "k"}, "spec": {**job_spec, "manualSelector": True}})
    assert manual["spec"]["selector"] == {"matchLabels": manual["spec"]["template"]["metadata"]["labels"]}
    assert manual["spec"]["selector"] == {"matchLabels": {"a": "b"}}


async def test_migration_from_client_side_to_server_side_apply_has_no_conflict(curl: ApiCaller) -> None:
    def config_map(value: str) -> JSON:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": value}}

    def path_for(manager: str) -> str:
        return f"{CORE}/configmaps/c?fieldManager={manager}"

    note = {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(config_map("1"))}}
    await curl.make(
        f"{CORE}/configmaps?fieldManager=kubectl-client-side-apply",
        config_map("1") | {"metadata": {"name": "c", **note}},
    )
    assert (await curl("PATCH", path_for("other"), config_map("2"), APPLY)).status == 409
    assert (await curl("PATCH", path_for("kubectl"), config_map("2"), APPLY)).json["data"] == {"a": "2"}
    await curl("PATCH", path_for("editor"), {"data": {"a": "3"}}, MERGE)  # differs from the last-applied configuration
    await curl("PATCH", path_for("kubectl"), {"metadata": note}, MERGE)
    assert (await curl("PATCH", path_for("kubectl"), config_map("4"), APPLY)).status == 409


async def test_secrets_accept_string_data_and_config_maps_can_be_immutable(curl: ApiCaller) -> None:
    created = await curl.make(f"{CORE}/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    assert (created["data"], created["type"]) == ({"a": base64.b64encode(b"b").decode()}, "Opaque")
    bad = await curl("POST", f"{CORE}/secrets", {"metadata": {"name": "t"}, "data": {"a": "$"}})
    assert (bad.status, "illegal base64" in bad.message) == (400, True)
    await curl.make(f"{CORE}/configmaps", {"metadata": {"name": "c"}, "data": {"a": "b"}, "immutable": True})
    for change in ({"data": {"a": "c"}}, {"immutable": None}):
        assert (await curl("PATCH", f"{CORE}/configmaps/c", change, MERGE)).status == 422


async def test_an_eviction_obeys_the_disruption_budget(curl: ApiCaller) -> None:
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


async def test_kinds_without_a_controller_are_rejected_with_the_reason(curl: ApiCaller) -> None:
    for path, reason in (
        (f"{CORE}/persistentvolumeclaims", "no persistent volumes"),
        (f"{APPS}/statefulsets", "no controller"),
    ):
        assert (await curl("GET", path)).json["items"] == []
        response = await curl("POST", path, {"metadata": {"name": "x"}})
        assert (response.status, reason in response.message) == (422, True)


async def test_an_event_is_served_in_both_api_groups(curl: ApiCaller) -> None:
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


NUMBER, STRING = {"type": "integer"}, {"type": "string"}
PART = {"type": "object", "required": ["name"], "properties": {"name": STRING, "n": NUMBER}}
PARTS = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": PART}
MODE = {"type": "string", "default": "fast", "enum": ["fast", "slow"]}
FOO = {
    "type": "object",
    "required": ["size"],
    "properties": {"size": {**NUMBER, "minimum": 1}, "mode": MODE, "parts": PARTS},
}
COLUMNS = [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]
DEFINITIONS, FOOS = (
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/example.com/v1/namespaces/default/foos",
)


async def test_a_custom_kind_follows_its_schema_and_its_definition_deletes_its_objects(curl: ApiCaller) -> None:
    foo_definition = definition(FOO, subresources={"status": {}}, additionalPrinterColumns=COLUMNS)
    foo_definition["spec"]["scope"] = "Namespaced"
    created = await curl.make(DEFINITIONS, foo_definition)
    assert {c["type"] for c in created["status"]["conditions"]} == {"Established", "NamesAccepted"}
    foo = await curl.make(FOOS, {"metadata": {"name": "f"}, "spec": {"size": 2}})
    assert foo["spec"] == {"size": 2, "mode": "fast"}
    for spec, field in (({"size": 0}, "spec.size"), ({}, "spec.size"), ({"size": 1, "mode": "x"}, "spec.mode")):
        response = await curl("POST", FOOS, {"metadata": {"name": "g"}, "spec": spec})
        assert (response.status, response.causes[0][1]) == (422, field)
    unknown = {"metadata": {"name": "g"}, "spec": {"size": 1, "no": 1}}
    strict = await curl("POST", FOOS, unknown, fieldValidation="Strict")
    assert (strict.status, 'unknown field "spec.no"' in strict.message) == (400, True)
    assert (await curl("GET", FOOS, headers=TABLE)).json["rows"][0]["cells"] == ["f", 2]
    head = {"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "f"}}
    for manager, part in (("a", {"name": "x", "n": 1}), ("b", {"name": "y", "n": 2})):
        response = await curl("PATCH", f"{FOOS}/f", {**head, "spec": {"parts": [part]}}, APPLY, fieldManager=manager)
        assert response.status == 200, response.body
    assert [p["name"] for p in response.json["spec"]["parts"]] == ["x", "y"]
    conflict = {**head, "spec": {"parts": [{"name": "x", "n": 9}]}}
    assert (await curl("PATCH", f"{FOOS}/f", conflict, APPLY, fieldManager="b")).status == 409
    assert (await curl("PATCH", f"{FOOS}/f/status", {"status": {"a": 1}}, MERGE)).status == 200
    assert "example.com" in [g["name"] for g in (await curl("GET", "/apis")).json["groups"]]
    assert (await curl("DELETE", f"{DEFINITIONS}/foos.example.com")).status == 200
    assert (await curl("GET", FOOS)).status == 404
    await curl.make(DEFINITIONS, foo_definition)
    assert (await curl("GET", FOOS)).json["items"] == []


# --- namespaces, owners, lists, watches -------------------------------------------------------------


async def test_a_namespace_is_deleted_with_its_objects_after_the_last_finalizer(
    curl: ApiCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_devkit.localcluster.apiserver.deleting._NAMESPACE_WAIT", 3600.0)
    await curl.make("/api/v1/namespaces", {"metadata": {"name": "n"}})
    maps = "/api/v1/namespaces/n/configmaps"
    await curl.make(maps, {"metadata": {"name": "free"}})
    await curl.make(maps, {"metadata": {"name": "held", "finalizers": ["example.com/x"]}})
    assert (await curl("GET", "/api/v1/namespaces/n/serviceaccounts/default")).status == 200
    deleted = await curl("DELETE", "/api/v1/namespaces/n")
    assert deleted.json["status"]["phase"] == "Terminating"
    # The object exists until the namespace controller runs, as in Kubernetes.
    assert (await curl("DELETE", f"{maps}/free")).status == 200
    timer = curl.server._deleter._timers["n"]
    timer._run()  # runs the timer now
    timer.cancel()
    assert not (await curl("GET", "/api/v1/namespaces/n/serviceaccounts")).json["items"]
    assert [m["metadata"]["name"] for m in (await curl("GET", maps)).json["items"]] == ["held"]
    rejected = await curl("POST", maps, {"metadata": {"name": "late"}})
    assert (rejected.status, rejected.json["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    await curl("PATCH", f"{maps}/held", {"metadata": {"finalizers": None}}, MERGE)
    assert (await curl("GET", "/api/v1/namespaces/n")).status == 404
    assert not (await curl("GET", "/api/v1/configmaps")).json["items"]


async def test_dependents_follow_the_propagation_policy_of_the_owners_deletion(curl: ApiCaller) -> None:
    maps = f"{CORE}/configmaps"

    async def names_after_deletion(policy: str) -> list[str]:
        owner = await curl.make(maps, {"metadata": {"name": "owner"}})
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        await curl.make(maps, {"metadata": {"name": "child", "ownerReferences": [reference]}})
        held_map = {"name": "held", "ownerReferences": [reference], "finalizers": ["example.com/x"]}
        await curl.make(maps, {"metadata": held_map})
        assert (await curl("DELETE", f"{maps}/owner", {"propagationPolicy": policy})).status == 200
        return sorted(m["metadata"]["name"] for m in (await curl("GET", maps)).json["items"])

    async def remove_finalizer() -> list[str]:
        await curl("PATCH", f"{maps}/held", {"metadata": {"finalizers": None}}, MERGE)
        return sorted(m["metadata"]["name"] for m in (await curl("GET", maps)).json["items"])

    assert await names_after_deletion("Background") == ["held"]
    assert await remove_finalizer() == []
    assert await names_after_deletion("Foreground") == ["held", "owner"]
    assert await remove_finalizer() == []
    assert await names_after_deletion("Orphan") == ["child", "held"]
    assert all("ownerReferences" not in m["metadata"] for m in (await curl("GET", maps)).json["items"])


async def test_all_pages_of_a_list_show_the_same_snapshot(curl: ApiCaller) -> None:
    maps = f"{CORE}/configmaps"
    for i in range(5):
        await curl.make(maps, {"metadata": {"name": f"c{i}"}, "data": {"v": "old"}})
    page = (await curl("GET", maps, limit="2")).json
    assert page["metadata"]["remainingItemCount"] == 3
    await curl("DELETE", f"{maps}/c3")
    await curl("PATCH", f"{maps}/c4", {"data": {"v": "new"}}, MERGE)
    await curl.make(maps, {"metadata": {"name": "c2a"}})
    items = [(m["metadata"]["name"], m["data"]["v"]) for m in page["items"]]
    token = page["metadata"]["continue"]
    while page["metadata"].get("continue"):
        page = (await curl("GET", maps, limit="2", **{"continue": page["metadata"]["continue"]})).json
        items += [(m["metadata"]["name"], m["data"]["v"]) for m in page["items"]]
    assert items == [(f"c{i}", "old") for i in range(5)]
    for _ in range(HISTORY + 1):
        curl.server.storage.put("configmaps", {"metadata": {"name": "busy", "namespace": "default", "uid": "b"}})
    expired = await curl("GET", maps, limit="2", **{"continue": token})
    assert (expired.status, expired.json["reason"]) == (410, "Expired")


async def test_lists_obey_resource_version_match(curl: ApiCaller) -> None:
    maps = f"{CORE}/configmaps"
    created = await curl.make(maps, {"metadata": {"name": "a"}})
    version = created["metadata"]["resourceVersion"]
    await curl.make(maps, {"metadata": {"name": "b"}})
    exact = (await curl("GET", maps, resourceVersion=version, resourceVersionMatch="Exact")).json
    assert [m["metadata"]["name"] for m in exact["items"]] == ["a"]
    newer = (await curl("GET", maps, resourceVersion=version, resourceVersionMatch="NotOlderThan")).json
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
async def test_an_unsupported_field_selector_is_rejected(curl: ApiCaller, path: str, selector: str) -> None:
    for watch in ({}, {"watch": "1"}):
        response = await curl("GET", path, fieldSelector=selector, **watch)
        assert (response.status, response.message) == (400, f"field label not supported: {selector.partition('=')[0]}")


@pytest.mark.parametrize("selector", ["spec.nodeName=n1", "spec.hostNetwork=true"])
async def test_a_watch_with_a_field_selector_sends_no_events_of_other_pods(curl: ApiCaller, selector: str) -> None:
    events: list[tuple[str, str]] = []

    async def watch(client: KubeClient, ready: asyncio.Event) -> None:
        query = {"watch": "1", "fieldSelector": selector}
        async with client.stream(PODS.path(), query, 120, ready.set) as lines:
            async for line in lines:
                event = json.loads(line)
                events.append((event["type"], event["object"]["metadata"]["name"]))

    async with KubeClient(curl.server.config) as client:
        ready = asyncio.Event()
        task = asyncio.create_task(watch(client, ready))
        await ready.wait()
        for i in range(20):
            await client.create(PODS, pod(f"other-{i}", nodeName="n2"), "default")
        await client.create(PODS, pod("mine", nodeName="n1", hostNetwork=True), "default")
        await client.patch(PODS, "mine", {"metadata": {"labels": {"a": "b"}}}, "default")
        await client.delete(PODS, "mine", "default", grace=0)
        async with asyncio.timeout(30):
            while len(events) < 3:
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert events == [("ADDED", "mine"), ("MODIFIED", "mine"), ("DELETED", "mine")]


async def test_discovery_lists_the_category_all_and_openapi_lists_schemas(curl: ApiCaller) -> None:
    resources = (await curl("GET", "/apis/apps/v1")).json["resources"]
    in_all = {r["name"] for r in resources if "all" in r.get("categories", ())}
    assert in_all >= {"deployments", "daemonsets", "replicasets"}
    document = (await curl("GET", "/openapi/v3/api/v1")).json
    spec = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]
    assert spec["resourceClaims"]["x-kubernetes-list-map-keys"] == ["name"]
    assert "go" not in spec["nodeName"]
    assert (
        spec["resourceClaims"]["items"]["$ref"].removeprefix("#/components/schemas/")
        in document["components"]["schemas"]
    )


async def test_limit_ranges_set_defaults_and_reject_pods(curl: ApiCaller) -> None:
    item = {"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m"}, "max": {"cpu": "2"}}
    await curl.make(f"{CORE}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [item]}})
    created = await curl.make(f"{CORE}/pods", pod("p"))
    assert created["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}}
    large_pod = pod("q", containers=[{"name": "c", "image": "i", "resources": {"limits": {"cpu": "3"}}}])
    response = await curl("POST", f"{CORE}/pods", large_pod)
    assert (response.status, "maximum cpu usage per Container is 2, but limit is 3" in response.message) == (403, True)


async def test_a_warning_reports_stored_fields_without_effect(curl: ApiCaller) -> None:
    group = "/apis/admissionregistration.k8s.io/v1"
    spec = {"policyName": "p", "validationActions": ["Audit"]}
    created = await curl(
        "POST", f"{group}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": spec}
    )
    assert "no audit log" in created.headers["Warning"]
    device = {"deviceSelector": {"driver": "d.example.com"}, "taint": {"key": "k", "effect": "NoExecute"}}
    rules = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
    created = await curl("POST", rules, {"metadata": {"name": "r"}, "spec": device})
    assert (created.status, "stores DeviceTaintRules but ignores them" in created.headers["Warning"]) == (201, True)
    created = await curl("POST", DEFINITIONS, definition(FOO, [{"rule": "self.spec.parts.all(p, p.n < 5)"}]))
    assert "x-kubernetes-validations" in created.headers["Warning"]
    assert "Warning" not in (await curl("POST", f"{CORE}/configmaps", {"metadata": {"name": "c"}})).headers


async def test_quotas_count_claims_by_class_and_by_extended_resource(curl: ApiCaller) -> None:
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
    requesting_pod = pod("p", containers=[{"name": "c", "image": "i", **limited}])
    refused = await curl("POST", f"{CORE}/pods", requesting_pod)
    assert "exceeded quota: q, requested: requests.example.com/gpu=4" in refused.message
    await curl("DELETE", f"{claims}/a")
    await curl.make(f"{CORE}/pods", requesting_pod)
    assert (await used())["requests.example.com/gpu"] == "4"
    assert "count/pods=1" in (await curl("POST", f"{CORE}/pods", pod("q"))).message


async def test_openapi_v2_is_served_as_json_and_as_protobuf(curl: ApiCaller) -> None:
    protobuf_type = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    message = await curl("GET", "/openapi/v2", headers={"Accept": protobuf_type})
    assert message.headers["Content-Type"] == "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    document = (await curl("GET", "/openapi/v2", headers={"Accept": "application/json"})).json
    assert "io.k8s.api.resource.v1.DeviceClass" in document["definitions"]
    assert all(name.encode() in message.body for name in document["definitions"])


async def test_generations_increase_only_on_changes_of_the_spec(curl: ApiCaller) -> None:
    created = await curl.make(f"{APPS}/deployments", DEPLOYMENT)
    assert created["metadata"]["generation"] == 1
    await curl("PATCH", f"{APPS}/deployments/d/status", {"status": {"replicas": 1}}, MERGE)
    changed = await curl("PATCH", f"{APPS}/deployments/d", {"spec": {"replicas": 3}}, MERGE)
    assert changed.json["metadata"]["generation"] == 2
    assert "generation" not in (await curl.make(f"{CORE}/configmaps", {"metadata": {"name": "c"}}))["metadata"]
