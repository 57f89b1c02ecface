"""What a kubelet makes of the answers of a probe, and of the name of an image."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin.localcluster.kubelet.image_names import fault
from dra_kubeletplugin.localcluster.kubelet.probes import ProbeState
from dra_kubeletplugin.localcluster.runtime.interface import HandlerAction, HandlerOccasion, ProbeResult
from dra_kubeletplugin.localcluster.runtime.simulated_behavior import outcome_of

_PREFIX = "simulated.dra-kubeletplugin.dev"


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5), st.integers(1, 5))
def test_readiness_is_what_the_last_run_of_equal_answers_that_was_long_enough_states(
    answers: list[bool], successes: int, failures: int
) -> None:
    judged = ProbeState("c", good=False)
    for answer in answers:
        judged.record(answer, {"successThreshold": successes, "failureThreshold": failures}, HandlerOccasion.READINESS)
    wanted = False
    for end in range(1, len(answers) + 1):
        run = answers[:end]
        needed = successes if run[-1] else failures
        if run[-needed:] == [run[-1]] * needed:
            wanted = run[-1]
    assert judged.good is wanted
    assert not judged.finished


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5))
def test_liveness_fails_with_the_first_run_of_failures_that_is_long_enough_and_asks_no_more(
    answers: list[bool], failures: int
) -> None:
    judged = ProbeState("c", good=True)
    asked = 0
    for answer in answers:
        if not judged.finished:
            asked += 1
            judged.record(answer, {"failureThreshold": failures}, HandlerOccasion.LIVENESS)
    ends = [i for i in range(failures, len(answers) + 1) if not any(answers[i - failures : i])]
    assert asked == (ends[0] if ends else len(answers))
    assert judged.finished is bool(ends)
    assert judged.good is not judged.finished


def test_a_startup_probe_is_over_with_its_first_success_or_its_last_failure() -> None:
    well, badly = ProbeState("c", None), ProbeState("c", None)
    probe = {"failureThreshold": 2}
    assert not badly.record(False, probe, HandlerOccasion.STARTUP)
    assert (badly.good, badly.finished) == (None, False)
    assert badly.record(False, probe, HandlerOccasion.STARTUP)
    assert (badly.good, badly.finished) == (False, True)
    assert well.record(True, probe, HandlerOccasion.STARTUP)
    assert (well.good, well.finished) == (True, True)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("pass", ["PASS"] * 3),
        ("fail", ["FAIL"] * 3),
        ("fail, fail ,pass", ["FAIL", "FAIL", "PASS", "PASS"]),
        ("maybe", ["ERROR"]),
        ("", ["ERROR"]),
    ],
)
def test_a_simulated_probe_ends_as_its_annotation_states(text: str, wanted: list[str]) -> None:
    for number, verdict in enumerate(wanted):
        for key in (f"{_PREFIX}/readiness-probe", f"{_PREFIX}/readiness-probe.main"):
            outcome = outcome_of("main", HandlerAction(HandlerOccasion.READINESS, {}, 1, number, {key: text}))
            assert outcome.result is ProbeResult[verdict]
            assert key in outcome.text


def test_without_an_annotation_nobody_knows_of_a_probe_and_a_hook_is_taken_to_pass() -> None:
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
def test_the_name_of_an_image_is_taken(name: str) -> None:
    assert fault(name) == ""


@pytest.mark.parametrize(
    ("name", "why"),
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
def test_what_is_no_name_of_an_image_is_refused(name: str, why: str) -> None:
    assert fault(name) == why
