"""A running container, started by runc, sees the updates of its metadata file."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from dra_devkit.localcluster.runtime.images import Images
from dra_devkit.localcluster.runtime.interface import ContainerConfig, LogOptions, Role, Sandbox
from dra_devkit.localcluster.runtime.runc import Runc
from dra_devkit.localcluster.runtime.runc_runtime import RuncRuntime
from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, NetworkData, PreparedDevice

pytestmark = pytest.mark.runc


class NetworkDriver(Driver):
    name = "net.example.com"
    metadata = True

    def devices(self) -> list[Device]:
        return [Device("eth-0", attributes={"speed": 100})]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(ContainerEdits(env={"NIC": d.name})) for d in claim.devices]


async def test_a_running_container_sees_updates_and_never_a_partial_file(tmp_path: Path) -> None:
    """The driver updates the file in place. After a rename, the container would still read the first file."""
    async with node_with(NetworkDriver) as node, contextlib.AsyncExitStack() as stack:
        await node.run_pod()
        images, cdi = Images({}, tmp_path / "images"), node.plugin.settings.cdi_root
        runtime = RuncRuntime(tmp_path / "containers", images, [cdi], await Runc.find(tmp_path / "runc"))
        stack.push_async_callback(runtime.close)
        (record,) = await node.plugin.claims.store.all()
        ids = tuple(i for d in record.devices for i in d["cdi"])
        script = (
            "f=$(find /var/run/kubernetes.io -name '*-metadata.json'); while :; do "
            "dd if=$f of=/tmp/now bs=65536 count=1 2>/dev/null; "  # One read: a second read could see a later version.
            '[ $(grep -c "^}$" /tmp/now) = 2 ] || echo PARTIAL; '
            "grep -o '\"generation\": [0-9]*' /tmp/now | sort -u; grep -q eth1 /tmp/now && exit 0; sleep 0.01; done"
        )
        config = ContainerConfig(
            name="main", role=Role.MAIN, attempt=0, image="busybox:1.36", command=("sh", "-c", script), cdi_devices=ids
        )
        uid = f"u-{os.getpid()}"  # The UID is part of the cgroup's name, and other processes run these tests at the same time.
        await runtime.start(Sandbox("default", "pod", uid, "pod", tmp_path / "pods"), config)

        async def log_text() -> str:
            return b"".join([part async for part in runtime.logs(uid, "main", LogOptions())]).decode()

        async with asyncio.timeout(60):
            while '"generation": 1' not in await log_text():
                await asyncio.sleep(0.02)
            for i in range(20):
                await node.plugin.driver.update_metadata(
                    record.uid, record.devices[0]["request"], attributes={"i": "x" * i}
                )
            network = NetworkData(interface_name="eth1", ips=["10.0.0.2/24"])
            last = await node.plugin.driver.update_metadata(
                record.uid, record.devices[0]["request"], network_data=network
            )
            while f'"generation": {last}' not in (now := await log_text()):
                await asyncio.sleep(0.02)
        assert "PARTIAL" not in now
        seen = [int(line.rpartition(":")[2]) for line in now.splitlines()]
        assert seen == sorted(seen)
