"""A driver's own metrics: what it counts is in /metrics under its name, and mistakes are found where they are written."""

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


class Cards(Driver):
    name = "7-cards.example.com"

    def __init__(self) -> None:
        self.made = self.metrics.counter("parts_made_total", 'Parts that were made, by "profile".', ["profile"])

    def devices(self) -> list[Device]:
        return []

    def prepare(self, claim: Any) -> list[Any]:
        return []


def page(metrics: DriverMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    everything = Metrics()
    everything.add(metrics.lines)
    families = list(text_string_to_metric_families(everything.text().decode()))
    names = [f.name for f in families]
    assert len(names) == len(set(names))
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for f in families
        for s in f.samples
        if f.name.startswith(metrics.prefix)
    }


def test_metrics_can_be_declared_in_init_and_have_the_driver_s_prefix() -> None:
    driver = make(Cards)
    assert isinstance(driver, Cards)
    driver.made.inc(profile="1g")
    driver.made.inc(2.5, profile="1g")
    driver.made.inc(profile='a "b"\n')
    prefix = "driver_7_cards_example_com_"
    assert page(driver.metrics) == {
        (f"{prefix}parts_made_total", (("profile", "1g"),)): 3.5,
        (f"{prefix}parts_made_total", (("profile", 'a "b"'),)): 1.0,
    }
    assert driver.made.value(profile="1g") == 3.5


def test_an_attribute_of_the_driver_s_own_with_this_name_is_refused() -> None:
    class Own(Cards):
        def __init__(self) -> None:
            self.metrics = {"mine": 1}  # type: ignore[assignment]

    with pytest.raises(DriverError, match=r"sets self\.metrics, which the framework sets: rename your attribute"):
        make(Own)


def test_counters_gauges_and_histograms_are_what_prometheus_expects() -> None:
    metrics = DriverMetrics("gpu.example.com")
    assert page(metrics) == {}
    metrics.counter("resets_total", "Resets.")
    heat = metrics.gauge("temperature_celsius", "Heat.", ["card"])
    heat.set(41, card=3)
    heat.set(42, card=4)
    heat.remove(card=4)
    took = metrics.histogram("make_seconds", "Time.", buckets=[1, 2])
    took.observe(1.5)
    with took.timed(), pytest.raises(OSError):
        raise OSError
    assert took.value() == 2
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


def test_a_metric_that_is_declared_again_is_the_same_and_may_not_differ() -> None:
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


def test_labels_above_the_limit_are_counted_together_and_a_gauge_has_no_more_series(
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
    metrics.gauge("odd", "Odd.", ["x"]).set(1, x="\udc80" + "x" * 1000)
    assert max(map(len, metrics.lines())) < 200


@pytest.mark.parametrize(
    ("wrong", "text"),
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
def test_a_mistake_is_found_where_it_is_written(wrong: Callable[[Any], object], text: str) -> None:
    with pytest.raises(DriverError, match=text):
        wrong(DriverMetrics("gpu.example.com"))


def test_threads_count_each_event_once() -> None:
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
