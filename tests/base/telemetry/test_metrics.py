"""The Prometheus parser reads from /metrics the values that the plugin counted."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dra_kubeletplugin.base.telemetry.metrics import Metrics
from tests.tools.tree import modules

METRICS = Path(__file__).parents[3] / "docs" / "metrics.md"


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_a_measured_gauge_reports_the_current_value() -> None:
    metrics, state = Metrics(), [1.0]
    metrics.measure("slices", lambda: state[0])
    assert samples(metrics)["dra_slices", ()] == 1
    state[0] = 2
    assert samples(metrics)["dra_slices", ()] == 2


def test_each_metric_has_the_type_of_the_documentation_and_only_the_series_of_that_type() -> None:
    metrics = Metrics()
    metrics.observe("request_duration_seconds", 1, operation="prepare")
    documented = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", METRICS.read_text(), re.MULTILINE))
    assert dict(re.findall(r"^# TYPE (\w+) (\w+)$", metrics.text().decode(), re.MULTILINE)) == documented
    endings = {n.removeprefix("dra_request_duration_seconds") for n, _ in samples(metrics) if "dra_request_d" in n}
    assert endings == {"_bucket", "_sum", "_count"}


@pytest.mark.parametrize(
    "use_metric",
    [
        lambda m: m.inc("no_such_total"),
        lambda m: m.set("requests_total", 1),
        lambda m: m.inc("requests_total", operation="prepare"),
    ],
)
def test_an_undeclared_name_or_label_is_an_error(use_metric: object) -> None:
    with pytest.raises((KeyError, ValueError)):
        use_metric(Metrics())  # type: ignore[operator]


def test_every_metric_that_the_code_counts_is_declared_with_its_labels() -> None:
    """An undeclared name raises an error in the task that counts it, and only when it first counts."""
    used = set()
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            receiver, name = ast.unparse(node.func.value).rpartition(".")[2], node.args[0]
            if receiver in {"metrics", "_metrics"} and isinstance(name, ast.Constant):
                labels = frozenset(k.arg for k in node.keywords if k.arg != "amount")
                used.add((path.name, node.func.attr, name.value, labels))
    assert len(used) > 20
    for where, method, name, labels in used:
        values = dict.fromkeys(labels, "x")
        metrics = Metrics()
        match method:
            case "inc":
                metrics.inc(name, **values)
            case "set":
                metrics.set(name, 1, **values)
            case "measure":
                metrics.measure(name, float)
            case "observe" | "timed":
                metrics.observe(name, 1, **values)
            case _:
                raise AssertionError(f"{where}: {method}")
