"""Why no claim of the suite can get a device."""

from __future__ import annotations

from typing import Any

import pytest

from dra_conformance.allocation import why_no_device

NODE = {"metadata": {"name": "node-1", "labels": {}}}


def slice_of(node: str, count: int, devices: list[dict[str, Any]]) -> dict[str, Any]:
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": count}
    spec = {"driver": "a.com", "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": "s", "uid": "1", "resourceVersion": "1"}, "spec": spec}


@pytest.mark.parametrize(
    ("slices", "reason"),
    [
        ([], "no ResourceSlice has the driver a.com"),
        ([slice_of("node-2", 1, [{"name": "d"}])], "its slices are for the node node-2, but NODE_NAME is node-1"),
        ([slice_of("node-1", 2, [{"name": "d"}])], "pool pool is incomplete: it has 1 of 2 slices of generation 1"),
        ([slice_of("node-1", 1, [])], "its 1 slices have no device for the node node-1"),
    ],
)
def test_the_reason_names_the_slices(slices: list[dict[str, Any]], reason: str) -> None:
    assert why_no_device("a.com", slices, NODE) == f"the driver publishes no usable device: {reason}"
