"""``format`` cannot grow a string without limit, although CEL's cost counts only the format string and not the formatted arguments."""

from __future__ import annotations

import tracemalloc

import pytest

from dra_devkit.scheduling import cel

_BYTES = 100 << 20
_DEVICE = cel.Device("d.example.com", {"name": "d"})


def _evaluate(expression: str) -> bool:
    tracemalloc.start()
    try:
        result: bool = cel.compile_selector(expression).matches(_DEVICE)
        return result
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < _BYTES


@pytest.mark.parametrize(
    ("step", "times"),
    [
        ('"' + "%s" * 10 + '".format([' + ",".join("x" * 10) + "])", 9),  # 10 GB
        ('"%x".format([x])', 29),  # 5 GB
        ('"%s".format([[' + ",".join("x" * 10) + "]])", 9),
        ('"%s".format([{' + ",".join(f'"{i}": x' for i in range(10)) + "}])", 9),
        ('"%s".format([{x: 1, x + "b": 2, x + "c": 3}])', 19),
    ],
)
def test_a_string_that_grows_with_each_format_ends_the_evaluation(step: str, times: int) -> None:
    expression = '["aaaaaaaaaa"]' + f".map(x, {step})" * times
    with pytest.raises(cel.CelError, match="actual cost limit exceeded"):
        _evaluate(f"{expression}[0].size() > 5")


def test_an_ordinary_format_is_evaluated() -> None:
    assert _evaluate('"%s-%d-%x".format([device.driver, 7, "ab"]) == "d.example.com-7-6162"')
