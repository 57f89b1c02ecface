"""Metrics that a driver declares. The plugin and the controller serve them in ``/metrics``, after the metrics of the framework."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Self
from weakref import WeakValueDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from ..base.telemetry.metrics import BUCKETS
from ..errors import DriverError, clip

log = logging.getLogger(__name__)
MAX_SERIES = 200
"""Combinations of label values of one metric. Further combinations are counted together, or ignored by a gauge: each series costs memory
in Prometheus for weeks."""
_MAX_VALUE = 128  # bytes of a label's value
_OTHER = "other"


class _Limited(MetricWrapperBase):
    """A metric with a limit of series, because label values such as names of devices come from outside."""

    _series: WeakValueDictionary[object, MetricWrapperBase] | None = (
        None  # which ``remove`` and ``clear`` have not removed
    )
    _warned = False

    def labels(self, *labelvalues: object, **labelkwargs: object) -> Self:
        values = [clip(value, _MAX_VALUE) for value in labelvalues]
        named = {name: clip(value, _MAX_VALUE) for name, value in labelkwargs.items()}
        key = tuple(named.get(name) for name in self._labelnames) if named else tuple(values)
        if self._series is None:
            self._series = WeakValueDictionary()
        if key in self._series or len(self._series) < MAX_SERIES:
            self._series[key] = series = super().labels(*values, **named)
            return series
        if isinstance(self, Gauge):
            return type(self)("ignored", "", registry=None)
        if not self._warned:
            self._warned = True
            log.warning(
                "metric has more than %d combinations of labels; further ones are counted as %s: %s",
                MAX_SERIES,
                _OTHER,
                self,
            )
        return super().labels(*[_OTHER for _ in values], **dict.fromkeys(named, _OTHER))

    def remove(self, *labelvalues: object) -> None:
        super().remove(*[clip(value, _MAX_VALUE) for value in labelvalues])


class _Counter(_Limited, Counter):
    pass


class _Gauge(_Limited, Gauge):
    pass


class _Histogram(_Limited, Histogram):
    pass


class DriverMetrics(CollectorRegistry):
    """The metrics of one driver object, in the classes of ``prometheus_client``.

    Args:
        driver: the driver's name; the prefix of all names is made from it.
    """

    def __init__(self, driver: str) -> None:
        super().__init__()
        prefix = re.sub("[^a-z0-9]", "_", driver)
        self.prefix = f"{prefix}_" if prefix[:1].isalpha() else f"driver_{prefix}_"

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """Makes a counter.

        Args:
            name: ends in ``_total``, such as ``partitions_created_total``. In ``/metrics``, it begins with :attr:`prefix`.
            help: one sentence for operators.
            labels: names of labels. Their values must be few: 200 combinations are kept for each metric.

        Raises:
            DriverError: ``labels`` is a text.
            ValueError: the name or a label is invalid, or the driver has a metric of this name.
        """
        return _Counter(self.prefix + name, help, _names(labels), registry=self)

    def gauge(self, name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
        """Makes a gauge, see :meth:`counter`. Its name has no special ending, such as ``temperature_celsius``.

        A function that provides its value (``set_function``) runs on the event loop at each scrape, so it must not wait.
        """
        return _Gauge(self.prefix + name, help, _names(labels), registry=self)

    def histogram(
        self, name: str, help: str, labels: Sequence[str] = (), buckets: Sequence[float] = BUCKETS
    ) -> Histogram:
        """Makes a histogram, see :meth:`counter`. Its name has the unit, such as ``partition_duration_seconds``.

        Args:
            buckets: rising upper bounds; by default from 1 ms to 45 s.
        """
        return _Histogram(self.prefix + name, help, _names(labels), registry=self, buckets=buckets)


def _names(labels: Sequence[str]) -> Sequence[str]:
    if isinstance(labels, str):
        raise DriverError(f"labels are {labels!r}: write [{labels!r}]")
    return labels


__all__ = ["MAX_SERIES", "Counter", "DriverMetrics", "Gauge", "Histogram"]
