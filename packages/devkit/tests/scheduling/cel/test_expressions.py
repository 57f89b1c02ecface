"""Expressions beyond the recorded cases: no input breaks the compiler or the evaluator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_devkit.scheduling import cel

DEVICE = cel.Device(
    "d.example.com",
    {
        "name": "x",
        "attributes": {"model": {"string": "A"}, "index": {"int": 3}, "v": {"version": "1.2.3"}},
        "capacity": {"m": {"value": "1Gi"}},
    },
)
TOKENS = [
    "device", ".driver", ".attributes", '["d.example.com"]', ".model", ".index", ".capacity", ".m", "(", ")", "[", "]", "{", "}", ".?", "[?", "!", "-",
    " && ", " || ", " == ", " < ", " + ", " / ", " % ", " in ", " ? ", " : ", ",", "1", "007", "0x1F", "2u", "1.5", "9223372036854775807", "true", "null", '"a"', "r'b'",
    'b"\\xff"', "[1, 2]", ".exists(x, x", ".map(x, x)", ".size()", ".matches('a')", ".substring(0, 9)", "int(", "quantity('1Gi')", "semver('1.2.3')", 'duration("1h")',
    "timestamp('9999-12-31T23:59:59Z')", ".orValue(1)", "has(", "cel.bind(a, 1, a)", ".format([1])", ".sort()", "optional.none()", ".isGreaterThan(",
]  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=12))
def test_every_input_is_evaluated_or_rejected_with_a_message(tokens: list[str]) -> None:
    try:
        cel.Selector("".join(tokens)).evaluate(DEVICE)
    except (cel.CompileError, cel.CelError) as e:
        assert str(e)


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("[1, 2, 3].all(i, v, v > i)", True),
        ("{'a': 1, 'b': 2}.exists(k, v, k == 'b' && v == 2)", True),
        ("[1, 2].transformList(i, v, v * 10) == [10, 20]", True),
        ("{'a': 1}.transformMap(k, v, v + 1) == {'a': 2}", True),
        ("[3, 1, 2].sortBy(x, -x) == [3, 2, 1]", True),
        ("optional.of(5).optMap(x, x + 1).orValue(0) == 6", True),
        ('"{}".format([]) == "{}"', True),
        ('"%d items of %s".format([3, "x"]) == "3 items of x"', True),
        ("timestamp('2026-01-01T00:00:00Z') + duration('24h') == timestamp('2026-01-02T00:00:00Z')", True),
        ("cidr('10.0.0.0/8').masked().containsCIDR('10.1.0.0/16')", True),
        ("007 == 7", True),
        ("[[1], [2, 3]].flatten() == [1, 2, 3]", True),
        ("lists.range(3) == [0, 1, 2]", True),
        ("true ? 1 == 1 : false", True),
    ],
)  # fmt: skip
def test_libraries_without_recorded_cases_are_supported(expression: str, matches: bool) -> None:
    assert cel.Selector(expression).matches(DEVICE) is matches


def test_an_expression_above_the_cost_limit_is_stopped() -> None:
    many = "[" + ",".join(str(i) for i in range(100)) + "]"
    nested = f"{many}.all(a, {many}.all(b, {many}.all(c, a + b + c >= 0)))"
    with pytest.raises(cel.CelError, match="cost limit exceeded"):
        cel.Selector(nested).matches(DEVICE)


def test_an_expression_with_a_too_high_estimate_is_rejected_at_admission() -> None:
    from dra_devkit.schemas.decoding import decode_strictly
    from dra_devkit.schemas.shapes import dra_shape
    from dra_devkit.testing.pods import device_class
    from dra_devkit.validation import defaulting
    from dra_devkit.validation.claims import validate_class

    costly = device_class("c", "d")
    inner = 'device.attributes["d"].all(b, device.attributes["d"].all(c, device.attributes["d"].all(e, b != c)))'
    costly["spec"]["selectors"][0]["cel"]["expression"] = f'device.attributes["d"].all(a, {inner})'
    faults = validate_class(
        defaulting.apply(decode_strictly(costly, dra_shape("DeviceClass")), "DeviceClass"), cel.compile_selector
    )
    assert [(f.reason, f.field) for f in faults] == [("FieldValueForbidden", "spec.selectors[0].cel.expression")]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=12))
def test_no_evaluation_costs_more_than_its_estimate(tokens: list[str]) -> None:
    expression = "".join(tokens)
    # The estimate of a presence test is below its cost, and the estimate of a field of type any is 0, as in Kubernetes.
    if any(t in expression for t in ("has(", ".model", ".index")):
        return
    try:
        selector = cel.Selector(expression)
    except cel.CompileError:
        return
    try:
        _, cost = selector.evaluate(DEVICE)
    except cel.CelError as e:
        cost = e.cost
    assert cost <= selector.max_cost


# Expression, maximum cost, actual cost; by the rules of cel-go and of the Kubernetes libraries.
COSTS = [
    ("matches('abc', '^a.c$')", 1, 1),
    ("'abc'.matches('^a.c$')", 2, 2),
    ("cidr('192.168.0.0/16').containsCIDR(cidr('192.0.0.0/30'))", 11, 7),
    ("cidr('2001:db8::/32').containsIP('2001:db8:3333:4444:5555:6666:7777:8888')", 10, 7),
    ("ip.isCanonical('2001:db8::abcd')", 3, 3),
    ("ip('10.0.0.1') != ip('10.0.0.2')", 1844674407370955266, 3),
    ("['b', 'a'].sort() == ['a', 'b']", 41, 20),
    ("[3, 1, 2].sortBy(x, -x) == [3, 2, 1]", 115, 75),
    ("[[1, 2], [3]].flatten() == [1, 2, 3]", 54, 14),
    ("strings.quote('abc') == ''", 1, 1),
    ("bytes('abc') == b'abc'", 2, 1),
    ("'abc'.charAt(1) == 'b'", 2, 2),
    ("lists.range(3).reverse() == [2, 1, 0]", 39, 29),
    ("optional.of('abc') == optional.of('abd')", 1844674407370955266, 3),
    ("format.uuid().validate('x').hasValue()", 34, 20),
    ("cel.bind(unused, 'abc'.matches('a'), true)", 11, 0),
    ("true ? true : 'abc'.contains('a')", 1, 0),
]


@pytest.mark.parametrize(("expression", "max_cost", "cost"), COSTS)
def test_costs_match_kubernetes(expression: str, max_cost: int, cost: int) -> None:
    selector = cel.Selector(expression)
    assert (selector.max_cost, selector.evaluate(DEVICE)[1]) == (max_cost, cost)


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("has(device.attributes.x)", True),
        ("quantity('0.5Mi').isInteger() || quantity('1.0').isInteger()", False),
        ("quantity('1k').isInteger()", True),
        ("isCIDR('10.0.0.0/08')", False),
        ("sign(quantity('-1')) == -1", True),
        ("type(ip('10.0.0.1')) == net.IP && type(optional.none()) == optional_type", True),
        ("type(duration('1s')) == google.protobuf.Duration", True),
        ("timestamp('2026-01-01T12:00:00Z').getHours('-02:30') == 9", True),
        ("timestamp('2026-01-01T12:00:00Z').getHours('Europe/Berlin') == 13", True),
        ("string(1000000.0) == '1e+06' && string(0.5) == '0.5'", True),
        ("!format.uri().validate('http://a/b').hasValue() && format.date().validate('2026-13-01').hasValue()", True),
        ("!format.dns1123LabelPrefix().validate('a-').hasValue() && format.byte().validate('x').hasValue()", True),
        ("semver('1.2.3') != semver('1.2.4')", True),
        ("'%.2f'.format([1234567.891]) == '1,234,567.89'", True),
        ("'a$'.matches('[[:alpha:]][$]$')", True),
        ("'A'.matches('x|(?i)a')", True),
    ],
)
def test_functions_of_kubernetes_are_supported(expression: str, matches: bool) -> None:
    assert cel.Selector(expression).matches(DEVICE) is matches


@pytest.mark.parametrize(
    "expression",
    [
        "dyn(true)",
        "true ? dyn(true) : false",
        "[1, 'a'].size() == 2",
        "[1, device.attributes['d'].x].size() == 2",
        "'%d'.format(['a']) == ''",
        "'%q'.format(['a']) == ''",
        "'a'.matches('(?=a)')",
        "[[1]].sort() == [[1]]",
        "timestamp(-9223372036854775808) == timestamp(0)",
        "cel.bind(t, int, type(1) == t)",
        "1e400 > 0.0",
        "-1e400 < 0.0",
    ],
)
def test_expressions_that_kubernetes_rejects_are_rejected(expression: str) -> None:
    with pytest.raises(cel.CompileError):
        cel.Selector(expression)


def test_an_evaluation_error_contains_its_cost() -> None:
    with pytest.raises(cel.CelError, match="CEL result of type int could not be converted to bool") as error:
        cel.Selector('device.attributes["d.example.com"].index').matches(DEVICE)
    assert error.value.cost == 4
