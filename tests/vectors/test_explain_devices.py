"""Every recorded allocation as a question: what the allocator of Kubernetes gave fits, what it refused has a reason."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest

from dra_kubeletplugin.analysis import Explanation, ExplanationState, ReasonKind, Snapshot, explain
from dra_kubeletplugin.analysis.explanation.device_reasons import taint_text
from dra_kubeletplugin.scheduling.cel import CelError, CompileError, Device, compile_selector
from dra_kubeletplugin.scheduling.cel.parts import unmet, without
from tests.vectors.test_vectors import JSON, every_case

_DRA = "resource.k8s.io/v1"
_NODE = {"allocatable": {"cpu": "8", "pods": "110"}}
# The words of an error that ends the look at all nodes.
_FATAL = {
    "could not retrieve device class": {ReasonKind.CLASS_MISSING},
    "CEL": {ReasonKind.SELECTOR_ERROR},
    "exceeds the claim limit": {ReasonKind.TOO_MANY},
    "is currently being updated": {ReasonKind.POOL_INCOMPLETE},
    "is currently invalid": {ReasonKind.POOL_INVALID},
    "invalid resource pools": {ReasonKind.POOL_INVALID},
    "a claim constraint would not be satisfied": {ReasonKind.CONSTRAINT, ReasonKind.OTHER},
}


def asked(case: JSON) -> Explanation:
    """Of a pod with the case's claims, on its node."""
    objects: list[JSON] = [{"apiVersion": "v1", "kind": "Node", "status": _NODE, **case["node"]}]
    for kind, found in (("DeviceClass", case["classes"]), ("ResourceSlice", case["slices"])):
        objects += [{"apiVersion": _DRA, "kind": kind, **o} for o in found]
    claims = [{"apiVersion": _DRA, "kind": "ResourceClaim", **c} for c in case["claims"]]
    objects += [
        {"apiVersion": _DRA, "kind": "ResourceClaim", **c, "metadata": {**c["metadata"], "namespace": "others"}}
        for c in case["allocated"]
    ]
    for claim in claims:
        claim["metadata"] = {**claim["metadata"], "namespace": "default"}
    entries = [{"name": f"e{i}", "resourceClaimName": c["metadata"]["name"]} for i, c in enumerate(claims)]
    pod = {"containers": [{"name": "main"}], "resourceClaims": entries}
    objects += [*claims, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod}]
    return explain(Snapshot.of(objects), "p")


@pytest.mark.cases(1)
@every_case("allocations")
def test_what_was_allocated_fits_and_what_was_not_has_a_reason(case: JSON) -> None:
    found, expected = asked(case), case["expect"]
    shown = json.dumps({"expected": expected, "summary": found.summary, "kinds": sorted(found.kinds)})[:2000]
    if expected.get("results"):
        assert found.state is ExplanationState.FITS, shown
        return
    assert found.state is ExplanationState.WAITS, shown
    assert found.summary, shown
    if "error" in expected:
        wanted = next((kinds for words, kinds in _FATAL.items() if words in expected["error"]), None)
        assert wanted is not None, f"unknown words: {shown}"
        assert found.kinds & wanted, shown
    else:
        assert found.kinds, shown
        assert ReasonKind.OTHER not in found.kinds, shown
        for change in found.changes:
            if changed := with_change(case, change.text):
                assert asked(changed).state is ExplanationState.FITS, f"{change.text}: {shown}"


def with_change(case: JSON, text: str) -> JSON | None:
    """The case as it would be after a change, for those that can be told by their words."""
    if "free such devices" in text:
        return {**case, "allocated": []}
    if taint := re.match(r"the request has to tolerate ([^ ]+), or", text):
        changed: JSON = json.loads(json.dumps(case))
        for sl in changed["slices"]:
            for device in sl["spec"].get("devices") or []:
                device["taints"] = [t for t in device.get("taints") or [] if taint_text(t) != taint[1]]
        return changed
    return None


@pytest.mark.cases(1)
@every_case("cel")
def test_the_parts_of_a_selector_state_together_what_the_whole_states(case: JSON) -> None:
    if case.get("listTypeAttributes") or "compileError" in case["expect"]:
        return
    expression, expected = case["expression"], case["expect"]
    try:
        device: Any = Device(case["driver"], case["device"])
        parts = unmet(expression, device)
    except (CelError, CompileError):
        assert "error" in expected
        return
    assert bool(parts) == (expected.get("match") is not True), parts
    assert any(p.error for p in parts) == ("error" in expected), parts
    if len(parts) == 1 and not parts[0].error:
        with contextlib.suppress(CelError):  # which the false part absorbed
            assert compile_selector(without(expression, parts[0].expression)).matches(device), parts
