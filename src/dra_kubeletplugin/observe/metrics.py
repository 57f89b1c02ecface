"""Counters and gauges. Nothing is imported and nothing kept unless somebody asks for /metrics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

PREFIX = "dra_"
_COUNTERS = {
    "requests_total": ("Claims handled, by operation and result (ok or the error's reason).", ["operation", "result"]),
    "slice_writes_total": ("Writes of ResourceSlices, by verb.", ["verb"]),
    "publish_errors_total": ("Failed attempts to publish.", []),
    "reconciled_total": ("What reconciling did, by action.", ["action"]),
    "undo_failures_total": ("Undo steps that failed and will be tried again.", []),
    "records_damaged_total": ("Times that the record database was set aside.", []),
    "scan_failures_total": ("Looks at the devices that failed.", []),
    "dropped_fields_total": ("Fields that the API server dropped from slices.", []),
    "kubelet_calls_total": ("Calls of the kubelet, by method.", ["method"]),
}
_GAUGES = {
    "in_flight": ("Claims being worked on.", []),
    "prepared_claims": ("Claims that are prepared on this node.", []),
    "devices": ("Devices of this node, by health.", ["health"]),
    "devices_left_out": (
        "Devices and counter sets that are not published, because the API server would refuse them.",
        [],
    ),
    "scan_hanging": ("1 while devices() of the driver does not return.", []),
    "last_scan_timestamp_seconds": ("When devices() last succeeded, in unix seconds.", []),
    "slices": ("Published ResourceSlices.", []),
    "publisher": ("1 while this instance is the one that publishes for the node.", []),
    "publish_fault": ("1 while the slices are not as they should be.", []),
    "registered": ("1 while the kubelet accepts this plugin.", []),
    "records_healthy": ("1 while the record database can be read and written.", []),
}
_HISTOGRAMS = {
    "request_seconds": ("Time for one call of the kubelet.", ["operation"]),
    "registration_seconds": ("From start until the kubelet accepted this plugin.", []),
}
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 45)


class Metrics:
    """All metrics of one plugin.

    Without :meth:`enable` every call does nothing: prometheus_client costs 14 MiB.
    """

    def __init__(self) -> None:
        self._all: dict[str, Any] = {}
        self._registry: Any = None

    def enable(self) -> None:
        """Raises ``ImportError`` where prometheus_client is not installed."""
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = CollectorRegistry()
        kinds: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
            (Counter, _COUNTERS, {}),
            (Gauge, _GAUGES, {}),
            (Histogram, _HISTOGRAMS, {"buckets": _BUCKETS}),
        ]
        for kind, table, options in kinds:
            for name, (text, labels) in table.items():
                self._all[name] = kind(PREFIX + name, text, labels, registry=self._registry, **options)

    def text(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def _metric(self, name: str, labels: dict[str, str]) -> Any:
        metric = self._all.get(name)
        return metric.labels(**labels) if metric is not None and labels else metric

    def inc(self, name: str, amount: float = 1, **labels: str) -> None:
        if metric := self._metric(name, labels):
            metric.inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        if metric := self._metric(name, labels):
            metric.set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        if metric := self._metric(name, labels):
            metric.observe(value)

    @contextlib.contextmanager
    def timed(self, name: str, **labels: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.observe(name, time.perf_counter() - start, **labels)
