"""The simulated runtime behaves as the kubelet expects of every runtime."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dra_devkit.localcluster.runtime.interface import (
    ContainerConfig,
    ContainerError,
    ContainerRuntime,
    ContainerState,
    LogOptions,
    Mount,
    Role,
    Sandbox,
)
from dra_devkit.localcluster.runtime.simulated import SimulatedRuntime
from dra_devkit.localcluster.runtime.simulated_behavior import PREFIX, Behavior, behavior_of

SANDBOX = Sandbox("default", "pod", "uid", "pod", Path("/nowhere"))
DEVICE = "example.com/gpu=one"


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[SimulatedRuntime]:
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    edits = {"env": ["GPU=one"]}
    spec = {"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": [{"name": "one", "containerEdits": edits}]}
    (cdi / "gpu.json").write_text(json.dumps(spec))
    simulated: ContainerRuntime = SimulatedRuntime(
        tmp_path / "containers", (cdi,)
    )  # mypy checks that it implements the protocol
    assert isinstance(simulated, SimulatedRuntime)
    yield simulated
    await simulated.close()


async def test_a_container_runs_with_its_devices_until_it_ends(runtime: SimulatedRuntime) -> None:
    mount = Mount(Path("/host/data"), "/data", read_only=True)
    config = ContainerConfig("main", Role.MAIN, 0, "busybox", env=(("A", "b"),), cdi_devices=(DEVICE,), mounts=(mount,))
    status = await runtime.start(SANDBOX, config)
    assert status.state is ContainerState.RUNNING
    assert status.simulated
    spec = runtime.spec("uid", "main")
    assert spec["process"]["env"][-2:] == ["A=b", "GPU=one"]
    assert {
        "destination": "/data",
        "type": "bind",
        "source": "/host/data",
        "options": ["rbind", "rprivate", "ro"],
    } in spec["mounts"]
    following = runtime.changes()
    change = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    runtime.end("uid", "main", 3)
    assert await change == "uid"
    ended = runtime.statuses("uid")["main"]
    assert (ended.state, ended.exit_code, ended.reason) == (ContainerState.EXITED, 3, "Error")
    assert b"GPU=one" in b"".join([part async for part in runtime.logs("uid", "main", LogOptions())])


async def test_an_init_container_ends_immediately(runtime: SimulatedRuntime) -> None:
    status = await runtime.start(SANDBOX, ContainerConfig("init", Role.INIT, 0, "busybox"))
    assert (status.state, status.exit_code) == (ContainerState.EXITED, 0)


async def test_an_unresolvable_device_is_reported_with_containerds_message(runtime: SimulatedRuntime) -> None:
    config = ContainerConfig("main", Role.MAIN, 0, "busybox", cdi_devices=("example.com/gpu=two",))
    with pytest.raises(ContainerError, match="CDI device injection failed: unresolvable CDI devices"):
        await runtime.start(SANDBOX, config)
    assert runtime.pods() == set()


async def test_an_impossible_mount_starts_no_container(runtime: SimulatedRuntime, tmp_path: Path) -> None:
    edits = {"mounts": [{"hostPath": "/host/data", "containerPath": "/data"}]}
    spec = {"cdiVersion": "0.6.0", "kind": "example.com/disk", "devices": [{"name": "one", "containerEdits": edits}]}
    (tmp_path / "cdi" / "disk.json").write_text(json.dumps(spec))
    config = ContainerConfig("main", Role.MAIN, 0, "busybox", cdi_devices=("example.com/disk=one",))
    with pytest.raises(ContainerError, match='error mounting "/host/data" to rootfs at "/data": no such device'):
        await runtime.start(SANDBOX, config)


async def test_removed_and_rebooted_pods_are_unknown(runtime: SimulatedRuntime) -> None:
    for uid in ("a", "b"):
        await runtime.start(
            Sandbox("default", uid, uid, uid, Path("/nowhere")), ContainerConfig("m", Role.MAIN, 0, "i")
        )
    await runtime.stop("a", "m", 0)
    assert runtime.statuses("a")["m"].state is ContainerState.EXITED
    await runtime.remove("a")
    assert runtime.pods() == {"b"}
    await runtime.reboot()
    assert runtime.pods() == set()
    assert runtime.statuses("b") == {}
    with pytest.raises(KeyError):
        runtime.spec("b", "m")


async def test_the_log_shows_the_injected_environment_and_that_no_process_runs(runtime: SimulatedRuntime) -> None:
    config = ContainerConfig("main", Role.MAIN, 0, "busybox", ["run"], env=(("A", "b"),), cdi_devices=(DEVICE,))
    await runtime.start(SANDBOX, config)
    log_text = b"".join([part async for part in runtime.logs("uid", "main", LogOptions())]).decode()
    assert "simulated: no process runs" in log_text
    assert "environment injected:\n  GPU=one\n" in log_text
    assert "environment of the pod:\n  A=b\n" in log_text
    assert b"".join([part async for part in runtime.logs("uid", "main", LogOptions(tail=1))]) == b"  GPU=one\n"


def container_config(role: Role = Role.MAIN, attempt: int = 0, *command: str) -> ContainerConfig:
    return ContainerConfig("main", role, attempt, "busybox", command)


def pod(restart_policy: str = "Never", **annotations: str) -> Sandbox:
    prefixed = {f"{PREFIX}/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return Sandbox("default", "pod", "uid", "pod", Path("/nowhere"), prefixed, restart_policy=restart_policy)


@pytest.mark.parametrize(
    ("sandbox", "container", "expected"),
    [
        (pod("Always"), container_config(Role.MAIN, 0, "sleep", "5"), Behavior(None)),
        (pod(), container_config(Role.MAIN, 0, "sleep", "5"), Behavior(5.0)),
        (
            pod("OnFailure"),
            container_config(Role.MAIN, 0, "sh", "-c", "sleep 1.5; nvidia-smi; sleep 1m"),
            Behavior(61.5),
        ),
        (pod(), container_config(Role.MAIN, 0, "sleep", "infinity"), Behavior(None)),
        (pod(), container_config(Role.MAIN, 0, "tail", "-f", "/dev/null"), Behavior(None)),
        (pod(), container_config(Role.MAIN, 0, "/pause"), Behavior(None)),
        (pod(), container_config(Role.MAIN, 0, "nvidia-smi"), Behavior(1.0)),
        (pod(), container_config(Role.SIDECAR, 0, "sleep", "5"), Behavior(None)),
        (pod(), container_config(Role.INIT, 0, "sleep", "5"), Behavior(0.0)),
        (pod(), container_config(Role.MAIN, 0, "sh", "-c", "sleep 2; exit 3"), Behavior(2.0, 3)),
        (pod(), container_config(Role.MAIN, 0, "sh", "-c", "exit 3 || true"), Behavior(1.0, 0)),
        (pod(), container_config(Role.MAIN, 0, "/bin/false"), Behavior(1.0, 1)),
        (pod(exit_code="0"), container_config(Role.MAIN, 0, "false"), Behavior(1.0, 0)),
        (pod("Always", duration="1m30s"), container_config(), Behavior(90.0)),
        (pod(duration="forever"), container_config(), Behavior(None)),
        (pod("Always", exit_code="3"), container_config(), Behavior(1.0, 3)),
        (pod(duration="250ms", exit_code="1,0"), container_config(), Behavior(0.25, 1)),
        (pod(duration="250ms", exit_code="1, 0"), container_config(attempt=7), Behavior(0.25, 0)),
        (pod(**{"duration": "1s", "duration.main": "2s", "exit-code.other": "x"}), container_config(), Behavior(2.0)),
    ],
)
def test_the_duration_of_a_container_comes_from_annotations_or_its_command(
    sandbox: Sandbox, container: ContainerConfig, expected: Behavior
) -> None:
    assert behavior_of(sandbox, container) == expected


@pytest.mark.parametrize(
    "annotations",
    [{"duration": "soon"}, {"duration": "5"}, {"duration": "-1s"}, {"exit_code": "256"}, {"exit_code": "1;0"}],
)
async def test_an_invalid_annotation_starts_no_container(
    runtime: SimulatedRuntime, annotations: dict[str, str]
) -> None:
    with pytest.raises(ContainerError, match="must be"):
        await runtime.start(pod(**annotations), container_config())
    assert runtime.pods() == set()


async def test_a_container_ends_by_itself_and_its_previous_log_is_kept(runtime: SimulatedRuntime) -> None:
    change = asyncio.ensure_future(anext(runtime.changes()))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await runtime.start(pod(duration="1ms", exit_code="4"), container_config())
    assert await change == "uid"
    assert runtime.statuses("uid")["main"].exit_code == 4
    await runtime.start(pod(duration="forever"), container_config(attempt=1))
    assert [part async for part in runtime.logs("uid", "main", LogOptions(previous=True, follow=True))]
    assert runtime.statuses("uid")["main"].attempt == 1


async def test_exec_is_rejected_in_a_simulated_container(runtime: SimulatedRuntime) -> None:
    await runtime.start(pod("Always"), container_config())
    with pytest.raises(ContainerError, match="simulated here"):
        await runtime.exec("uid", "main", ["true"])
