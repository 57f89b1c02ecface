"""Rules of Kubernetes and cel-go for the cost of formats and of failing calls, for run-time types, and for ranges of type any."""

from __future__ import annotations

import math

import pytest

from dra_devkit.scheduling import cel

DEVICE = cel.Device(
    "d.example.com",
    {
        "attributes": {"text": {"string": "my-name"}, "address": {"string": "10.1.2.3"}, "flag": {"bool": True}},
        "capacity": {"memory": {"value": "1Gi"}},
    },
)
TEXT, MISSING, ADDRESS = (f'device.attributes["d.example.com"].{name}' for name in ("text", "missing", "address"))
ATTRIBUTE_COST = 4  # one unit for the variable, three for its qualifiers

# The lengths of the patterns in Kubernetes' table of formats; its cost test expects 17 for a subdomain and 10 for a label below.
PATTERN_LENGTHS = {
    "dns1123Label": 30, "dns1123Subdomain": 60, "dns1035Label": 30, "qualifiedName": 60, "dns1123LabelPrefix": 30,
    "dns1123SubdomainPrefix": 60, "dns1035LabelPrefix": 30, "labelValue": 40, "uri": 1103, "uuid": 70, "byte": 84, "date": 71,
    "datetime": 71,
}  # fmt: skip


def cost_of(expression: str) -> int:
    try:
        return cel.Selector(expression).evaluate(DEVICE)[1]
    except cel.CelError as e:
        return e.cost


@pytest.mark.parametrize("name", PATTERN_LENGTHS)
def test_a_validation_costs_as_much_as_a_match_of_a_pattern_of_the_formats_length(name: str) -> None:
    for text in ("", "x", "my-name", "a" * 9, "a" * 10, "a" * 100):
        expected = math.ceil((1 + len(text)) * 0.1) * math.ceil(PATTERN_LENGTHS[name] / 4)
        # One unit creates the format, one more reads the optional.
        assert cost_of(f"format.{name}().validate('{text}').hasValue()") == 1 + expected + 1
        assert cost_of(f"format.named('{name}').value().validate('{text}').hasValue()") == 2 + expected + 1
        assert cost_of(f"format.named('{name}').value() == format.{name}()") == 4


def test_the_examples_of_the_kubernetes_cost_test_cost_the_same() -> None:
    for name, cost in (("dns1123Subdomain", 17), ("dns1123Label", 10)):
        assert cost_of(f"format.named('{name}').value().validate('my-name').hasValue()") == cost + 1


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("123e4567-e89b-12d3-a456-426614174000", True),
        ("123E4567E89B12D3A456426614174000", True),
        ("123e4567-e89b12d3a456-426614174000", True),
        ("{123e4567-e89b-12d3-a456-426614174000}", False),
        ("urn:uuid:123e4567-e89b-12d3-a456-426614174000", False),
        ("123e4567-e89b-12d3-a456-42661417400", False),
    ],
)
def test_a_uuid_may_omit_its_dashes_and_has_no_prefix(text: str, valid: bool) -> None:
    assert cel.Selector(f"!format.uuid().validate('{text}').hasValue()").matches(DEVICE) is valid


@pytest.mark.parametrize("call", ["sum() == 1", "max() == 1", "min() == 1", "isSorted()"])
def test_a_walk_of_a_failed_list_costs_one_unit(call: str) -> None:
    compared = "==" in call
    assert cost_of(f"{MISSING}.{call}") == ATTRIBUTE_COST + 1 + compared


@pytest.mark.parametrize("function", ["isLessThan", "isGreaterThan", "indexOf", "lastIndexOf"])
def test_a_call_whose_overload_is_unknown_stops_at_the_first_failed_argument(function: str) -> None:
    # The type of both arguments is any, so the overload depends on the values. After a failure, nothing more is evaluated.
    result = " == 1" if "Index" in function or "index" in function else ""
    assert cost_of(f"{MISSING}.{function}({TEXT}){result}") == ATTRIBUTE_COST + bool(result)


