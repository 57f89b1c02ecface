"""Rules of creates, updates and patches: generations, immutable metadata, dry runs, and finalizers of several managers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_devkit.localcluster.apiserver import apply
from dra_devkit.localcluster.apiserver.apply import Entries, Operation, Rules
from dra_kubeletplugin.base.json_types import JSON
from tests.helpers.api_server import ApiCaller

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
PATCHES = {
    "merge": {"Content-Type": "application/merge-patch+json"},
    "apply": {"Content-Type": "application/apply-patch+yaml"},
    "strategic": {"Content-Type": "application/strategic-merge-patch+json"},
}
SLICE = {
    "driver": "d.example.com",
    "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
    "nodeName": "n1",
    "devices": [{"name": "a"}],
}


def config_map(name: str = "o", **meta: Any) -> JSON:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}}


# --- generations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [-1, 0, 7])
@pytest.mark.parametrize(("plural", "spec"), [("resourceslices", SLICE), ("deviceclasses", {})])
async def test_the_server_decides_the_generation_of_slices_and_classes(
    curl: ApiCaller, plural: str, spec: JSON, generation: int
) -> None:
    created = await curl.make(
        f"{RESOURCE}/{plural}", {"metadata": {"name": "o", "generation": generation}, "spec": spec}
    )
    assert created["metadata"]["generation"] == 1
    changed = {**created, "metadata": {**created["metadata"], "generation": generation, "labels": {"a": "b"}}}
    updated = await curl("PUT", f"{RESOURCE}/{plural}/o", changed)
    assert (updated.status, updated.json["metadata"]["generation"]) == (200, 1)


async def test_the_creator_decides_the_generation_of_a_claim_and_an_update_keeps_it(curl: ApiCaller) -> None:
    rejected = await curl("POST", CLAIMS, {"metadata": {"name": "c", "generation": -1}, "spec": {}})
    assert (rejected.status, set(rejected.causes)) == (422, {("FieldValueInvalid", "metadata.generation")})
    created = await curl.make(CLAIMS, {"metadata": {"name": "c", "generation": 7}, "spec": {}})
    assert created["metadata"]["generation"] == 7
    changed = {**created, "metadata": {**created["metadata"], "generation": -1, "labels": {"a": "b"}}}
    assert (await curl("PUT", f"{CLAIMS}/c", changed)).json["metadata"]["generation"] == 7


# --- immutable metadata ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PATCHES)
async def test_another_uid_is_invalid_in_a_patch_and_a_conflict_in_a_put(curl: ApiCaller, kind: str) -> None:
    created = await curl.make(CONFIG_MAPS, config_map())
    patched = await curl("PATCH", f"{CONFIG_MAPS}/o", config_map(uid="other"), PATCHES[kind], fieldManager="m")
    assert (patched.status, set(patched.causes)) == (422, {("FieldValueInvalid", "metadata.uid")})
    put = await curl("PUT", f"{CONFIG_MAPS}/o", config_map(uid="other"))
    assert put.status == 409
    assert "Precondition failed: UID in precondition: other" in put.message
    own = config_map(uid=created["metadata"]["uid"], labels={"a": "b"})
    assert (await curl("PATCH", f"{CONFIG_MAPS}/o", own, PATCHES[kind], fieldManager="m")).status == 200


async def test_an_apply_with_a_uid_creates_nothing(curl: ApiCaller) -> None:
    rejected = await curl("PATCH", f"{CONFIG_MAPS}/o", config_map(uid="u"), PATCHES["apply"], fieldManager="m")
    assert rejected.status == 409
    assert "uid mismatch: the provided object specified uid u, and no existing object was found" in rejected.message
    assert (await curl("GET", f"{CONFIG_MAPS}/o")).status == 404


async def test_an_update_cannot_mark_an_object_as_deleted(curl: ApiCaller) -> None:
    await curl.make(CONFIG_MAPS, config_map())
    for meta in ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"deletionGracePeriodSeconds": 5}):
        rejected = await curl("PATCH", f"{CONFIG_MAPS}/o", {"metadata": meta}, PATCHES["merge"])
        assert (rejected.status, set(rejected.causes)) == (422, {("FieldValueInvalid", f"metadata.{next(iter(meta))}")})


async def test_a_stale_version_is_a_conflict_before_any_error_of_the_object(curl: ApiCaller) -> None:
    await curl.make(CONFIG_MAPS, config_map())
    for body in (config_map(resourceVersion="1", labels={"-": "-"}), config_map(resourceVersion="1")):
        assert (await curl("PUT", f"{CONFIG_MAPS}/o", body)).status == 409
        assert (await curl("PATCH", f"{CONFIG_MAPS}/o", body, PATCHES["merge"])).status == 409


# --- dry runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("valid", [True, False])
async def test_a_dry_run_of_a_create_responds_like_the_create_and_stores_nothing(
    curl: ApiCaller, method: str, valid: bool
) -> None:
    body = config_map(labels={"a": "b" if valid else "-"})
    path, headers = (CONFIG_MAPS, {}) if method == "POST" else (f"{CONFIG_MAPS}/o", PATCHES["apply"])
    dry = await curl(method, path, body, headers, fieldManager="m", dryRun="All")
    assert (await curl("GET", f"{CONFIG_MAPS}/o")).status == 404
    real = await curl(method, path, body, headers, fieldManager="m")
    assert dry.status == real.status == (201 if valid else 422)
    if valid:
        server_fields = {"uid", "resourceVersion", "creationTimestamp", "managedFields"}
        first, second = ({k: v for k, v in r.json["metadata"].items() if k not in server_fields} for r in (dry, real))
        assert first == second
        assert "resourceVersion" not in dry.json["metadata"]
        fields = [[m["fieldsV1"] for m in r.json["metadata"]["managedFields"]] for r in (dry, real)]
        assert fields[0] == fields[1]


# --- finalizers -----------------------------------------------------------------------------------

FINALIZERS = ("example.com/f1", "example.com/f2", "example.com/f3")
RULES = Rules("", "v1", "ConfigMap", (), lambda obj, _: obj)
applies = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(FINALIZERS), unique=True), st.booleans()), max_size=8
)


@settings(max_examples=200, deadline=None)
@given(applies)
def test_finalizers_are_the_union_of_the_finalizers_of_all_managers(steps: list[tuple[str, list[str], bool]]) -> None:
    live: JSON | None = None
    entries: Entries = {}
    applied: dict[str, list[str]] = {}
    for manager, finalizers, force in steps:
        config = config_map(finalizers=finalizers)
        author = RULES.manager(manager, Operation.APPLY, "")
        live, entries = apply.apply(live, config, entries, author, RULES, {"metadata": {}}, force=force)
        applied[manager] = finalizers
        stored = live["metadata"].get("finalizers") or []
        assert sorted(stored) == sorted(set(itertools.chain.from_iterable(applied.values())))
        # The finalizers of this apply keep their order.
        assert [f for f in stored if f in finalizers] == finalizers


async def test_the_writer_that_removes_the_last_finalizer_gets_the_object_without_it(curl: ApiCaller) -> None:
    path = f"{CONFIG_MAPS}/o"
    for manager, finalizer in zip("ab", FINALIZERS, strict=False):
        await curl("PATCH", path, config_map(finalizers=[finalizer]), PATCHES["apply"], fieldManager=manager)
    await curl("DELETE", path)
    rejected = await curl("PATCH", path, config_map(finalizers=[FINALIZERS[2]]), PATCHES["apply"], fieldManager="c")
    assert (rejected.status, set(rejected.causes)) == (422, {("FieldValueForbidden", "metadata.finalizers")})
    remaining = await curl("PATCH", path, config_map(), PATCHES["apply"], fieldManager="a")
    assert remaining.json["metadata"]["finalizers"] == [FINALIZERS[1]]
    last = await curl("PATCH", path, config_map(), PATCHES["apply"], fieldManager="b")
    assert last.status == 200
    assert not last.json["metadata"].get("finalizers")
    assert "managedFields" not in last.json["metadata"]
    assert (await curl("GET", path)).status == 404
