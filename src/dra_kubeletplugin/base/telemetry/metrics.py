"""The metrics of a plugin or controller, as a page in Prometheus' text format."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.validation import enable_legacy_validation

from ...errors import describe
from .log_once import LogOnce

log = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 45.0)
"""The upper bounds of a histogram's buckets by default, in seconds."""
disable_created_metrics()  # type: ignore[no-untyped-call]  # otherwise each counter has a further series
enable_legacy_validation()  # type: ignore[no-untyped-call]  # otherwise names that Prometheus rejects or renames are accepted
PREFIX = "dra_"
COUNTERS = {
    "requests_total": (
        "Claims in the kubelet's prepare and unprepare calls, by operation and result: ok, or the reason of the error.",
        ["operation", "result"],
    ),
    "slice_writes_total": ("Writes of ResourceSlices, by verb.", ["verb"]),
    "publish_errors_total": ("Failed attempts to publish ResourceSlices.", []),
    "reconcile_actions_total": ("Claims that reconcile passes changed or could not change, by action.", ["action"]),
    "rollback_failures_total": ("Failed attempts to roll back or unprepare a claim. Each is retried.", []),
    "records_damaged_total": (
        "Damaged files of claim records that have no copy, counted when the plugin reads them.",
        [],
    ),
    "discovery_failures_total": ("Calls of the driver's devices() or pools() that failed.", []),
    "health_failures_total": ("Calls of the driver's health() that failed.", []),
    "dropped_fields_total": ("Fields that the API server dropped from ResourceSlices.", []),
    "status_reports_total": ("Writes of device status to claims, by result: written, dropped or failed.", ["result"]),
    "events_total": (
        "Events about claims, pods and the node, by result: written, failed, forbidden or dropped.",
        ["result"],
    ),
    "binds_total": (
        "Calls of the driver's bind() and unbind() by the controller, by operation and result: ok, failed or retried.",
        ["operation", "result"],
    ),
    "claim_process_ends_total": ("Processes of prepared claims that ended by themselves.", []),
    "kubelet_calls_total": ("Calls of the kubelet, by gRPC method.", ["method"]),
}
GAUGES = {
    "claims_in_flight": ("Claims that are being prepared, unprepared or rolled back now.", []),
    "rollbacks_failing": ("Claims whose rollback failed and is retried. Their devices stay held.", []),
    "deleted_claims_held": (
        "Prepared claims that were deleted or deallocated, and keep their devices because a pod of the node may still use them.",
        [],
    ),
    "prepared_claims": ("Claims that are prepared on this node.", []),
    "claim_processes": ("Processes of prepared claims that run.", []),
    "devices": ("Devices of the driver, by health.", ["health"]),
    "devices_not_published": (
        "Devices and counter sets that are not published: the API server would reject them, or a feature gate is off.",
        [],
    ),
    "discovery_hanging": ("1 while the driver's devices() or pools() does not return.", []),
    "discovery_last_success_timestamp_seconds": (
        "When the driver's devices() or pools() last succeeded, in seconds since 1970.",
        [],
    ),
    "slices": ("Published ResourceSlices.", []),
    "pools": ("Published pools.", []),
    "driver_check_failing": ("1 for each of the driver's own checks that finds a problem.", ["check"]),
    "feature_gate_disabled": (
        "1 for each feature gate that this driver uses and that is off in the API server.",
        ["gate"],
    ),
    "publisher": ("1 while this instance of the plugin publishes the node's ResourceSlices.", []),
    "publish_failing": ("1 while the ResourceSlices differ from the driver's devices, or their watch fails.", []),
    "leader": ("1 while this replica of the controller leads.", []),
    "bound_claims": ("Claims for which the controller has called bind() and not yet unbind().", []),
    "registered": ("1 while the plugin is registered with the kubelet.", []),
    "records_healthy": ("1 while the claim records can be read and written.", []),
}
HISTOGRAMS = {
    "request_duration_seconds": ("Duration of the kubelet's prepare and unprepare calls.", ["operation"]),
    "registration_duration_seconds": ("Time from the start until the kubelet registered the plugin.", []),
}


class Metrics:
    """All metrics of one plugin. Safe to use from any thread.

    A name or label that is not in the tables above is a fault of the caller, and raises ``KeyError`` or ``ValueError``.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._added: list[CollectorRegistry] = []
        self._logged = LogOnce()
        self._counters = {n: Counter(PREFIX + n, *about, registry=registry) for n, about in COUNTERS.items()}
        self._gauges = {n: Gauge(PREFIX + n, *about, registry=registry) for n, about in GAUGES.items()}
        self._histograms = {
            n: Histogram(PREFIX + n, *about, registry=registry, buckets=BUCKETS) for n, about in HISTOGRAMS.items()
        }

    def add(self, registry: CollectorRegistry) -> None:
        """Adds the metrics of ``registry`` to the page. If they cannot be read, the page has only the others."""
        self._added.append(registry)

    def inc(self, name: str, amount: float = 1, **labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).set(value)

    def measure(self, name: str, read: Callable[[], float]) -> None:
        """Makes ``read`` provide the gauge's value at each scrape, so that it is current. It must neither wait nor raise."""
        self._gauges[name].set_function(read)

    def observe(self, name: str, value: float, **labels: str) -> None:
        histogram = self._histograms[name]
        (histogram.labels(**labels) if labels else histogram).observe(value)

    @contextlib.contextmanager
    def timed(self, name: str, **labels: str) -> Iterator[None]:
        histogram = self._histograms[name]
        with (histogram.labels(**labels) if labels else histogram).time():
            yield

    def text(self) -> bytes:
        """Returns all metrics as a page of type :data:`CONTENT_TYPE`."""
        page = generate_latest(self._registry)
        for added in self._added:
            try:
                page += generate_latest(added)
            except Exception as e:  # for example of a function that provides the value of a driver's gauge
                if self._logged.is_new("added", describe(e)):
                    log.warning("the driver's own metrics are missing in /metrics: %s", describe(e), exc_info=e)
        return page