@pytest.mark.parametrize("function", ["startsWith", "endsWith", "contains"])
def test_a_call_with_one_overload_evaluates_all_arguments_and_is_charged(function: str) -> None:
    assert cost_of(f"{MISSING}.{function}('x')") == ATTRIBUTE_COST + 1
    assert cost_of(f"{MISSING}.{function}({TEXT})") == 2 * ATTRIBUTE_COST + 1


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "%"])
def test_an_operator_evaluates_both_operands_and_is_charged(operator: str) -> None:
    assert cost_of(f"{MISSING} {operator} {TEXT} == 1") == 2 * ATTRIBUTE_COST + 2


def test_only_a_string_overload_is_charged_for_parsing() -> None:
    network = "cidr('10.0.0.0/8')"
    for function, call_cost in (("containsIP", 1), ("containsCIDR", 3)):
        argument = "'10.1.2.3'" if function == "containsIP" else "'10.1.0.0/16'"
        assert cost_of(f"{network}.{function}({argument})") == 1 + call_cost + 1 + (function == "containsCIDR")
    assert cost_of(f"{network}.containsIP({ADDRESS})") == 1 + ATTRIBUTE_COST + 1


VALUES = {
    "null_type": "null", "bool": "true", "uint": "1u", "int": "1", "double": "1.5", "string": "'a'", "bytes": "b'a'", "list": "[1]",
    "map": "{'a': 1}", "google.protobuf.Duration": "duration('1s')", "google.protobuf.Timestamp": "timestamp('2026-01-01T00:00:00Z')",
    "optional_type": "optional.of(1)", "net.IP": "ip('10.0.0.1')", "net.CIDR": "cidr('10.0.0.0/8')",
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_value_has_its_own_type_and_no_other(name: str) -> None:
    for other, value in VALUES.items():
        assert cel.Selector(f"type({value}) == {name}").matches(DEVICE) is (other == name), value
    assert cel.Selector(f"type(type({VALUES[name]})) == type").matches(DEVICE)


def test_addresses_of_both_families_have_the_same_types() -> None:
    assert cel.Selector("type(ip('::1')) == net.IP && type(cidr('fd00::/8')) == net.CIDR").matches(DEVICE)


MACROS = [
    "all(e, true)", "exists(e, true)", "exists_one(e, true)", "map(e, e).size() == 0", "map(e, true, e).size() == 0",
    "filter(e, true).size() == 0", "all(i, e, true)", "exists(i, e, true)", "existsOne(i, e, true)",
    "transformList(i, e, e).size() == 0", "transformMap(i, e, e).size() == 0", "transformMapEntry(i, e, {i: e}).size() == 0",
]  # fmt: skip
RANGES = [
    'device.attributes["d.example.com"].text',
    'device.attributes["d.example.com"]["text"]',
    'device.attributes["d.example.com"].?text.value()',
    '(true ? device.attributes["d.example.com"].text : [1])',
]


@pytest.mark.parametrize("macro", MACROS)
def test_a_comprehension_over_an_attribute_needs_lists(macro: str) -> None:
    for values in RANGES:
        with pytest.raises(cel.CompileError, match=r"expression of type 'any' cannot be range of a comprehension"):
            cel.Selector(f"{values}.{macro}")
        cel.Selector(f"{values}.{macro}", list_attributes=True)
    cel.Selector(f'dyn(device.attributes["d.example.com"].text).{macro}')
    cel.Selector(f'device.attributes["d.example.com"].{macro}')


def nested_pairs(depth: int, body: str) -> str:
    for i in range(depth, 0, -1):
        body = f"cel.bind(x{i}, [x{i - 1}, x{i - 1}], {body})"
    return f"cel.bind(x0, [1], {body})"


@pytest.mark.parametrize(
    "call", ["indexOf(1) == 0", "lastIndexOf(1) == 0", "isSorted()", "min() == 1", "max() == 1", "sum() == 1"]
)
def test_an_expression_over_shared_lists_ends_at_its_cost_limit(call: str) -> None:
    """40 nested pairs have 2^40 values. A computation of the cost that walks all of them never ends, as in Kubernetes."""
    selector = cel.compile_selector(nested_pairs(40, f"dyn(x40).{call}"))
    with pytest.raises(cel.CelError, match="actual cost limit exceeded"):
        selector.matches(DEVICE)
