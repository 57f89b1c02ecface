"""Explains every recorded allocation: an allocation of Kubernetes fits, and a rejected one has a reason."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest

from dra_devkit.scheduling.cel import CelError, CompileError, Device, compile_selector
from dra_devkit.scheduling.cel.parts import unmet, without
from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Explanation, ExplanationState, ReasonKind, Snapshot, explain
from dra_tools.explanation.device_reasons import taint_text
from tests.helpers.recordings import every_case

_DRA = "resource.k8s.io/v1"
_NODE = {"allocatable": {"cpu": "8", "pods": "110"}}
# Error messages that end the evaluation of all nodes.
_FATAL = {
    "could not retrieve device class": {ReasonKind.CLASS_MISSING},
    "CEL": {ReasonKind.SELECTOR_ERROR},
    "exceeds the claim limit": {ReasonKind.TOO_MANY},
    "is currently being updated": {ReasonKind.POOL_INCOMPLETE},
    "is currently invalid": {ReasonKind.POOL_INVALID},
    "invalid resource pools": {ReasonKind.POOL_INVALID},
    "a claim constraint would not be satisfied": {ReasonKind.CONSTRAINT, ReasonKind.OTHER},
}


def explain_case(case: JSON) -> Explanation:
    """Explains a pod with the claims of the case on the node of the case."""
    objects: list[JSON] = [{"apiVersion": "v1", "kind": "Node", "status": _NODE, **case["node"]}]
    for kind, entries in (("DeviceClass", case["classes"]), ("ResourceSlice", case["slices"])):
        objects += [{"apiVersion": _DRA, "kind": kind, **o} for o in entries]
    claims = [{"apiVersion": _DRA, "kind": "ResourceClaim", **c} for c in case["claims"]]
    objects += [
        {"apiVersion": _DRA, "kind": "ResourceClaim", **c, "metadata": {**c["metadata"], "namespace": "others"}}
        for c in case["allocated"]
    ]
    for claim in claims:
        claim["metadata"] = {**claim["metadata"], "namespace": "default"}
    claim_entries = [{"name": f"e{i}", "resourceClaimName": c["metadata"]["name"]} for i, c in enumerate(claims)]
    pod = {"containers": [{"name": "main"}], "resourceClaims": claim_entries}
    objects += [*claims, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod}]
    return explain(Snapshot.of(objects), "p")


@pytest.mark.cases(1)
@every_case("allocations")
def test_an_allocated_case_fits_and_a_rejected_case_has_a_reason(case: JSON) -> None:
    explanation, expected = explain_case(case), case["expect"]
    details = json.dumps({"expected": expected, "summary": explanation.summary, "kinds": sorted(explanation.kinds)})[
        :2000
    ]
    if expected.get("results"):
        assert explanation.state is ExplanationState.FITS, details
        return
    assert explanation.state is ExplanationState.WAITS, details
    assert explanation.summary, details
    if "error" in expected:
        expected_kinds = next((kinds for pattern, kinds in _FATAL.items() if pattern in expected["error"]), None)
        assert expected_kinds is not None, f"unknown message: {details}"
        assert explanation.kinds & expected_kinds, details
    else:
        assert explanation.kinds, details
        assert ReasonKind.OTHER not in explanation.kinds, details
        for change in explanation.changes:
            if changed_case := with_change(case, change.text):
                assert explain_case(changed_case).state is ExplanationState.FITS, f"{change.text}: {details}"


def with_change(case: JSON, text: str) -> JSON | None:
    """Returns the case after a change, or None if the text of the change is not recognized."""
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
def test_the_parts_of_a_selector_match_like_the_whole_selector(case: JSON) -> None:
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
        with contextlib.suppress(CelError):  # the false part absorbed this error
            assert compile_selector(without(expression, parts[0].expression)).matches(device), parts
