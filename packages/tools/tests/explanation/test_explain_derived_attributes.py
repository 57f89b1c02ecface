"""`dra explain` evaluates derived attributes in constraints (KEP-6080)."""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import JSON
from dra_tools import Explanation, ExplanationState, Snapshot, explain
from packages.tools.tests.explanation.test_explain import CLASS, claim, dra, gpu, node, pod, pool

NAME = "derived/key"


def numa(name: str, value: int) -> JSON:
    return gpu(name, attributes={"numa": {"int": value}})


def derived(expression: str) -> list[JSON]:
    return [{"name": NAME, "expression": expression}]


def explained(wanted: JSON, *devices: JSON) -> Explanation:
    return explain(Snapshot.of([CLASS, node("a"), pool("a", *devices), wanted, pod("c")]), "p")


def pair(expression: str) -> JSON:
    return claim(count=2, constraints=[{"matchAttribute": NAME}], derivedAttributes=derived(expression))


def test_a_pod_fits_whose_devices_have_the_same_derived_attribute() -> None:
    found = explained(
        pair("device.attributes['gpu.example.com'].numa / 2"), numa("g0", 1), numa("g1", 2), numa("g2", 3)
    )
    assert (found.state, found.unevaluated) == (ExplanationState.FITS, ())


def test_the_values_of_a_derived_attribute_explain_why_a_constraint_fails() -> None:
    found = explained(pair("device.attributes['gpu.example.com'].numa * 10"), numa("g0", 2), numa("g1", 1))
    assert found.state is ExplanationState.WAITS
    assert f"no choice of devices satisfies matchAttribute {NAME}" in found.summary
    assert "values of the usable devices: 20 on 1, 10 on 1" in repr(found)


def test_the_values_of_a_derived_attribute_are_of_the_requests_of_the_constraint() -> None:
    requests = [
        {"name": "x", "exactly": {"deviceClassName": "gpu", "derivedAttributes": derived("'first'")}},
        {"name": "y", "exactly": {"deviceClassName": "gpu", "derivedAttributes": derived("'second'")}},
    ]
    wanted = dra("ResourceClaim", "c", {"devices": {"requests": requests, "constraints": [{"matchAttribute": NAME}]}})
    found = explained(wanted, numa("g0", 1), numa("g1", 2))
    assert "values of the usable devices: first on 2, second on 2" in repr(found)


def test_an_expression_that_fails_is_the_reason() -> None:
    found = explained(pair("device.attributes['gpu.example.com'].missing"), numa("g0", 1), numa("g1", 2))
    assert found.state is ExplanationState.WAITS
    assert f"derived attribute {NAME}: CEL runtime error" in repr(found)
    assert "no such key: missing" in repr(found)
