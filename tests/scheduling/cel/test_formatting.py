"""``format`` cannot multiply a text without end: CEL's cost counts the format string alone, not the arguments that it writes."""

from __future__ import annotations

import tracemalloc

import pytest

from dra_kubeletplugin.scheduling import cel

_BYTES = 100 << 20
_ONE = cel.Device("d.example.com", {"name": "d"})


def _evaluated(expression: str) -> bool:
    tracemalloc.start()
    try:
        found: bool = cel.compile_selector(expression).matches(_ONE)
        return found
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
def test_a_text_that_grows_with_each_format_ends_the_evaluation(step: str, times: int) -> None:
    grown = '["aaaaaaaaaa"]' + f".map(x, {step})" * times
    with pytest.raises(cel.CelError, match="actual cost limit exceeded"):
        _evaluated(f"{grown}[0].size() > 5")


def test_an_ordinary_format_is_evaluated() -> None:
    assert _evaluated('"%s-%d-%x".format([device.driver, 7, "ab"]) == "d.example.com-7-6162"')
