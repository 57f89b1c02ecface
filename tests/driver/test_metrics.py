"""/metrics contains a driver's own metrics under the driver's name. A wrong declaration or use raises an error immediately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dra_kubeletplugin import Device, Driver
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.driver import make
from dra_kubeletplugin.driver.metrics import MAX_SERIES, DriverMetrics
from dra_kubeletplugin.errors import DriverError


class CardsDriver(Driver):
    name = "7-cards.example.com"

    def __init__(self) -> None:
        self.parts_made = self.metrics.counter("parts_made_total", 'Created parts, by "profile".', ["profile"])

    def devices(self) -> list[Device]:
        return []

    def prepare(self, claim: Any) -> list[Any]:
        return []


def page(metrics: DriverMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    of_plugin = Metrics()
    of_plugin.add(metrics)
    families = list(text_string_to_metric_families(of_plugin.text().decode()))
    names = [f.name for f in families]
    assert len(names) == len(set(names))
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for f in families
        for s in f.samples
        if f.name.startswith(metrics.prefix)
    }


def test_metrics_can_be_declared_in_init_and_have_the_driver_s_prefix() -> None:
    driver = make(CardsDriver)
    assert isinstance(driver, CardsDriver)
    driver.parts_made.labels(profile="1g").inc()
    driver.parts_made.labels("1g").inc(2.5)
    driver.parts_made.labels(profile='a "b"\n').inc()
    prefix = "driver_7_cards_example_com_"
    assert page(driver.metrics) == {
        (f"{prefix}parts_made_total", (("profile", "1g"),)): 3.5,
        (f"{prefix}parts_made_total", (("profile", 'a "b"'),)): 1.0,
    }
    assert driver.metrics.get_sample_value(f"{prefix}parts_made_total", {"profile": "1g"}) == 3.5


def test_a_driver_attribute_named_metrics_is_rejected() -> None:
    class DriverWithAttribute(CardsDriver):
        def __init__(self) -> None:
            self.metrics = {"parts": 1}  # type: ignore[assignment]

    with pytest.raises(DriverError, match=r"sets self\.metrics, which the framework sets: rename your attribute"):
        make(DriverWithAttribute)


def test_counters_gauges_and_histograms_are_on_the_page_with_the_prefix() -> None:
    metrics = DriverMetrics("gpu.example.com")
    assert page(metrics) == {}
    metrics.counter("resets_total", "Resets.")
    heat = metrics.gauge("temperature_celsius", "Heat.", ["card"])
    heat.labels(card=3).set(41)
    heat.labels(card=4).set(42)
    heat.remove(4)
    metrics.histogram("make_seconds", "Time.", buckets=[1, 2]).observe(1.5)
    p = "gpu_example_com_"
    assert page(metrics) == {
        (f"{p}resets_total", ()): 0.0,
        (f"{p}temperature_celsius", (("card", "3"),)): 41.0,
        (f"{p}make_seconds_bucket", (("le", "1.0"),)): 0.0,
        (f"{p}make_seconds_bucket", (("le", "2.0"),)): 1.0,
        (f"{p}make_seconds_bucket", (("le", "+Inf"),)): 1.0,
        (f"{p}make_seconds_count", ()): 1.0,
        (f"{p}make_seconds_sum", ()): 1.5,
    }


def test_label_values_above_the_limit_are_counted_together_and_omitted_from_gauges(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = DriverMetrics("gpu.example.com")
    counted, heat = metrics.counter("xids_total", "XIDs.", ["pod", "xid"]), metrics.gauge("heat", "Heat.", ["pod"])
    took = metrics.histogram("took_seconds", "Time.", ["pod"], buckets=[1])
    for i in range(MAX_SERIES + 5):
        counted.labels(pod=f"pod-{i}", xid=13).inc()
        heat.labels(pod=f"pod-{i}").set(i)
        took.labels(f"pod-{i}").observe(1)
    counted.labels("pod-0", 13).inc()
    found = page(metrics)
    p = "gpu_example_com_"
    assert found[f"{p}xids_total", (("pod", "pod-0"), ("xid", "13"))] == 2
    assert found[f"{p}xids_total", (("pod", "other"), ("xid", "other"))] == 5
    assert found[f"{p}took_seconds_count", (("pod", "other"),)] == 5
    assert found[f"{p}heat", (("pod", f"pod-{MAX_SERIES - 1}"),)] == MAX_SERIES - 1
    assert len(found) == (MAX_SERIES + 1) + MAX_SERIES + 4 * (MAX_SERIES + 1)
    assert sum("more than 200 combinations of labels" in r.getMessage() for r in caplog.records) == 2


def test_a_removed_series_of_a_gauge_makes_place_for_another() -> None:
    metrics = DriverMetrics("gpu.example.com")
    heat = metrics.gauge("heat", "Heat.", ["card"])
    for i in range(MAX_SERIES):
        heat.labels(card=i).set(i)
    heat.remove("7")
    heat.labels(card="new").set(1)
    assert page(metrics)["gpu_example_com_heat", (("card", "new"),)] == 1
    heat.clear()
    assert page(metrics) == {}
    heat.labels(card="newer").set(1)
    assert len(page(metrics)) == 1


def test_text_from_devices_is_clipped_and_made_printable() -> None:
    metrics = DriverMetrics("gpu.example.com")
    metrics.gauge("invalid_text", "Invalid text.", ["x"]).labels(x="\udc80" + "x" * 1000).set(1)
    ((_, ((_, value),)),) = page(metrics)
    assert "x" * 90 in value and len(value.encode()) == 128


def test_a_removed_series_with_a_clipped_value_is_gone() -> None:
    metrics = DriverMetrics("gpu.example.com")
    heat = metrics.gauge("heat", "Heat.", ["card"])
    heat.labels("x" * 1000).set(1)
    heat.remove("x" * 1000)
    assert page(metrics) == {}


def test_a_function_that_raises_costs_only_the_drivers_own_metrics(caplog: pytest.LogCaptureFixture) -> None:
    metrics, of_plugin = DriverMetrics("gpu.example.com"), Metrics()
    metrics.gauge("heat", "Heat.").set_function(lambda: 1 / 0)
    of_plugin.add(metrics)
    for _ in range(2):
        assert b"dra_records_healthy" in of_plugin.text()
    (logged,) = (r.getMessage() for r in caplog.records if "/metrics" in r.getMessage())
    assert "division by zero" in logged


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda m: m.gauge("heat", "X.", "card"), r"labels are 'card': write \['card'\]"),
        (lambda m: m.counter("x_total", "X.") and m.counter("x_total", "X."), "Duplicated timeseries"),
        (lambda m: m.gauge("heat-celsius", "X."), "(?i)invalid metric name"),
        (lambda m: m.gauge("heat", "X.", ["card-id"]), "Invalid label metric name"),
        (lambda m: m.histogram("a_seconds", "X.", buckets=[2, 1]), "sorted"),
        (lambda m: m.counter("x_total", "X.").inc(-1), "non-negative"),
        (lambda m: m.counter("x_total", "X.", ["card"]).labels(gpu=1), "Incorrect label names"),
        (lambda m: m.gauge("heat", "X.", ["card"]).set(1), "missing label values"),
    ],
)
def test_a_wrong_declaration_or_use_raises_an_error(use: Callable[[Any], object], text: str) -> None:
    with pytest.raises((DriverError, ValueError), match=text):
        use(DriverMetrics("gpu.example.com"))
