"""The state of a claim's binding conditions, compared with the loop of Kubernetes' ``isClaimReadyForBinding``."""

from __future__ import annotations

import random

import pytest

from dra_devkit.scheduling.framework.binding import Readiness, state_of
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.defaulting import now

READY, BAD = "example.com/ready", "example.com/bad"


def condition(kind: str, value: str, message: str = "m") -> JSON:
    return {"type": kind, "status": value, "reason": "R", "message": message}


def result(device: str, share: str = "", conditions: bool = True) -> JSON:
    entry: JSON = {"request": "r", "driver": "d", "pool": "p", "device": device}
    if share:
        entry["shareID"] = share
    return entry | ({"bindingConditions": [READY], "bindingFailureConditions": [BAD]} if conditions else {})


def claim(results: list[JSON], devices: list[JSON], stamp: str = "") -> JSON:
    allocation = {"devices": {"results": results}, "allocationTimestamp": stamp or now()}
    return {"metadata": {"name": "c"}, "status": {"allocation": allocation, "devices": devices}}


def status(device: str, conditions: list[JSON], share: str = "") -> JSON:
    return {"driver": "d", "pool": "p", "device": device, "conditions": conditions} | (
        {"shareID": share} if share else {}
    )


def upstream(claim_object: JSON) -> Readiness:
    """The upstream loop, without its timeout."""
    for r in claim_object["status"]["allocation"]["devices"]["results"]:
        if not r.get("bindingConditions"):
            continue
        device = next((d for d in claim_object["status"]["devices"] if d["device"] == r["device"]), None)
        if device is None:
            return Readiness.WAITING
        true = {c["type"] for c in device["conditions"] if c["status"] == "True"}
        if true & set(r["bindingFailureConditions"]):
            return Readiness.FAILED
        if not true >= set(r["bindingConditions"]):
            return Readiness.WAITING
    return Readiness.READY


def random_claim(draw: random.Random) -> JSON:
    results = [result(draw.choice("ab"), conditions=draw.random() < 0.8) for _ in range(draw.randint(1, 4))]
    devices = []
    for _ in range(draw.randint(0, 3)):
        kinds = draw.sample([READY, BAD, "example.com/other"], draw.randint(0, 3))
        devices.append(
            status(draw.choice("ab"), [condition(k, draw.choice(("True", "False", "Unknown"))) for k in kinds])
        )
    return claim(results, devices)


def test_the_first_device_that_is_not_ready_decides() -> None:
    draw = random.Random(1)
    results = set()
    for _ in range(2000):
        claim_object = random_claim(draw)
        results.add(upstream(claim_object))
        assert state_of(claim_object).readiness is upstream(claim_object), claim_object
    assert results == {Readiness.READY, Readiness.WAITING, Readiness.FAILED}


@pytest.mark.parametrize(("first", "readiness"), [("True", Readiness.READY), ("False", Readiness.WAITING)])
def test_two_shares_of_a_device_have_the_conditions_of_the_first_entry(first: str, readiness: Readiness) -> None:
    entries = [status("a", [condition(READY, first)], "s1"), status("a", [condition(READY, "Unknown")], "s2")]
    assert state_of(claim([result("a", "s1"), result("a", "s2")], entries)).readiness is readiness


@pytest.mark.parametrize("ready", [True, False])
def test_only_a_claim_that_is_not_ready_times_out(ready: bool) -> None:
    entries = [status("a", [condition(READY, "True")])] if ready else []
    state = state_of(claim([result("a")], entries, "2020-01-01T00:00:00Z"))
    assert (state.readiness, state.reason) == (
        (Readiness.READY, "") if ready else (Readiness.TIMED_OUT, "device binding timeout")
    )


@pytest.mark.parametrize(
    ("message", "quoted"),
    [
        ("", '""'),
        ('a "b"', r'"a \"b\""'),
        ("a\\b", r'"a\\b"'),
        ("line\nline\ttab\r", r'"line\nline\ttab\r"'),
        ("\x00\x7f\x1b", r'"\x00\x7f\x1b"'),
        ("é世", '"é世"'),
        ("\u200b\u00a0", r'"\u200b\u00a0"'),
        ("\U000e0001", r'"\U000e0001"'),
    ],
)
def test_a_failure_quotes_the_message_as_go_does(message: str, quoted: str) -> None:
    state = state_of(claim([result("a")], [status("a", [condition(BAD, "True", message)])]))
    assert state.reason == f"device binding failed: claim=c, reason=R, message={quoted}"
