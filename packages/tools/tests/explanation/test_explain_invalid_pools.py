"""If a pod does not fit on a node with an invalid pool, the scheduler reports the pool and nothing else; so ``explain`` reports it first."""

from __future__ import annotations

import pytest

from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Reason, ReasonKind
from packages.tools.tests.objects import LABELLED, allocated_claim, claim, dra, explain_objects, gpu, node, pod, pool

OTHER_POOL = dra(
    "ResourceSlice",
    "nics",
    {
        "driver": "nic.example.com",
        "nodeName": "a",
        "pool": {"name": "nics", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "n0"}, {"name": "n0"}],
    },
)
CASES: dict[str, tuple[list[JSON], ReasonKind]] = {
    "a device that another claim holds": (
        [pool("a", gpu("g0")), allocated_claim("held", "a", "g0"), claim(), pod("c")],
        ReasonKind.HELD,
    ),
    "fewer devices than wanted": ([pool("a", gpu("g0")), claim(count=2), pod("c")], ReasonKind.TOO_FEW),
    "a selector that matches no device": (
        [pool("a", gpu("g0")), claim(selectors=[{"cel": {"expression": "false"}}]), pod("c")],
        ReasonKind.SELECTOR,
    ),
    "two claims for one device": ([pool("a", gpu("g0")), claim(), claim("d"), pod("c", "d")], ReasonKind.COMPETITION),
    "a constraint": (
        [
            pool("a", gpu("g0"), gpu("g1", attributes=LABELLED)),
            claim(count=2, constraints=[{"matchAttribute": "gpu.example.com/numa"}]),
            pod("c"),
        ],
        ReasonKind.CONSTRAINT,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_invalid_pool_of_any_driver_is_the_first_reason(case: str) -> None:
    objects, kind = CASES[case]
    assert [r.kind for r in reasons_on_node(*objects)] == [kind]
    reasons = reasons_on_node(OTHER_POOL, *objects)
    assert [r.kind for r in reasons] == [ReasonKind.POOL_INVALID, kind]
    assert "duplicate device name n0" in reasons[0].examples[0].detail


def reasons_on_node(*objects: JSON) -> list[Reason]:
    [group] = explain_objects(node("a"), *objects).groups
    return [*group.reasons, *(r for q in group.requests for r in q.reasons)]


def test_an_invalid_pool_is_no_reason_on_a_node_that_fits() -> None:
    explanation = explain_objects(node("a"), OTHER_POOL, pool("a", gpu("g0")), claim(), pod("c"))
    assert ReasonKind.POOL_INVALID not in explanation.kinds
    assert explanation.nodes == ("a",)
