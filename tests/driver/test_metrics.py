"""/metrics contains a driver's own metrics under the driver's name. A wrong declaration or use raises an error immediately."""

from __future__ import annotations

import threading
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
    registry = Metrics()
    registry.add(metrics.lines)
    families = list(text_string_to_metric_families(registry.text().decode()))
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
    driver.parts_made.inc(profile="1g")
    driver.parts_made.inc(2.5, profile="1g")
    driver.parts_made.inc(profile='a "b"\n')
    prefix = "driver_7_cards_example_com_"
    assert page(driver.metrics) == {
        (f"{prefix}parts_made_total", (("profile", "1g"),)): 3.5,
        (f"{prefix}parts_made_total", (("profile", 'a "b"'),)): 1.0,
    }
    assert driver.parts_made.value(profile="1g") == 3.5


def test_a_driver_attribute_named_metrics_is_rejected() -> None:
    class DriverWithAttribute(CardsDriver):
        def __init__(self) -> None:
            self.metrics = {"parts": 1}  # type: ignore[assignment]

    with pytest.raises(DriverError, match=r"sets self\.metrics, which the framework sets: rename your attribute"):
        make(DriverWithAttribute)


def test_counters_gauges_and_histograms_have_the_format_of_prometheus() -> None:
    metrics = DriverMetrics("gpu.example.com")
    assert page(metrics) == {}
    metrics.counter("resets_total", "Resets.")
    heat = metrics.gauge("temperature_celsius", "Heat.", ["card"])
    heat.set(41, card=3)
    heat.set(42, card=4)
    heat.remove(card=4)
    duration = metrics.histogram("make_seconds", "Time.", buckets=[1, 2])
    duration.observe(1.5)
    with duration.timed(), pytest.raises(OSError):
        raise OSError
    assert duration.value() == 2
    p = "gpu_example_com_"
    found = page(metrics)
    seconds = found.pop((f"{p}make_seconds_sum", ()))
    assert 1.5 < seconds < 60
    assert found == {
        (f"{p}resets_total", ()): 0.0,
        (f"{p}temperature_celsius", (("card", "3"),)): 41.0,
        (f"{p}make_seconds_bucket", (("le", "1.0"),)): 1.0,
        (f"{p}make_seconds_bucket", (("le", "2.0"),)): 2.0,
        (f"{p}make_seconds_bucket", (("le", "+Inf"),)): 2.0,
        (f"{p}make_seconds_count", ()): 2.0,
    }


def test_a_repeated_declaration_returns_the_same_metric_and_must_not_differ() -> None:
    metrics = DriverMetrics("gpu.example.com")
    one = metrics.counter("xids_total", "XIDs.", ["number"])
    assert metrics.counter("xids_total", "XIDs.", ("number",)) is one
    for declare in (
        lambda: metrics.counter("xids_total", "XIDs.", ["xid"]),
        lambda: metrics.histogram("a_seconds", "A.") and metrics.gauge("a_seconds", "A."),
        lambda: metrics.histogram("b_seconds", "B.") and metrics.histogram("b_seconds", "B.", buckets=[1]),
    ):
        with pytest.raises(DriverError, match="is declared twice"):
            declare()


def test_label_values_above_the_limit_are_counted_together_and_omitted_from_gauges(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = DriverMetrics("gpu.example.com")
    counted, heat = metrics.counter("xids_total", "XIDs.", ["pod", "xid"]), metrics.gauge("heat", "Heat.", ["pod"])
    for i in range(MAX_SERIES + 5):
        counted.inc(pod=f"pod-{i}", xid=13)
        heat.set(i, pod=f"pod-{i}")
    counted.inc(pod="pod-0", xid=13)
    assert (counted.value(pod="pod-0", xid=13), counted.value(pod="other", xid="other")) == (2, 5)
    assert heat.value(pod=f"pod-{MAX_SERIES - 1}") == MAX_SERIES - 1 and heat.value(pod=f"pod-{MAX_SERIES}") == 0
    assert len(metrics.lines()) == 2 + MAX_SERIES + 1 + 2 + MAX_SERIES
    assert sum("more than 200 combinations of labels" in r.getMessage() for r in caplog.records) == 1
    metrics.gauge("invalid_text", "Invalid text.", ["x"]).set(1, x="\udc80" + "x" * 1000)
    assert max(map(len, metrics.lines())) < 200


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda m: m.counter("xids", "X."), "must end in _total"),
        (lambda m: m.counter(7, "X."), "must end in _total"),
        (lambda m: m.counter("_total", "X."), "begins with a letter"),
        (lambda m: m.gauge("heat_total", "X."), "only that of a counter ends in _total"),
        (lambda m: m.histogram("a_sum", "X."), "does not end in _count"),
        (lambda m: m.gauge("Heat", "X."), "lower case letters"),
        (lambda m: m.gauge("x" * 81, "X."), "at most 80"),
        (lambda m: m.gauge("heat", " "), "has no help text"),
        (lambda m: m.gauge("heat", "X.", "card"), "labels are 'card'"),
        (lambda m: m.gauge("heat", "X.", ["a", "a"]), "different names"),
        (lambda m: m.gauge("heat", "X.", list("abcdef")), "at most 5"),
        (lambda m: m.histogram("a_seconds", "X.", ["le"]), "the label 'le'"),
        (lambda m: m.histogram("a_seconds", "X.", buckets=[2, 1]), "rising numbers"),
        (lambda m: m.histogram("a_seconds", "X.", buckets="a"), "not numbers"),
        (lambda m: m.counter("x_total", "X.").inc(-1), "cannot grow by -1"),
        (lambda m: m.counter("x_total", "X.").inc("a"), "must be a number"),
        (lambda m: m.counter("x_total", "X.").inc(card=1), "has the labels none, not card"),
        (lambda m: m.gauge("heat", "X.", ["card"]).set(1), "has the labels card, not none"),
        (lambda m: [m.gauge(f"heat{i}", "X.") for i in range(101)], "more than the 100 metrics"),
    ],
)
def test_a_wrong_declaration_or_use_raises_an_error(use: Callable[[Any], object], text: str) -> None:
    with pytest.raises(DriverError, match=text):
        use(DriverMetrics("gpu.example.com"))


def test_concurrent_threads_lose_no_event() -> None:
    metrics = DriverMetrics("gpu.example.com")

    def count() -> None:
        for _ in range(2000):
            metrics.counter("events_total", "Events.").inc()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.counter("events_total", "Events.").value() == 8000
