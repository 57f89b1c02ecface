"""A driver returns device metadata for containers, but its metadata files are not enabled."""

from __future__ import annotations

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, Device, Driver, PreparedDevice


class Forgetful(Driver):
    name = "forgetful.example.com"

    def devices(self) -> list[Device]:
        return [Device("eth-0"), Device("eth-1")]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(metadata={"queues": 8}) for d in claim.devices]


async def test_metadata_that_no_container_gets_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async with node_with(Forgetful) as node:
        await node.run_pod("a")
        await node.run_pod("b")
    warnings = [r.getMessage() for r in caplog.records if "returned metadata of devices" in r.getMessage()]
    assert warnings == [
        "prepare() returned metadata of devices, but containers do not get it: set metadata = True in class Forgetful"
    ]
