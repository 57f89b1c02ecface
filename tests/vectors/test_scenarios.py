"""Every recorded scenario of a whole cluster, replayed on the local cluster.

``known_differences.txt`` lists the scenarios that do not yet match their recording, each with the reason. A scenario that matches must be
removed from the list.
"""

from __future__ import annotations

import pytest

from dra_kubeletplugin.base.json_types import JSON
from tests.vectors.scenario_replay import KNOWN_DIFFERENCES, SCENARIOS, TIMEOUT, StateDiffersError, replay


@pytest.mark.cases(48)
@pytest.mark.parametrize("scenario", [pytest.param(s, id=s["id"]) for s in SCENARIOS])
async def test_the_local_cluster_matches_the_recorded_scenario(scenario: JSON) -> None:
    reason = KNOWN_DIFFERENCES.get(scenario["id"])
    try:
        await replay(scenario, 1.0 if reason else TIMEOUT)
    except StateDiffersError as e:
        if reason:
            pytest.xfail(f"{reason} ({e})")
        raise
    assert not reason, f"matches the recording now: remove {scenario['id']} from known_differences.txt"


def test_the_list_of_known_differences_contains_only_existing_scenarios() -> None:
    assert {s["id"] for s in SCENARIOS} >= KNOWN_DIFFERENCES.keys()
