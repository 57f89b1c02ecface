"""The runtime that runs nothing keeps to what the kubelet expects of any."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from dra_kubeletplugin.local.runtime.interface import (
    ContainerConfig,
    ContainerError,
    ContainerRuntime,
    LogOptions,
    Mount,
    Role,
    Sandbox,
    State,
)
from dra_kubeletplugin.local.runtime.simulated import SimulatedRuntime

SANDBOX = Sandbox("default", "pod", "uid", "pod", Path("/nowhere"))
DEVICE = "example.com/gpu=one"


@pytest.fixture
def runtime(tmp_path: Path) -> SimulatedRuntime:
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    edits = {"env": ["GPU=one"]}
    spec = {"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": [{"name": "one", "containerEdits": edits}]}
    (cdi / "gpu.json").write_text(json.dumps(spec))
    made: ContainerRuntime = SimulatedRuntime(tmp_path / "containers", (cdi,))  # mypy holds it to the protocol
    assert isinstance(made, SimulatedRuntime)
    return made


async def test_a_container_runs_with_its_devices_until_it_ends(runtime: SimulatedRuntime) -> None:
    mount = Mount(Path("/host/data"), "/data", read_only=True)
    config = ContainerConfig("main", Role.MAIN, 0, "busybox", env=(("A", "b"),), cdi_devices=(DEVICE,), mounts=(mount,))
    status = await runtime.start(SANDBOX, config)
    assert status.state is State.RUNNING
    assert status.simulated
    spec = runtime.spec("uid", "main")
    assert spec["process"]["env"][-2:] == ["A=b", "GPU=one"]
    assert {"destination": "/data", "type": "bind", "source": "/host/data", "options": ["rbind", "ro"]} in spec[
        "mounts"
    ]
    following = runtime.changes()
    heard = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    runtime.end("uid", "main", 3)
    assert await heard == "uid"
    ended = runtime.statuses("uid")["main"]
    assert (ended.state, ended.exit_code, ended.reason) == (State.EXITED, 3, "Error")
    assert b"GPU=one" in b"".join([part async for part in runtime.logs("uid", "main", LogOptions())])


async def test_an_init_container_ends_at_once(runtime: SimulatedRuntime) -> None:
    status = await runtime.start(SANDBOX, ContainerConfig("init", Role.INIT, 0, "busybox"))
    assert (status.state, status.exit_code) == (State.EXITED, 0)


async def test_a_device_that_cannot_be_resolved_is_told_in_containerds_words(runtime: SimulatedRuntime) -> None:
    config = ContainerConfig("main", Role.MAIN, 0, "busybox", cdi_devices=("example.com/gpu=two",))
    with pytest.raises(ContainerError, match="CDI device injection failed: unresolvable CDI devices"):
        await runtime.start(SANDBOX, config)
    assert runtime.pods() == set()


async def test_what_is_removed_or_lost_in_a_reboot_is_not_known(runtime: SimulatedRuntime) -> None:
    for uid in ("a", "b"):
        await runtime.start(
            Sandbox("default", uid, uid, uid, Path("/nowhere")), ContainerConfig("m", Role.MAIN, 0, "i")
        )
    await runtime.stop("a", "m", 0)
    assert runtime.statuses("a")["m"].state is State.EXITED
    await runtime.remove("a")
    assert runtime.pods() == {"b"}
    await runtime.reboot()
    assert runtime.pods() == set()
    assert runtime.statuses("b") == {}
    with pytest.raises(KeyError):
        runtime.spec("b", "m")
