"""The metrics of a plugin or controller, as a page in Prometheus' text format.

The official library is not used, because it costs 2.2 MiB of resident memory (it contains an HTTP server and client). The tests parse
this module's output with that library.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from .exposition import Family, Kind, Read, Values

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "dra_"
_COUNTERS = {
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
_GAUGES = {
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
_HISTOGRAMS = {
    "request_duration_seconds": ("Duration of the kubelet's prepare and unprepare calls.", ["operation"]),
    "registration_duration_seconds": ("Time from the start until the kubelet registered the plugin.", []),
}
Source = Callable[[], Iterable[str]]  # returns lines of the page


def page() -> str:
    """Returns the documentation page that lists all metrics, in Markdown."""
    lines = [
        "# Metrics",
        "",
        "Generated from `src/dra_kubeletplugin/base/telemetry/metrics.py` by `make docs`. `/metrics` of plugin and controller",
        "serves them in Prometheus' text format, if `HTTP_ADDRESS` is set. Names do not depend on the driver.",
        "A driver can have [metrics of its own](monitoring.md#metrics-of-a-driver).",
        "[Monitoring](monitoring.md) has alerts and a dashboard that use them.",
        "",
        "| name | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for kind, table in ((Kind.COUNTER, _COUNTERS), (Kind.GAUGE, _GAUGES), (Kind.HISTOGRAM, _HISTOGRAMS)):
        for name, (text, labels) in table.items():
            shown = ", ".join(f"`{label}`" for label in labels) or " "
            lines.append(f"| `{PREFIX}{name}` | {kind.value} | {shown} | {text} |")
    return "\n".join(lines) + "\n"


class Metrics:
    """All metrics of one plugin. Safe to use from any thread.

    Methods raise ``ValueError`` for a name or label that is not in the tables above, because this is a fault of the caller.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, Family] = {}
        self._sources: list[Source] = []
        self._complained: set[str] = set()
        for kind, table in ((Kind.COUNTER, _COUNTERS), (Kind.GAUGE, _GAUGES), (Kind.HISTOGRAM, _HISTOGRAMS)):
            for name, (text, labels) in table.items():
                self._families[name] = Family(PREFIX + name, kind, text, labels)

    def add(self, source: Source) -> None:
        """Adds the lines of ``source`` to the page. ``source`` must not raise."""
        self._sources.append(source)

    def inc(self, name: str, amount: float = 1, **labels: str) -> None:
        family, key = self._find(name, labels, Kind.COUNTER)
        with self._lock:
            family.values[key] = family.values.get(key, 0.0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        family, key = self._find(name, labels, Kind.GAUGE)
        with self._lock:
            family.values[key] = float(value)

    def measure(self, name: str, read: Read, **labels: str) -> None:
        """Makes ``read`` provide the gauge's value at each scrape, so that it is current. None means that the value is unknown.

        ``read`` must neither wait nor block.
        """
        family, key = self._find(name, labels, Kind.GAUGE)
        with self._lock:
            family.values.pop(key, None)
            family.reads[key] = read

    def observe(self, name: str, value: float, **labels: str) -> None:
        family, key = self._find(name, labels, Kind.HISTOGRAM)
        with self._lock:
            family.observe(key, value)

    @contextlib.contextmanager
    def timed(self, name: str, **labels: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.observe(name, time.perf_counter() - start, **labels)

    def text(self) -> bytes:
        """Returns all metrics as a page of type :data:`CONTENT_TYPE`."""
        lines: list[str] = []
        for family in self._families.values():
            lines += family.header()
            # Measured outside the lock, because a ``read`` function may itself change a metric.
            measured = self._measured(family)
            with self._lock:
                lines += family.lines(measured)
        for source in self._sources:
            lines += source()
        return ("\n".join(lines) + "\n").encode(errors="backslashreplace")

    def _find(self, name: str, labels: Mapping[str, str], kind: Kind) -> tuple[Family, Values]:
        family = self._families.get(name)
        if family is None or family.kind is not kind:
            raise ValueError(f"no {kind.value} is named {name!r}")
        if labels.keys() != set(family.labels):
            raise ValueError(f"{name} has labels {family.labels}, not {sorted(labels)}")
        return family, tuple(str(labels[label]) for label in family.labels)

    def _measured(self, family: Family) -> dict[Values, float]:
        out = {}
        for key, read in list(family.reads.items()):
            try:
                value = read()
            except Exception:
                if family.name not in self._complained:
                    self._complained.add(family.name)
                    log.exception("cannot read a metric, so it is left out: %s", family.name)
                continue
            if value is not None:
                out[key] = float(value)
        return out
