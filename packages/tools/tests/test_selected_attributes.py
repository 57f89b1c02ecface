"""selected_attributes returns the attributes of devices that selectors and constraints can read."""

from __future__ import annotations

import pytest

from dra_devkit.scheduling.cel.mentions import named_attributes
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.unhealthy_reason import ATTRIBUTE
from dra_tools.selected_attributes import selected_attributes

ATTRIBUTES_OF_D = 'device.attributes["d"]'


def selectors_of(*expressions: str) -> list[JSON]:
    return [{"cel": {"expression": e}} for e in expressions]


def claim(requests: list[JSON], constraints: list[JSON] | None = None) -> JSON:
    return {"spec": {"devices": {"requests": requests, "constraints": constraints or []}}}


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        (f'{ATTRIBUTES_OF_D}.model == "x"', {"model", "d/model"}),
        (f'{ATTRIBUTES_OF_D}["model"] == "x" && device.driver == "d"', {"model", "d/model"}),
        (f'{ATTRIBUTES_OF_D}.?model.orValue("") == ""', {"model", "d/model"}),
        (f'"model" in {ATTRIBUTES_OF_D}', {"model", "d/model"}),
        (f"has({ATTRIBUTES_OF_D}.model)", {"model", "d/model"}),
        ('device.capacity["d"].memory.compareTo(quantity("1")) > 0', set()),
        ("device.allowMultipleAllocations == true", set()),
        (f"cel.bind(x, {ATTRIBUTES_OF_D}, x.model)", None),
        (f"{ATTRIBUTES_OF_D}.exists(k, true)", None),
        ('"d" in device.attributes', None),
        (f"{ATTRIBUTES_OF_D}[device.driver] == 1", None),
        ("[device].exists(x, true)", None),
        ("no expression", None),
    ],
)
def test_a_selector_reads_the_attributes_that_it_names(expression: str, names: set[str] | None) -> None:
    assert named_attributes(expression) == names


def test_selected_attributes_searches_classes_templates_and_claims_with_alternatives() -> None:
    template = {"spec": claim([{"name": "r", "exactly": {"selectors": selectors_of(f"{ATTRIBUTES_OF_D}.a == 1")}}])}
    options = [{"name": "o", "selectors": selectors_of(f"{ATTRIBUTES_OF_D}.b == 1")}]
    alternatives = claim(
        [{"name": "r", "firstAvailable": options}], [{"matchAttribute": "d/c"}, {"distinctAttribute": "d/e"}]
    )
    device_class = {"spec": {"selectors": selectors_of(f"{ATTRIBUTES_OF_D}.f == 1")}}
    found = selected_attributes([template, alternatives, device_class])
    assert found == {n for x in "abcef" for n in (x, f"d/{x}")} | {ATTRIBUTE}


def test_an_allocated_claim_needs_no_attributes_of_its_selectors() -> None:
    allocated = {
        **claim([{"name": "r", "exactly": {"selectors": selectors_of(f"{ATTRIBUTES_OF_D}.a == 1")}}]),
        "status": {"allocation": {}},
    }
    assert selected_attributes([allocated]) == {ATTRIBUTE}


@pytest.mark.parametrize(
    "broken", [{"spec": ["x"]}, claim([{"exactly": 1}]), claim([{"name": "r", "exactly": {"selectors": [{}]}}])]
)
def test_a_malformed_object_may_read_any_attribute(broken: JSON) -> None:
    assert selected_attributes([broken]) is None
