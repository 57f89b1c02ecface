from __future__ import annotations

import pytest

from dra_kubeletplugin.errors import ApiError
from examples.conftest import Example


def test_the_monitor_has_all_gpus_also_those_in_use(example: Example) -> None:
    example.node.run_pod("user", count=2)
    example.apply()
    assert example.gpus("monitor", namespace="gpu-monitoring") == [f"gpu-{i}" for i in range(8)]
    assert example.env("monitor", namespace="gpu-monitoring")["DRA_ADMIN_ACCESS"] == "true"
    example.node.run_pod("another", count=6)


def test_admin_access_is_forbidden_without_the_label(example: Example) -> None:
    with pytest.raises(ApiError, match="adminAccess: Forbidden"):
        example.node.apply_pod(admin_access=True)
