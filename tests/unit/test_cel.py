"""Expressions beyond the recorded ones: nothing a user writes breaks the compiler or the evaluator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.local import cel

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
def test_whatever_is_written_is_compiled_and_evaluated_or_refused_with_words(tokens: list[str]) -> None:
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
def test_libraries_that_no_recorded_case_shows(expression: str, matches: bool) -> None:
    assert cel.Selector(expression).matches(DEVICE) is matches


def test_an_expression_that_costs_too_much_is_stopped() -> None:
    many = "[" + ",".join(str(i) for i in range(100)) + "]"
    nested = f"{many}.all(a, {many}.all(b, {many}.all(c, a + b + c >= 0)))"
    with pytest.raises(cel.CelError, match="cost limit exceeded"):
        cel.Selector(nested).matches(DEVICE)


def test_an_expression_that_could_cost_too_much_is_refused_at_admission() -> None:
    from dra_kubeletplugin.resources import defaults, schema
    from dra_kubeletplugin.resources.claim_rules import validate_class
    from dra_kubeletplugin.testing.pods import device_class

    costly = device_class("c", "d")
    inner = 'device.attributes["d"].all(b, device.attributes["d"].all(c, device.attributes["d"].all(e, b != c)))'
    costly["spec"]["selectors"][0]["cel"]["expression"] = f'device.attributes["d"].all(a, {inner})'
    faults = validate_class(defaults.apply(schema.decode(costly, "DeviceClass"), "DeviceClass"), cel.compile_selector)
    assert [(f.reason, f.field) for f in faults] == [("FieldValueForbidden", "spec.selectors[0].cel.expression")]
