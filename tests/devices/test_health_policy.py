"""A fault, and a recovery, must hold for as many reports as the operator says before they count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import Device, Health, Pool, Taint
from dra_kubeletplugin.devices.health_policy import HealthDecision, HealthPolicy, checked_report
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.errors import DriverError


def follow(reports: list[bool | None], policy: HealthPolicy) -> list[HealthDecision]:
    out: list[HealthDecision] = []
    for i, healthy in enumerate(reports):
        told = Health(healthy, f"report {i}")
        out.append(out[-1].after(told, float(i), policy) if out else HealthDecision.first(told, float(i)))
    return out


@given(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 4))
def test_what_counts_turns_only_after_as_many_reports_in_a_row(
    reports: list[bool | None], unhealthy_after: int, healthy_after: int
) -> None:
    found = follow(reports, HealthPolicy(unhealthy_after=unhealthy_after, healthy_after=healthy_after))
    faulty = reports[0] is False
    for i, (said, diagnosis) in enumerate(zip(reports, found, strict=True)):
        if i:
            needed = healthy_after if faulty else unhealthy_after
            run = reports[max(0, i - needed + 1) : i + 1]
            # A run begins anew with each turn, so one that reaches back past the last turn is of what counts already.
            if len(run) == needed and set(run) == {faulty}:
                faulty = not faulty
        assert (diagnosis.fault is not None) is faulty
        assert diagnosis.at == i, "the time is that of the report, also while it does not count yet"
        assert diagnosis.health.healthy is (None if said is None else not faulty)


def test_the_message_reports_what_does_not_count_yet() -> None:
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
    ecc, hot = Health(False, "ECC", taint=own), Health(False, "hot")
    assert HealthPolicy(taint=usual).taint_for(ecc) == {"key": "gpu.example.com/ecc", "effect": "NoExecute"}
    assert HealthPolicy(taint=usual).taint_for(hot) == usual.json()
    assert HealthPolicy(taint=usual, effect="None").taint_for(ecc) == {"key": "gpu.example.com/ecc", "effect": "None"}
    assert HealthPolicy().taint_for(hot) is None


@pytest.mark.parametrize("healthy", [True, None])
def test_a_taint_for_a_device_that_is_not_unhealthy_is_refused_where_it_is_written(healthy: bool | None) -> None:
    with pytest.raises(DriverError, match="is not unhealthy"):
        Health(healthy, taint=Taint(key="x"))


@pytest.mark.parametrize("healthy", [True, False])
async def test_a_restart_ends_a_run_and_the_first_report_of_a_process_counts_at_once(healthy: bool) -> None:
    policy = HealthPolicy(taint=Taint(key="sick"), unhealthy_after=3, healthy_after=3)

    async def process(*reports: bool) -> bool:
        inventory = Inventory("node", policy)
        await inventory.update([Pool("node", [Device("a")])])
        for at, report in enumerate(reports):
            await inventory.set_health({"a": Health(report)}, float(at))
        return "taints" not in inventory.published()[0]

    assert await process(healthy, not healthy, not healthy) is healthy, "two of three"
    assert await process(not healthy) is not healthy, "a device that is broken at the start must not be given out"


@pytest.mark.parametrize("said", ["down", "", 2])
def test_a_health_that_is_neither_true_nor_false_is_refused_with_what_may_be_stated(said: object) -> None:
    """``Health("down")`` would count as healthy wherever somebody asks ``if health.healthy``."""
    with pytest.raises(DriverError, match=r"for a: use True, False or None"):
        checked_report({"a": Health(said)})  # type: ignore[arg-type]
