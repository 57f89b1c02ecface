"""Prometheus' text format for one metric with all its series.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, "Text-based format", version 0.0.4.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 45.0, math.inf)
"""The upper bounds of a histogram's buckets by default, in seconds."""
Values = tuple[str, ...]
Read = Callable[[], float | None]


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass
class Distribution:
    """Number of observations per bucket; each observation counts in the first bucket that it fits."""

    counts: list[int]
    sum: float = 0.0


@dataclass
class Family:
    """All series of one name, by label values. It has no lock."""

    name: str
    kind: Kind
    help: str
    labels: Sequence[str]
    bounds: Sequence[float] = BUCKETS
    values: dict[Values, float] = field(default_factory=dict)
    reads: dict[Values, Read] = field(default_factory=dict)
    distributions: dict[Values, Distribution] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Adds the only series of a metric without labels: 0 before the first event, so that rates are correct."""
        if not self.labels and self.kind is Kind.HISTOGRAM:
            self.distribution(())
        elif not self.labels:
            self.values[()] = 0.0

    def distribution(self, key: Values) -> Distribution:
        return self.distributions.setdefault(key, Distribution([0] * len(self.bounds)))

    def observe(self, key: Values, value: float) -> None:
        distribution = self.distribution(key)
        distribution.counts[bisect.bisect_left(self.bounds, value)] += 1
        distribution.sum += value

    def header(self) -> Iterator[str]:
        yield f"# HELP {self.name} {_escaped(self.help)}"
        yield f"# TYPE {self.name} {self.kind.value}"

    def lines(self, measured: Mapping[Values, float] | None = None) -> Iterator[str]:
        """Yields the lines of all series. ``measured`` are values of gauges that were read now."""
        for key, value in {**self.values, **(measured or {})}.items():
            yield _sample(self.name, self.labels, key, value)
        for key, distribution in self.distributions.items():
            labels, total = [*self.labels, "le"], 0
            for bound, count in zip(self.bounds, distribution.counts, strict=True):
                total += count
                yield _sample(f"{self.name}_bucket", labels, (*key, _number(bound)), total)
            yield _sample(f"{self.name}_sum", self.labels, key, distribution.sum)
            yield _sample(f"{self.name}_count", self.labels, key, total)


def _sample(name: str, labels: Sequence[str], key: Values, value: float) -> str:
    pairs = ",".join(f'{label}="{_quoted(text)}"' for label, text in zip(labels, key, strict=True))
    return f"{name}{'{' + pairs + '}' if pairs else ''} {_number(value)}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
