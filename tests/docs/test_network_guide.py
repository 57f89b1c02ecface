"""The hook of docs/guides/network.md moves an interface with its address into a real container."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_devkit.localcluster.runtime.images import Images
from dra_devkit.localcluster.runtime.interface import ContainerConfig, ContainerState, LogOptions, Role, Sandbox
from dra_devkit.localcluster.runtime.runc import Runc
from dra_devkit.localcluster.runtime.runc_runtime import RuncRuntime
from dra_devkit.testing import node_with
from dra_kubeletplugin.driver import load_driver
from tests.helpers.pages import Page
from tests.tools.tree import ROOT

pytestmark = [pytest.mark.runc, pytest.mark.netns]
NAME_IN_GUIDE = "dranic0"
NIC, PEER = (
    f"dra{os.getpid()}n0",
    f"dra{os.getpid()}n1",
)  # Interfaces belong to the machine, where another run of this test may be active.


def ip(*args: str) -> str:
    return subprocess.run(["ip", *args], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def interface() -> Iterator[None]:
    ip("link", "add", NIC, "type", "veth", "peer", "name", PEER)
    yield
    with contextlib.suppress(
        subprocess.CalledProcessError
    ):  # The kernel deletes the interface with the network namespace of its peer.
        ip("link", "delete", PEER)


@pytest.mark.usefixtures("interface")
async def test_the_hook_of_the_guide_moves_an_interface_into_a_container(tmp_path: Path) -> None:
    files = Page.of((ROOT / "docs/guides/network.md").read_text()).files
    for name in ("nics.py", "host.yaml"):
        (tmp_path / name).write_text(files[name].replace(NAME_IN_GUIDE, NIC))
    nics = load_driver(str(tmp_path / "nics.py"))
    async with node_with(nics, host=tmp_path / "host.yaml") as node, contextlib.AsyncExitStack() as stack:
        await node.run_pod(parameters={"address": "192.0.2.7/24"})
        images, cdi = Images({}, tmp_path / "images"), node.plugin.settings.cdi_root
        runtime = RuncRuntime(tmp_path / "containers", images, [cdi], await Runc.find(tmp_path / "runc"))
        stack.push_async_callback(runtime.close)
        (record,) = await node.plugin.claims.store.all()
        uid = f"u-{os.getpid()}"  # The UID is part of the cgroup's name, and other processes run these tests at the same time.
        sandbox = Sandbox("default", "pod", uid, "pod", tmp_path / "pods")
        for name in (
            "first",
            "second",
        ):  # Both containers belong to one pod. The second finds the interface already moved.
            config = ContainerConfig(
                name=name,
                role=Role.MAIN,
                attempt=0,
                image="busybox:1.36",
                command=("sh", "-c", "ip address show net1"),
                cdi_devices=tuple(i for d in record.devices for i in d["cdi"]),
            )
            await runtime.start(sandbox, config)
            async with asyncio.timeout(60):
                while runtime.statuses(uid)[name].state is ContainerState.RUNNING:
                    await asyncio.sleep(0.02)
            output = b"".join([part async for part in runtime.logs(uid, name, LogOptions())]).decode()
            assert "inet 192.0.2.7/24" in output
            assert ",UP" in output
        assert NIC not in ip("-brief", "link")
