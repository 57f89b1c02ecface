"""Tables of `kubectl get`. Upstream: duration_test.go, TestHumanDurationBoundaries; KEP-5677, "kubectl Integration"."""

from __future__ import annotations

from typing import Any

import pytest

from dra_devkit.localcluster.apiserver.columns import COLUMNS, duration, table

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


def pool(**counts: int) -> dict[str, int]:
    return {f"{name}Devices": count for name, count in counts.items()}


COMPLETE, FAILED = ({"type": kind, "lastTransitionTime": "2026-01-01T00:00:00Z"} for kind in ("Complete", "Failed"))
FULL, HALF = (
    pool(total=4, available=1, allocated=2, unavailable=1),
    pool(total=2, available=2, allocated=0, unavailable=0),
)


@pytest.mark.parametrize(
    ("status", "cells"),
    [
        (None, [0, 0, 0, 0, 0, 0, "Pending"]),
        ({"poolCount": 2, "pools": [FULL, HALF], "conditions": [COMPLETE]}, [6, 3, 2, 1, 0, 2, "Complete"]),
        (
            {"poolCount": 3, "pools": [FULL, {"validationError": "x"}], "conditions": [COMPLETE]},
            [4, 1, 2, 1, 1, 3, "Complete (2/3 pools)"],
        ),
        ({"poolCount": 0, "conditions": [FAILED]}, [0, 0, 0, 0, 0, 0, "Failed"]),
    ],
)
def test_the_row_of_a_pool_status_request_sums_its_pools(status: Any, cells: list[Any]) -> None:
    request = {"metadata": {"name": "check"}, "spec": {"driver": "d"}} | ({"status": status} if status else {})
    found = table(COLUMNS["resourcepoolstatusrequests.resource.k8s.io"], [request], {})
    names = [column["name"] for column in found["columnDefinitions"]]
    assert names[2:9] == ["Total", "Available", "Allocated", "Unavailable", "Errors", "Pools", "Status"]
    assert found["rows"][0]["cells"][:9] == ["check", "d", *cells]
