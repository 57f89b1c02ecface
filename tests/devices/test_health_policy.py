"""A fault or a recovery takes effect after the number of consecutive reports that the operator configures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import Device, Health, Pool, Taint
from dra_kubeletplugin.devices.health_policy import HealthDecision, HealthPolicy
from dra_kubeletplugin.devices.health_report import checked_report
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.errors import DriverError
from tests.helpers.devices import published_devices


def follow(reports: list[bool | None], policy: HealthPolicy) -> list[HealthDecision]:
    out: list[HealthDecision] = []
    for i, healthy in enumerate(reports):
        report = Health(healthy, f"report {i}")
        out.append(out[-1].after(report, 100.0 * i, policy) if out else HealthDecision.first(report, float(i)))
    return out


@given(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 4))
def test_the_effective_health_changes_only_after_enough_consecutive_reports(
    reports: list[bool | None], unhealthy_after: int, healthy_after: int
) -> None:
    found = follow(reports, HealthPolicy(unhealthy_after=unhealthy_after, healthy_after=healthy_after))
    faulty = reports[0] is False
    for i, (value, diagnosis) in enumerate(zip(reports, found, strict=True)):
        if i:
            needed = healthy_after if faulty else unhealthy_after
            run = reports[max(0, i - needed + 1) : i + 1]
            # Each change of the effective health starts a new run. A longer run therefore contains the effective value already.
            if len(run) == needed and set(run) == {faulty}:
                faulty = not faulty
        assert (diagnosis.fault is not None) is faulty
        assert diagnosis.at == 100.0 * i, "the time is the report's time, also before the report takes effect"
        assert diagnosis.health.healthy is (None if value is None else not faulty)


def test_the_message_contains_a_report_that_has_no_effect_yet() -> None:
    policy = HealthPolicy(unhealthy_after=3, healthy_after=2)
    found = follow([True, False, False, False, True, True], policy)
    assert [(d.health.healthy, d.health.message) for d in found] == [
        (True, "report 0"),
        (True, "unhealthy in 1 of 3 reports: report 1"),
        (True, "unhealthy in 2 of 3 reports: report 2"),
        (False, "report 3"),
        (False, "healthy again in 1 of 2 reports; it was: report 3"),
        (True, "report 5"),
    ]


def test_a_fault_has_its_own_taint_and_the_operator_s_effect() -> None:
    own = Taint(key="gpu.example.com/ecc", effect="NoExecute")
    usual = Taint(key="dra-kubeletplugin.dev/unhealthy", value="yes")
    ecc, hot = Health(False, "ECC", taints=[own]), Health(False, "hot")
    assert HealthPolicy(taint=usual).taints_for(ecc) == [{"key": "gpu.example.com/ecc", "effect": "NoExecute"}]
    assert HealthPolicy(taint=usual).taints_for(hot) == [usual.json()]
    effect = HealthPolicy(taint=usual, effect="None")
    assert effect.taints_for(ecc) == [{"key": "gpu.example.com/ecc", "effect": "None"}]
    assert HealthPolicy().taints_for(hot) == []


def test_informational_taints_never_replace_the_usual_taint_and_keep_their_effect() -> None:
    usual, xid = Taint(key="example.com/unhealthy"), Taint(key="example.com/xid", value="13", effect="None")
    policy = HealthPolicy(taint=usual, effect="NoExecute")
    hot = Health(False, "hot", taints=[xid])
    assert policy.taints_for(hot, hot.taints) == [xid.json(), {**usual.json(), "effect": "NoExecute"}]
    assert policy.taints_for(None, [xid]) == [xid.json()]


def test_informational_taints_change_at_once_with_the_health_and_else_after_a_minute() -> None:
    policy = HealthPolicy(healthy_after=1)
    taints = {name: Taint(key=f"example.com/{name}", effect="None") for name in "abc"}
    reports: list[tuple[float, Health]] = [
        (0.0, Health(True, taints=[taints["a"]])),
        (1.0, Health(True, taints=[taints["b"]])),
        (2.0, Health(False, taints=[taints["b"]])),
        (3.0, Health(None)),
        (61.0, Health(None)),
        (62.0, Health(False, taints=[taints["c"]])),
        (63.0, Health(True)),
    ]
    found, before = [], None
    for at, report in reports:
        now = before.after(report, at, policy) if before else HealthDecision.first(report, at)
        before = now.with_informational_taints(before, at)
        found.append("".join(t.key[-1] for t in before.information))
    assert found == ["a", "a", "b", "b", "b", "c", ""]


@pytest.mark.parametrize("invalid", [Taint(key="x"), ["x"], [None], "x"])
def test_an_invalid_list_of_taints_raises_an_error_at_construction(invalid: Any) -> None:
    with pytest.raises(DriverError, match="must be a list of Taint"):
        Health(False, taints=invalid)


def test_a_report_with_17_taints_raises_an_error_at_construction() -> None:
    health = [Taint(key=f"example.com/{i}") for i in range(17)]
    with pytest.raises(DriverError, match="at most 16"):
        Health(False, taints=health)


@pytest.mark.parametrize("healthy", [True, None])
def test_a_taint_for_a_device_that_is_not_unhealthy_raises_an_error_at_construction(healthy: bool | None) -> None:
    with pytest.raises(DriverError, match="is not unhealthy"):
        Health(healthy, taints=[Taint(key="x")])


@pytest.mark.parametrize("healthy", [True, False])
async def test_a_restart_ends_a_run_and_the_first_report_of_a_process_takes_effect_at_once(healthy: bool) -> None:
    policy = HealthPolicy(taint=Taint(key="sick"), unhealthy_after=3, healthy_after=3)

    async def process(*reports: bool) -> bool:
        inventory = Inventory("node", policy)
        await inventory.update([Pool("node", [Device("a")])])
        for at, report in enumerate(reports):
            await inventory.set_health({"a": Health(report)}, float(at))
        return "taints" not in published_devices(inventory)[0]

    assert await process(healthy, not healthy, not healthy) is healthy, "two of three"
    assert await process(not healthy) is not healthy, "a device that is broken at the start must not be allocated"


@pytest.mark.parametrize("value", ["down", "", 2])
def test_an_invalid_health_value_is_rejected_with_the_valid_values(value: object) -> None:
    """Code that checks ``if health.healthy`` would treat ``Health("down")`` as healthy."""
    with pytest.raises(DriverError, match=r"for a: use True, False or None"):
        checked_report({"a": Health(value)})  # type: ignore[arg-type]


def test_a_device_that_changes_with_each_report_becomes_healthy_at_most_every_ten_seconds() -> None:
    """Each change causes a write of a slice, and a driver may report a change five times a second."""
    policy = HealthPolicy(healthy_after=2)
    now = HealthDecision.first(Health(True), 0.0)
    changes: list[float] = []
    for step in range(1, 601):
        at = step * 0.2
        report = Health(step % 3 != 0, "" if step % 3 else "flaps")
        after = now.after(report, at, policy)
        if (after.fault is None) is not (now.fault is None):
            changes.append(at)
        now = after
    assert len(changes) <= 2 + 2 * 120 / 10
    assert changes[1] - changes[0] < 1  # The first recovery takes effect at once.
    recovered = next(
        t for t in (at * 0.2 for at in range(601, 700)) if (now := now.after(Health(True), t, policy)).fault is None
    )
    assert recovered <= 120 + 10 + 0.4


def test_a_stable_device_becomes_healthy_at_once_after_each_fault() -> None:
    policy = HealthPolicy(healthy_after=1)
    now = HealthDecision.first(Health(True), 0.0)
    for at in (100.0, 200.0, 300.0):
        now = now.after(Health(False, "hot"), at, policy)
        assert now.fault
        now = now.after(Health(True), at + 1, policy)
        assert now.fault is None
