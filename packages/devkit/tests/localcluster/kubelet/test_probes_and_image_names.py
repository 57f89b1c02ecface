"""How the kubelet evaluates the results of probes and the names of images."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_devkit.localcluster.kubelet.image_names import fault
from dra_devkit.localcluster.kubelet.probes import ProbeState
from dra_devkit.localcluster.runtime.interface import HandlerAction, HandlerOccasion, ProbeResult
from dra_devkit.localcluster.runtime.simulated_behavior import outcome_of

_PREFIX = "simulated.dra-kubeletplugin.dev"


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5), st.integers(1, 5))
def test_readiness_follows_the_last_series_of_equal_results_that_reaches_its_threshold(
    results: list[bool], successes: int, failures: int
) -> None:
    state = ProbeState("c", good=False)
    for result in results:
        state.record(result, {"successThreshold": successes, "failureThreshold": failures}, HandlerOccasion.READINESS)
    expected = False
    for end in range(1, len(results) + 1):
        series = results[:end]
        needed = successes if series[-1] else failures
        if series[-needed:] == [series[-1]] * needed:
            expected = series[-1]
    assert state.good is expected
    assert not state.finished


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5))
def test_liveness_fails_at_the_failure_threshold_and_then_stops_probing(results: list[bool], failures: int) -> None:
    state = ProbeState("c", good=True)
    recorded = 0
    for result in results:
        if not state.finished:
            recorded += 1
            state.record(result, {"failureThreshold": failures}, HandlerOccasion.LIVENESS)
    ends = [i for i in range(failures, len(results) + 1) if not any(results[i - failures : i])]
    assert recorded == (ends[0] if ends else len(results))
    assert state.finished is bool(ends)
    assert state.good is not state.finished


def test_a_startup_probe_ends_at_its_first_success_or_its_failure_threshold() -> None:
    succeeding, failing = ProbeState("c", None), ProbeState("c", None)
    probe = {"failureThreshold": 2}
    assert not failing.record(False, probe, HandlerOccasion.STARTUP)
    assert (failing.good, failing.finished) == (None, False)
    assert failing.record(False, probe, HandlerOccasion.STARTUP)
    assert (failing.good, failing.finished) == (False, True)
    assert succeeding.record(True, probe, HandlerOccasion.STARTUP)
    assert (succeeding.good, succeeding.finished) == (True, True)


@pytest.mark.parametrize(
    ("text", "expected_results"),
    [
        ("pass", ["PASS"] * 3),
        ("fail", ["FAIL"] * 3),
        ("fail, fail ,pass", ["FAIL", "FAIL", "PASS", "PASS"]),
        ("maybe", ["ERROR"]),
        ("", ["ERROR"]),
    ],
)
def test_an_annotation_sets_the_results_of_a_simulated_probe(text: str, expected_results: list[str]) -> None:
    for number, expected in enumerate(expected_results):
        for key in (f"{_PREFIX}/readiness-probe", f"{_PREFIX}/readiness-probe.main"):
            outcome = outcome_of("main", HandlerAction(HandlerOccasion.READINESS, {}, 1, number, {key: text}))
            assert outcome.result is ProbeResult[expected]
            assert key in outcome.text


def test_without_an_annotation_a_probe_is_undefined_and_a_hook_passes() -> None:
    for occasion in HandlerOccasion:
        is_probe = occasion.value.endswith("Probe")
        outcome = outcome_of(
            "main", HandlerAction(occasion, {}, 1, annotations={f"{_PREFIX}/readiness-probe.other": "pass"})
        )
        assert outcome.result is (ProbeResult.UNDEFINED if is_probe else ProbeResult.PASS)


@pytest.mark.parametrize(
    "name",
    [
        "busybox", "busybox:1.36", "library/busybox", "docker.io/library/busybox:1", "localhost:5000/a/b", "[::1]:5000/a:t",
        "registry.k8s.io/e2e-test-images/agnhost:2.39", "a/b@sha256:" + "0" * 64, "a:t@sha256:" + "0" * 64, "a__b", "a--b/c.d_e",
        "Registry.example.com/lower", "gcr.io/x:" + "t" * 128,
    ],
)  # fmt: skip
def test_a_valid_image_name_is_accepted(name: str) -> None:
    assert fault(name) == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("UPPER/..::", "invalid reference format"),
        ("", "invalid reference format"),
        ("a b", "invalid reference format"),
        ("busybox:", "invalid reference format"),
        ("-a", "invalid reference format"),
        ("a//b", "invalid reference format"),
        ("a___b", "invalid reference format"),
        ("a:" + "t" * 129, "invalid reference format"),
        ("a@sha256:00", "invalid reference format"),
        ("BusyBox", "invalid reference format: repository name must be lowercase"),
        ("docker.io/Library/busybox", "invalid reference format: repository name must be lowercase"),
        ("a/" * 127 + "bb:t", "repository name must not be more than 255 characters"),
    ],
)
def test_an_invalid_image_name_is_rejected(name: str, message: str) -> None:
    assert fault(name) == message
