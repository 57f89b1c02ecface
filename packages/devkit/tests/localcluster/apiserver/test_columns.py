"""Durations in the tables of `kubectl get`. Upstream: duration_test.go, TestHumanDurationBoundaries."""

from __future__ import annotations

import pytest

from dra_devkit.localcluster.apiserver.columns import duration

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86400, 31536000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (2 * MINUTE - 1, "119s"),
        (3 * MINUTE, "3m"),
        (3 * MINUTE + 20, "3m20s"),
        (10 * MINUTE + 1, "10m"),
        (3 * HOUR - 1, "179m"),
        (3 * HOUR + 5 * MINUTE, "3h5m"),
        (8 * HOUR + 5 * MINUTE, "8h"),
        (2 * DAY - 1, "47h"),
        (3 * DAY + 4 * HOUR, "3d4h"),
        (8 * DAY + 4 * HOUR, "8d"),
        (2 * YEAR - 1, "729d"),
        (2 * YEAR, "2y"),
        (2 * YEAR + 35 * DAY, "2y35d"),
        (8 * YEAR - 1, "7y364d"),
        (8 * YEAR + DAY, "8y"),
    ],
)
def test_a_duration_has_the_units_that_kubectl_shows(seconds: float, text: str) -> None:
    assert duration(seconds) == text
