"""Metrics that a driver declares. The plugin and the controller serve them in ``/metrics``, after the metrics of the framework."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import re
import threading
import time
from collections.abc import Iterator, Sequence

from ..base.telemetry.exposition import BUCKETS, Family, Kind, Values
from ..errors import DriverError, clip, shown

log = logging.getLogger(__name__)
MAX_SERIES = 200
"""Combinations of label values of one metric. Further combinations are counted together, or ignored by a gauge: each series costs memory
in Prometheus for weeks."""
_MAX_METRICS = 100
_MAX_LABELS = 5
_MAX_BUCKETS = 30
_MAX_VALUE = 128  # bytes of a label's value
_OTHER = "other"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MAX_NAME = 80
_RESERVED = ("_total", "_count", "_sum", "_bucket", "_created", "_info")  # endings with a meaning in Prometheus


class _Metric:
    """One metric of a driver. Its methods may be called in any thread."""

    def __init__(self, family: Family, lock: threading.Lock) -> None:
        self._family = family
        self._lock = lock

    def value(self, **labels: object) -> float:
        """Returns the value of one series, for tests; 0 if there is none. For a histogram: the number of observations."""
        key = self._key(labels)
        with self._lock:
            if distribution := self._family.distributions.get(key):
                return sum(distribution.counts)
            return self._family.values.get(key, 0.0)

    def _key(self, labels: dict[str, object]) -> Values:
        if labels.keys() != set(self._family.labels):
            names = ", ".join(self._family.labels) or "none"
            raise DriverError(f"metric {self._family.name} has the labels {names}, not {', '.join(labels) or 'none'}")
        return tuple(clip(labels[label], _MAX_VALUE) for label in self._family.labels)

    def _bounded(self, key: Values) -> Values | None:
        """Returns the key of the series to change. Above the limit, that is one series for all; None for a gauge. Needs the lock."""
        family = self._family
        series = family.distributions if family.kind is Kind.HISTOGRAM else family.values
        if key in series or len(series) < MAX_SERIES:
            return key
        other = (_OTHER,) * len(key)
        if other not in series and family.kind is not Kind.GAUGE:
            log.warning(
                "metric has more than %d combinations of labels; further ones are counted as %s: %s",
                MAX_SERIES,
                _OTHER,
                family.name,
            )
        return None if family.kind is Kind.GAUGE else other


class Counter(_Metric):
    """A number that only grows while the process runs."""

    def inc(self, amount: float = 1, /, **labels: object) -> None:
        """Adds ``amount``. Raises :class:`DriverError` for a wrong label, or an amount below 0."""
        number = _number(self._family, amount)
        if not 0 <= number < math.inf:
            raise DriverError(f"counter {self._family.name} cannot grow by {shown(amount)}")
        key = self._key(labels)
        with self._lock:
            if (to := self._bounded(key)) is not None:
                self._family.values[to] = self._family.values.get(to, 0.0) + number


class Gauge(_Metric):
    """A number that grows and shrinks."""

    def set(self, value: float, /, **labels: object) -> None:
        """Sets the value. Raises :class:`DriverError` for a wrong label."""
        key, number = self._key(labels), _number(self._family, value)
        with self._lock:
            if (to := self._bounded(key)) is not None:
                self._family.values[to] = number

    def remove(self, **labels: object) -> None:
        """Removes a series, for example of a device that no longer exists."""
        key = self._key(labels)
        with self._lock:
            self._family.values.pop(key, None)


class Histogram(_Metric):
    """How often values were within certain bounds."""

    def observe(self, value: float, /, **labels: object) -> None:
        """Counts a value. Raises :class:`DriverError` for a wrong label."""
        key, number = self._key(labels), _number(self._family, value)
        if math.isnan(number):
            raise DriverError(f"histogram {self._family.name} cannot count {shown(value)}")
        with self._lock:
            if (to := self._bounded(key)) is not None:
                self._family.observe(to, number)

    @contextlib.contextmanager
    def timed(self, **labels: object) -> Iterator[None]:
        """Counts the seconds of a ``with`` block, also if it raises."""
        self._key(labels)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.observe(time.perf_counter() - began, **labels)


class DriverMetrics:
    """Declares and keeps the metrics of one driver object.

    Args:
        driver: the driver's name; the prefix of all names is made from it.
    """

    def __init__(self, driver: str) -> None:
        prefix = re.sub("[^a-z0-9]", "_", driver)
        self.prefix = f"{prefix}_" if prefix[:1].isalpha() else f"driver_{prefix}_"
        self._lock = threading.Lock()
        self._metrics: dict[str, _Metric] = {}

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """Returns the counter of this name, and declares it with the first call.

        Args:
            name: ends in ``_total``, such as ``partitions_created_total``. In ``/metrics``, it begins with :attr:`prefix`.
            help: one sentence for operators.
            labels: names of at most 5 labels. Their values must be few: 200 combinations are kept for each metric.

        Raises:
            DriverError: the declaration is invalid, or differs from an earlier one of this name.
        """
        if not isinstance(name, str) or not name.endswith("_total"):
            raise DriverError(f"the name of counter {shown(name)} must end in _total")
        found = self._declare(Kind.COUNTER, name, name.removesuffix("_total"), help, labels, BUCKETS)
        assert isinstance(found, Counter)
        return found

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        """Returns the gauge of this name, see :meth:`counter`. Its name has no special ending, such as ``temperature_celsius``."""
        found = self._declare(Kind.GAUGE, name, name, help, labels, BUCKETS)
        assert isinstance(found, Gauge)
        return found

    def histogram(
        self, name: str, help: str, labels: Sequence[str] = (), buckets: Sequence[float] = BUCKETS
    ) -> Histogram:
        """Returns the histogram of this name, see :meth:`counter`. Its name has the unit, such as ``partition_duration_seconds``.

        Args:
            buckets: rising upper bounds, at most 30; by default from 1 ms to 45 s.
        """
        try:
            bounds = tuple(float(b) for b in buckets if b != math.inf)
        except (TypeError, ValueError):
            raise DriverError(f"the buckets of histogram {shown(name)} are {shown(buckets)}, not numbers") from None
        rising = all(a < b for a, b in itertools.pairwise(bounds))
        if not bounds or not rising or len(bounds) > _MAX_BUCKETS:
            raise DriverError(f"the buckets of histogram {shown(name)} must be 1 to {_MAX_BUCKETS} rising numbers")
        found = self._declare(Kind.HISTOGRAM, name, name, help, labels, (*bounds, math.inf))
        assert isinstance(found, Histogram)
        return found

    def lines(self) -> list[str]:
        """Returns the lines of ``/metrics``. For the framework."""
        with self._lock:
            metrics = list(self._metrics.values())
        out: list[str] = []
        for metric in metrics:
            with metric._lock:
                out += [*metric._family.header(), *metric._family.lines()]
        return out

    def _declare(
        self, kind: Kind, name: str, stem: str, help: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> _Metric:
        what = f"{kind.value} {shown(name)}"
        if not isinstance(name, str) or len(name) > _MAX_NAME or not _NAME.fullmatch(stem) or stem.endswith(_RESERVED):
            raise DriverError(
                f"{what}: a name has at most {_MAX_NAME} lower case letters, digits and '_', begins with a letter, and does not "
                f"end in {', '.join(_RESERVED[1:])}; only that of a counter ends in _total"
            )
        if not isinstance(help, str) or not help.strip():
            raise DriverError(f"{what} has no help text: write a sentence for operators")
        if isinstance(labels, str) or len(labels) > _MAX_LABELS or len(set(labels)) != len(labels):
            raise DriverError(
                f"{what}: labels are {shown(labels)}, not a list of at most {_MAX_LABELS} different names"
            )
        for label in labels:
            if not isinstance(label, str) or not _NAME.fullmatch(label) or label == "le":
                raise DriverError(f"{what} has the label {shown(label)}: use lower case letters, digits and '_'")
        family = Family(self.prefix + name, kind, clip(help), tuple(labels), tuple(bounds))
        with self._lock:
            if known := self._metrics.get(name):
                before = known._family
                if (before.kind, before.labels, before.bounds) != (kind, family.labels, family.bounds):
                    raise DriverError(f"{what} is declared twice, with another kind, other labels or other buckets")
                return known
            if len(self._metrics) >= _MAX_METRICS:
                raise DriverError(f"{what} is more than the {_MAX_METRICS} metrics that a driver may have")
            made = {Kind.COUNTER: Counter, Kind.GAUGE: Gauge, Kind.HISTOGRAM: Histogram}[kind](family, threading.Lock())
            self._metrics[name] = made
        return made


def _number(family: Family, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise DriverError(f"metric {family.name} cannot have the value {shown(value)}: it must be a number") from None


__all__ = ["MAX_SERIES", "Counter", "DriverMetrics", "Gauge", "Histogram"]
