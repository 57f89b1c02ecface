"""The API server's rules for derived attributes of claims (KEP-6080)."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from dra_devkit.scheduling import cel
from dra_devkit.validation import claims
from dra_kubeletplugin.base.json_types import JSON

NAME = "derived/numa"
AT = "spec.devices.requests[0].exactly.derivedAttributes"
EXPENSIVE = "device.attributes.exists(d, device.attributes.exists(e, device.attributes.exists(f, d == e && e == f)))"


def derived(expression: str = "device.driver", name: str = NAME) -> JSON:
    return {"name": name, "expression": expression}


def claim(*attributes: JSON, constraints: list[JSON] | None = None) -> JSON:
    exactly = {
        "deviceClassName": "c",
        "allocationMode": "ExactCount",
        "count": 1,
        "derivedAttributes": list(attributes),
    }
    compared = [{"matchAttribute": NAME}] if constraints is None else constraints
    devices = {"requests": [{"name": "r", "exactly": exactly}], "constraints": compared}
    return {"metadata": {"name": "c", "namespace": "default"}, "spec": {"devices": devices}}


def faults(obj: JSON, *, lists: bool = False) -> list[str]:
    compile_derived = functools.partial(cel.compile_derived, list_attributes=lists)
    return [str(fault) for fault in claims.validate_claim(obj, cel.compile_selector, compile_derived)]


@pytest.mark.parametrize(
    "expression",
    ["device.driver", "1", "true", "semver('1.0.0')", "device.attributes['a'].b", "dyn(1)"],
)
def test_an_expression_may_have_any_type_of_an_attribute(expression: str) -> None:
    assert faults(claim(derived(expression))) == []


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ([derived(name="numa")], f'{AT}[0].name: Invalid value: "numa": must include a domain'),
        ([derived(name="")], f"{AT}[0].name: Required value"),
        ([derived("")], f"{AT}[0].expression: Required value"),
        ([derived(name="derived/other")], "must be used by a `matchAttribute` or `distinctAttribute` constraint"),
        ([derived(), derived("1")], f"{AT}[1]: Duplicate value"),
        ([derived("1.5")], "must evaluate to a primitive scalar (string, integer, boolean, semver), not double"),
        ([derived("[1]")], "must evaluate to a primitive scalar (string, integer, boolean, semver), not list(int)"),
        ([derived("device.")], "compilation failed"),
        ([derived("'" + "x" * 10240 + "'")], f"{AT}[0].expression: Too long"),
    ],
)
def test_an_invalid_derived_attribute_is_rejected(attributes: list[JSON], error: str) -> None:
    assert error in "; ".join(faults(claim(*attributes)))


def test_lists_need_the_gate_of_list_attributes() -> None:
    assert faults(claim(derived("['a', 'b']")), lists=True) == []
    [fault] = faults(claim(derived("[1.5]")), lists=True)
    assert "or a list of these scalars, not list(double)" in fault


@pytest.mark.parametrize(("requests", "is_used"), [([], True), (["r"], True), (["s"], False)])
def test_a_derived_attribute_must_be_compared_by_a_constraint_of_its_request(
    requests: list[str], is_used: bool
) -> None:
    obj = claim(derived(), constraints=[{"matchAttribute": NAME, "requests": requests}])
    obj["spec"]["devices"]["requests"].append({"name": "s", "exactly": dict(_plain())})
    assert (faults(obj) == []) == is_used


def _plain() -> dict[str, Any]:
    return {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}


def test_a_request_has_at_most_32_derived_attributes() -> None:
    attributes = [derived(name=f"derived/a{i}") for i in range(33)]
    compared = [{"matchAttribute": f"derived/a{i}"} for i in range(32)]
    assert f"{AT}: Too many: 33: must have at most 32 items" in "; ".join(
        faults(claim(*attributes, constraints=compared))
    )


def test_all_expressions_of_a_claim_together_have_a_limit_of_cost() -> None:
    cost = cel.compile_derived(EXPENSIVE).max_cost
    number = 1_000_000 // cost + 1
    assert 1 < number <= 32
    attributes = [derived(EXPENSIVE, f"derived/a{i}") for i in range(number)]
    compared = [{"distinctAttribute": f"derived/a{i}"} for i in range(number)]
    assert faults(claim(*attributes[1:], constraints=compared)) == []
    [fault] = faults(claim(*attributes, constraints=compared))
    assert "spec.devices.requests: Forbidden: derived attributes too complex" in fault
