"""Every recorded result of Kubernetes 1.36.2 and of the CDI library, case by case.

Reads the folder in DRA_VECTORS, or the copy in the project. Every kind of result is compared; nothing is skipped.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from dra_devkit.cdi.cache import CdiCache, CdiInjectError
from dra_devkit.cdi.spec_validation import minimum_version
from dra_devkit.scheduling import cel
from dra_devkit.scheduling.allocator.faults import AllocationError
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.conversion import convert
from tests.helpers.allocator import Allocator
from tests.helpers.recordings import FOLDER, every_case
from tests.helpers.strict_writes import post, put


def without_times(spec: Any) -> Any:
    return json.loads(re.sub(r'"timeAdded": "[^"]*"', '"timeAdded": "T"', json.dumps(spec)))


def check_post(case: JSON) -> None:
    code, result = post(case["object"])
    assert code == case["code"], result
    if code == 201:
        assert without_times(result["spec"]) == without_times(case["stored"]["spec"])
    elif code == 422:
        assert [(f.reason, f.field) for f in result] == [(c["reason"], c["field"]) for c in case["causes"]]


@every_case("resourceslices")
def test_the_result_of_creating_a_slice_matches_kubernetes(case: JSON) -> None:
    check_post(case)


@every_case("claims")
def test_the_result_of_creating_a_claim_template_or_class_matches_kubernetes(case: JSON) -> None:
    check_post(case)


def without_versions(metadata: JSON) -> JSON:
    return {k: v for k, v in metadata.items() if k not in {"resourceVersion", "generation", "creationTimestamp", "uid"}}


@every_case("updates")
def test_the_result_of_an_update_matches_kubernetes(case: JSON) -> None:
    code, result = put(case["old"], case["new"], status=case["subresource"] == "status")
    assert code == case["code"], result
    if code == 200:
        for part in ("spec", "status"):
            assert without_times(result.get(part)) == without_times(case["stored"].get(part))
        assert without_versions(result["metadata"]) == without_versions(case["stored"]["metadata"])
    elif code == 422:
        assert [(f.reason, f.field) for f in result] == [(c["reason"], c["field"]) for c in case["causes"]]


@every_case("conversions")
def test_conversions_between_versions_match_kubernetes(case: JSON) -> None:
    for source in ("v1", "v1beta2", "v1beta1"):
        for target in ("v1", "v1beta2", "v1beta1"):
            assert convert(case[source], target) == case[target], f"{source} to {target}"


@every_case("cel")
def test_the_result_and_cost_of_an_expression_match_kubernetes(case: JSON) -> None:
    expect = case["expect"]
    try:
        selector = cel.Selector(case["expression"], list_attributes=case["listTypeAttributes"])
    except cel.CompileError as e:
        assert "compileError" in expect, str(e)
        return
    assert "compileError" not in expect, expect
    if "maxCost" in expect:
        assert selector.max_cost == expect["maxCost"]
    try:
        match, cost = selector.evaluate(cel.Device(case["driver"], case["device"]))
    except cel.CelError as e:
        assert "error" in expect, str(e)
        cost = e.cost
    else:
        assert match == expect.get("match"), expect
    # The iteration order of a map is not defined, so some costs are not recorded.
    if expect.get("cost") is not None:
        assert cost == expect["cost"]


@every_case("allocations")
def test_allocations_match_kubernetes(case: JSON) -> None:
    slices, classes, allocated = case["slices"], case["classes"], case["allocated"]
    allocator = Allocator(slices, classes, allocated, share_id=lambda: "*", time_limit=60)
    try:
        result: JSON = {"results": allocator.allocate(case["node"], case["claims"])}
    except AllocationError as e:
        result = {"error": str(e)}
    expect = case["expect"]
    if "error" in expect and "CEL compile error" in expect["error"]:
        assert "CEL compile error" in result.get("error", ""), result
    else:
        assert result == expect


@every_case("cdi")
def test_cdi_injection_matches_the_go_library(case: JSON) -> None:
    expect = case["expect"]
    with tempfile.TemporaryDirectory() as folder:
        dirs = []
        minimum_versions: dict[str, str] = {}
        for i, files in enumerate(case["dirs"]):
            dirs.append(Path(folder) / str(i))
            dirs[-1].mkdir()
            for name, spec in files.items():
                (dirs[-1] / name).write_text(spec if isinstance(spec, str) else json.dumps(spec))
                if isinstance(spec, dict):
                    minimum_versions[f"{i}/{name}"] = minimum_version(spec)
        cache = CdiCache(dirs)
        errors = {k.replace(f"{folder}/", ""): [m.replace(folder, "ROOT") for m in v] for k, v in cache.errors.items()}
        assert (cache.listed or None) == expect.get("listed")
        assert errors.keys() == (expect.get("specErrors") or {}).keys()
        for name, version in (expect.get("minimumVersion") or {}).items():
            if name in minimum_versions:
                assert minimum_versions[name] == version, name
        try:
            assert cache.inject(case["oci"], case["devices"]) == expect.get("oci")
        except CdiInjectError as e:
            assert "injectError" in expect, str(e)
            assert (e.unresolved or None) == expect.get("unresolved")


def test_all_files_of_recorded_results_exist() -> None:
    names = ("resourceslices", "claims", "conversions", "updates", "cel", "allocations", "cdi")
    existing = [n for n in names if (FOLDER / f"{n}.jsonl").exists()]
    # DRA_VECTORS may contain only some of the files, but at least one.
    assert existing == list(names) or (existing and "DRA_VECTORS" in os.environ), FOLDER
