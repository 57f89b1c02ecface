"""Real containers run by runc: injected devices, exit codes and cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.localcluster.runtime.images import Images
from dra_devkit.localcluster.runtime.interface import (
    ContainerConfig,
    ContainerError,
    ContainerState,
    ContainerStatus,
    HandlerAction,
    HandlerOccasion,
    Limits,
    LogOptions,
    Mount,
    ProbeResult,
    Role,
    Sandbox,
)
from dra_devkit.localcluster.runtime.runc import Runc
from dra_devkit.localcluster.runtime.runc_runtime import RuncRuntime

pytestmark = pytest.mark.runc
UID = f"u1-{os.getpid()}"
"""UID of a pod. It is unique for each process, because the cgroups of containers contain it and tests run in parallel."""
CDI = {
    "cdiVersion": "0.6.0",
    "kind": "example.com/gpu",
    "devices": [
        {
            "name": "zero",
            "containerEdits": {"env": ["GPU=zero"], "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/zero"}]},
        }
    ],
}


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[RuncRuntime]:
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/gpu.json").write_text(json.dumps(CDI))
    runc = await Runc.find(tmp_path / "runc")
    runc_runtime = RuncRuntime(tmp_path / "containers", Images({}, tmp_path / "images"), [tmp_path / "cdi"], runc)
    yield runc_runtime
    await runc_runtime.close()
    assert await runc.list() == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def sandbox(tmp_path: Path, uid: str = UID, **fields: Any) -> Sandbox:
    return Sandbox("default", "pod", uid, "pod", tmp_path / "pods" / uid, **fields)


def shell(script: str, **fields: Any) -> ContainerConfig:
    defaults: dict[str, Any] = {"name": "main", "role": Role.MAIN, "attempt": 0, "image": "busybox:1.36"}
    return ContainerConfig(command=("sh", "-c", script), **defaults | fields)


async def wait_until_exited(runtime: RuncRuntime, uid: str = UID, name: str = "main") -> ContainerStatus:
    async with asyncio.timeout(60):
        changes = runtime.changes()
        while (status := runtime.statuses(uid)[name]).state is ContainerState.RUNNING:
            waiting = asyncio.ensure_future(anext(changes))  # type: ignore[arg-type]
            await asyncio.wait({waiting}, timeout=0.1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            changes = runtime.changes()
    return status


async def read_logs(runtime: RuncRuntime, uid: str = UID, name: str = "main", **options: Any) -> str:
    return b"".join([part async for part in runtime.logs(uid, name, LogOptions(**options))]).decode()


async def output(runtime: RuncRuntime, tmp_path: Path, script: str, **fields: Any) -> str:
    await runtime.start(sandbox(tmp_path), shell(script, **fields))
    await wait_until_exited(runtime)
    return await read_logs(runtime)


async def test_a_container_has_its_devices_environment_and_exit_code(runtime: RuncRuntime, tmp_path: Path) -> None:
    script = "echo $GPU $NAME; head -c 3 /dev/gpu0 | od -An -tx1; echo done > /dev/termination-log; exit 3"
    status = await runtime.start(
        sandbox(tmp_path), shell(script, env=[("NAME", "value")], cdi_devices=["example.com/gpu=zero"])
    )
    assert status.state is ContainerState.RUNNING
    status = await wait_until_exited(runtime)
    assert (status.exit_code, status.reason, status.message) == (3, "Error", "done\n")
    assert await read_logs(runtime) == "zero value\n 00 00 00\n"
    assert runtime.spec(UID, "main")["linux"]["devices"][0]["path"] == "/dev/gpu0"


async def test_a_container_can_open_only_its_own_devices(runtime: RuncRuntime, tmp_path: Path) -> None:
    disk = next((p for p in Path("/dev").iterdir() if p.is_block_device()), None)
    if disk is None:
        pytest.skip("no block device on this machine")
    numbers = disk.stat().st_rdev
    script = f"mknod /tmp/disk b {os.major(numbers)} {os.minor(numbers)}; head -c 1 /tmp/disk"
    assert "Operation not permitted" in await output(runtime, tmp_path, script)


async def test_containers_of_a_pod_share_a_separate_network_and_host_name(runtime: RuncRuntime, tmp_path: Path) -> None:
    await runtime.start(sandbox(tmp_path), shell("nc -ll -p 8000 -e echo hello", name="server"))
    script = "until nc 127.0.0.1 8000 < /dev/null; do sleep 0.02; done; hostname; ls /sys/class/net"
    await runtime.start(sandbox(tmp_path), shell(script, name="client"))
    await wait_until_exited(runtime, name="client")
    lines = [w for w in (await read_logs(runtime, name="client")).split("\n") if w and "refused" not in w]
    assert lines[:2] == ["hello", "pod"]
    assert set(lines[2:]) <= {
        "lo",
        "sit0",
        "tunl0",
        "ip6tnl0",
        "gre0",
        "gretap0",
        "erspan0",
        "ip6gre0",
        "ip_vti0",
        "ip6_vti0",
    }


NET = {
    "cdiVersion": "1.1.0",
    "kind": "example.com/nic",
    "devices": [
        {"name": "a", "containerEdits": {"netDevices": [{"hostInterfaceName": "dra-nic-a", "name": "net1"}]}},
    ],
}


async def test_a_network_device_is_rejected_with_a_runc_without_support(runtime: RuncRuntime, tmp_path: Path) -> None:
    """runc 1.4.0 is the first release that reads ``linux.netDevices``. Earlier releases start the container without an error."""
    (tmp_path / "cdi/nic.json").write_text(json.dumps(NET))
    old_runc = Runc(tmp_path / "old", (1, 3, 4))
    old = RuncRuntime(tmp_path / "containers", runtime.images, [tmp_path / "cdi"], old_runc)
    with pytest.raises(ContainerError, match=r"runc 1\.3\.4 does not pass to containers: use runc 1\.4\.0"):
        await old.start(sandbox(tmp_path), shell("true", cdi_devices=["example.com/nic=a"]))
    await old.close()


async def test_a_container_does_not_change_its_image(runtime: RuncRuntime, tmp_path: Path) -> None:
    assert await output(runtime, tmp_path, "echo x > /bin/new; cat /bin/new") == "x\n"
    assert "No such file" in await output(runtime, tmp_path, "cat /bin/new", attempt=1)
    assert not (tmp_path / "images/busybox/bin/new").exists()


async def test_the_log_of_the_previous_attempt_is_kept(runtime: RuncRuntime, tmp_path: Path) -> None:
    for attempt in range(2):
        await output(runtime, tmp_path, f"echo attempt {attempt}", attempt=attempt)
    assert await read_logs(runtime) == "attempt 1\n"
    assert await read_logs(runtime, previous=True) == "attempt 0\n"


async def test_a_missing_command_is_reported_with_containerds_message(runtime: RuncRuntime, tmp_path: Path) -> None:
    with pytest.raises(ContainerError) as error:
        await runtime.start(sandbox(tmp_path), ContainerConfig("main", Role.MAIN, 0, "busybox", command=("nowhere",)))
    assert str(error.value) == (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
        'unable to start container process: exec: "nowhere": executable file not found in $PATH: unknown'
    )
    assert error.value.reason == "RunContainerError"


async def test_a_network_device_is_rejected_when_the_installed_runc_ignores_it(
    runtime: RuncRuntime, tmp_path: Path
) -> None:
    edits = {"netDevices": [{"hostInterfaceName": "lo", "name": "net0"}]}
    spec = {"cdiVersion": "1.1.0", "kind": "example.com/net", "devices": [{"name": "one", "containerEdits": edits}]}
    (tmp_path / "cdi/net.json").write_text(json.dumps(spec))
    if [int(n) for n in runtime.version.partition("://")[2].split(".")] >= [1, 3]:
        pytest.skip("this runc moves network devices")
    with pytest.raises(
        ContainerError, match=r"a device requires a network device of the host, which runc .* does not pass"
    ):
        await runtime.start(sandbox(tmp_path), shell("true", cdi_devices=["example.com/net=one"]))


async def test_the_first_container_removes_containers_of_a_previous_run(tmp_path: Path) -> None:
    runtimes = [
        RuncRuntime(tmp_path / "c", Images({}, tmp_path / "i"), [], await Runc.find(tmp_path / "runc"))
        for _ in range(2)
    ]
    await runtimes[0].start(sandbox(tmp_path), shell("sleep 1000"))
    previous = await (await Runc.find(tmp_path / "runc")).list()
    await runtimes[1].start(sandbox(tmp_path, f"{UID}-2"), shell("sleep 1000"))
    assert not set(previous) & set(await (await Runc.find(tmp_path / "runc")).list())
    for runtime in runtimes:
        await runtime.close()


async def test_a_container_that_ignores_its_stop_signal_ends_after_the_grace_period(
    runtime: RuncRuntime, tmp_path: Path
) -> None:
    await runtime.start(sandbox(tmp_path), shell("trap '' TERM; while :; do sleep 0.05; done"))
    await runtime.stop(UID, "main", 0.1)
    assert runtime.statuses(UID)["main"].exit_code == 137
    await runtime.stop(UID, "main", 0.1)
    await runtime.stop("nobody", "main", 0.1)


async def test_a_container_that_handles_its_stop_signal_ends_with_its_own_exit_code(
    runtime: RuncRuntime, tmp_path: Path
) -> None:
    await runtime.start(sandbox(tmp_path), shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done"))
    async for part in runtime.logs(UID, "main", LogOptions(follow=True)):
        assert part == b"ready\n"
        await runtime.stop(UID, "main", 60)
    assert runtime.statuses(UID)["main"].exit_code == 7


async def test_a_removed_pod_leaves_nothing(runtime: RuncRuntime, tmp_path: Path) -> None:
    await runtime.start(sandbox(tmp_path), shell("sleep 1000"))
    await runtime.remove(UID)
    assert runtime.pods() == set()
    assert not (tmp_path / "containers" / UID).exists()
    with pytest.raises(KeyError):
        runtime.spec(UID, "main")


async def test_volumes_are_mounted_with_the_requested_access(runtime: RuncRuntime, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    mounts = [Mount(tmp_path / "volume", "/data"), Mount(tmp_path / "volume", "/fixed", read_only=True)]
    logs = await output(runtime, tmp_path, "echo kept > /data/file; cat /fixed/file; touch /fixed/x", mounts=mounts)
    assert "kept\n" in logs and "Read-only file system" in logs
    assert (tmp_path / "volume/file").read_text() == "kept\n"


@pytest.mark.parametrize(
    ("security", "message"),
    [
        ({"privileged": True}, "privileged: containers here get only the devices of their claims"),
        ({"capabilities": {"add": ["SYS_ADMIN"]}}, "CAP_SYS_ADMIN"),
        ({"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}}, "seccompProfile Localhost"),
        ({"procMount": "Unmasked"}, "procMount Unmasked"),
        ({"runAsNonRoot": True}, "image will run as root"),
        ({"somethingNew": 1}, "somethingNew: not known here"),
    ],
)
async def test_privileges_are_rejected_with_a_message(
    runtime: RuncRuntime, tmp_path: Path, security: dict[str, Any], message: str
) -> None:
    with pytest.raises(ContainerError, match=message):
        await runtime.start(sandbox(tmp_path), shell("true", security=security))


async def test_host_network_is_rejected(runtime: RuncRuntime, tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="hostNetwork"):
        await runtime.start(sandbox(tmp_path, host_network=True), shell("true"))


async def test_host_path_is_rejected(runtime: RuncRuntime, tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="hostPath /etc: containers here cannot see the files of this machine"):
        await runtime.start(sandbox(tmp_path), shell("true", mounts=[Mount(Path("/etc"), "/host", from_host=True)]))


async def test_a_container_follows_its_security_context(runtime: RuncRuntime, tmp_path: Path) -> None:
    security = {
        "supplementalGroups": [7],
        "fsGroup": 8,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["NET_RAW"]},
    }
    script = "id; touch /x; grep -E 'CapBnd|NoNewPrivs' /proc/self/status"
    logs = await output(runtime, tmp_path, script, user=5, group=6, security=security)
    assert "uid=5 gid=6 groups=" in logs and {"7", "8"} <= set(logs.partition("groups=")[2].split("\n")[0].split(","))
    assert "Read-only file system" in logs
    assert "CapBnd:\t0000000000002000" in logs and "NoNewPrivs:\t1" in logs


async def test_an_unprivileged_user_can_use_the_image_with_any_umask(runtime: RuncRuntime, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert await output(runtime, tmp_path, "ls /bin/sh; echo x > /tmp/x; cat /tmp/x", user=1000) == "/bin/sh\nx\n"
    finally:
        os.umask(before)


async def test_a_command_has_its_own_streams_and_exit_code(runtime: RuncRuntime, tmp_path: Path) -> None:
    await runtime.start(sandbox(tmp_path), shell("sleep 1000", env=[("NAME", "value")]))
    session = await runtime.exec(UID, "main", ["sh", "-c", "cat; echo $NAME >&2; exit 4"], stdin=True)
    big = b"x" * 300_000
    writing = asyncio.create_task(session.write(big))
    streams: dict[int, bytes] = {1: b"", 2: b""}
    async with asyncio.timeout(60):
        while chunk := await session.read():
            streams[chunk[0]] += chunk[1]
            if len(streams[1]) == len(big):
                await writing
                await session.write(b"")
    assert (streams[1] == big, streams[2], await session.wait()) == (True, b"value\n", 4)
    await session.close()


async def test_a_command_has_a_terminal_of_the_requested_size(runtime: RuncRuntime, tmp_path: Path) -> None:
    await runtime.start(sandbox(tmp_path), shell("sleep 1000"))
    session = await runtime.exec(UID, "main", ["sh"], stdin=True, tty=True)
    await session.resize(101, 43)
    screen = b""
    async with asyncio.timeout(60):
        while b"43 101" not in screen:
            await session.write(b"tty; stty size\n")
            chunk = await session.read()
            assert chunk, screen
            screen += chunk[1]
        await session.write(b"exit 6\n")
        while await session.read():
            pass
    assert b"/dev/pts/" in screen
    assert await session.wait() == 6
    await session.close()


async def test_a_failed_command_is_reported_and_a_closed_session_ends_its_command(
    runtime: RuncRuntime, tmp_path: Path
) -> None:
    await runtime.start(sandbox(tmp_path), shell("sleep 1000"))
    with pytest.raises(ContainerError, match=r'OCI runtime exec failed: .*"nowhere": executable file not found'):
        await runtime.exec(UID, "main", ["nowhere"])
    session = await runtime.exec(UID, "main", ["sleep", "1000"])
    await session.close()
    assert await session.wait() != 0


async def test_a_fake_device_is_not_a_device_of_this_machine(tmp_path: Path) -> None:
    """The numbers of a fake device may be the numbers of a disk of this machine."""
    (tmp_path / "cdi").mkdir()
    (tmp_path / "dev").mkdir()
    spec = json.loads(json.dumps(CDI).replace("/dev/zero", "/dev/gpu0"))
    (tmp_path / "cdi/gpu.json").write_text(json.dumps(spec))
    from dra_devkit.hosts import tree

    tree.write_device_node(tmp_path, "gpu0", "8:0")
    runc = await Runc.find(tmp_path / "runc")
    runtime = RuncRuntime(tmp_path / "c", Images({}, tmp_path / "i"), [tmp_path / "cdi"], runc, tmp_path / "dev")
    try:
        container = shell("ls -l /dev/gpu0; wc -c < /dev/gpu0", cdi_devices=["example.com/gpu=zero"])
        await runtime.start(sandbox(tmp_path), container)
        await wait_until_exited(runtime)
        logs = await read_logs(runtime)
        assert logs.startswith("c") and "1,   3" in logs and logs.endswith("\n0\n")
        assert runtime.spec(UID, "main")["linux"]["devices"][0]["major"] == 8
    finally:
        await runtime.close()


@pytest.mark.podman
async def test_podman_injects_the_same_devices(runtime: RuncRuntime, tmp_path: Path) -> None:
    """An independent implementation: podman reads CDI files with the Go library, only from the CDI folder of the machine."""
    (tmp_path / "data").mkdir()
    kind = f"example.com/witness-{os.getpid()}"
    edits = {
        "env": ["GPU=zero", "SAID=by a device"],
        "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/zero", "fileMode": 0o640, "uid": 3, "gid": 4}],
        "mounts": [{"hostPath": str(tmp_path / "data"), "containerPath": "/data", "options": ["ro", "bind"]}],
    }
    spec = {"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": "zero", "containerEdits": edits}]}
    (tmp_path / "cdi/witness.json").write_text(json.dumps(spec))
    script = "env | grep -E 'GPU|SAID'; ls -ln /dev/gpu0; head -c 2 /dev/gpu0 | od -An -tx1; touch /data/x"
    runc_output = await output(runtime, tmp_path, script, cdi_devices=[f"{kind}=zero"])
    shared = Path(f"/var/run/cdi/witness-{os.getpid()}.json")
    shared.parent.mkdir(exist_ok=True)
    shared.with_suffix(".new").write_text(json.dumps(spec))
    shared.with_suffix(".new").rename(shared)  # podman processes of other tests may read all files there at any time
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    argv = ["podman", "run", "--rm", "--runtime", "runc", "--network=none", *limits, "--device", f"{kind}=zero"]
    try:
        podman = subprocess.run(
            [*argv, "--rootfs", str(tmp_path / "images/busybox"), "sh", "-c", script],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False, text=True,
        )  # fmt: skip
    finally:
        shared.unlink()

    def normalized_lines(text: str) -> list[str]:
        return sorted(
            " ".join(w for w in line.split() if ":" not in w or "touch" in line) for line in text.splitlines()
        )

    assert normalized_lines(runc_output) == normalized_lines(podman.stdout)


KILLED = """
    import asyncio, os, signal, sys
    from pathlib import Path
    from dra_devkit.localcluster.runtime.images import Images
    from dra_devkit.localcluster.runtime.interface import ContainerConfig, Role, Sandbox
    from dra_devkit.localcluster.runtime.runc import Runc
    from dra_devkit.localcluster.runtime.runc_runtime import RuncRuntime

    async def main(root: Path, uid: str, *devices: str) -> None:
        runtime = RuncRuntime(root / "c", Images({}, root / "i"), [root / "cdi"], await Runc.find(root / "runc"))
        container = ContainerConfig("main", Role.MAIN, 0, "busybox", ("sleep", "1000"), cdi_devices=devices)
        starting = asyncio.create_task(runtime.start(Sandbox("default", "pod", uid, "pod", root), container))
        while not starting.done() and not (root / "hooked").exists():
            await asyncio.sleep(0.01)
        print("runs" if starting.done() else "starts", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
"""


def run_and_kill_cluster(tmp_path: Path, expected_output: str, *devices: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), UID, *devices],
        stdout=subprocess.PIPE, check=False, timeout=100, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, f"{expected_output}\n")


async def test_containers_end_when_the_cluster_is_killed(tmp_path: Path) -> None:
    run_and_kill_cluster(tmp_path, "runs")
    runc = await Runc.find(tmp_path / "runc")
    async with asyncio.timeout(60):
        while await runc.list():
            await asyncio.sleep(0.02)


async def test_a_container_with_a_running_hook_ends_after_the_cluster_is_killed(
    tmp_path: Path,
) -> None:
    """runc lists the container only after the hook has ended, so an earlier look at the list does not find it."""
    go = tmp_path / "go"
    wait = f"echo $PPID > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/hooked; until test -e {go}; do sleep 0.05; done"
    hook = {"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", wait]}
    spec = CDI | {"devices": [{"name": "slow", "containerEdits": {"hooks": [hook]}}]}
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/gpu.json").write_text(json.dumps(spec))
    run_and_kill_cluster(tmp_path, "starts", "example.com/gpu=slow")
    front = int((tmp_path / "hooked").read_text())
    runc = await Runc.find(tmp_path / "runc")
    next_runtime = RuncRuntime(tmp_path / "c", Images({}, tmp_path / "i"), [], runc)
    try:
        assert await runc.list() == []
        await next_runtime.start(sandbox(tmp_path, f"{UID}-2"), shell("sleep 1000"))
        own_containers = await runc.list()
        go.touch()
        async with asyncio.timeout(60):
            while Path(f"/proc/{front}").exists() or await runc.list() != own_containers:
                await asyncio.sleep(0.02)
        assert next_runtime.statuses(f"{UID}-2")["main"].state is ContainerState.RUNNING
    finally:
        go.touch()
        await next_runtime.close()


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        ({"exec": {"command": ["test", "-e", "/etc/passwd"]}}, ProbeResult.PASS),
        ({"exec": {"command": ["test", "-e", "/etc/gone"]}}, ProbeResult.FAIL),
        ({"exec": {"command": ["no-such-command"]}}, ProbeResult.ERROR),
        ({"httpGet": {"port": 8080, "path": "/up"}}, ProbeResult.PASS),
        ({"httpGet": {"port": 8080, "path": "/down"}}, ProbeResult.FAIL),
        ({"tcpSocket": {"port": 8080}}, ProbeResult.PASS),
        ({"tcpSocket": {"port": 8081}}, ProbeResult.FAIL),
        ({"grpc": {"port": 8080}}, ProbeResult.FAIL),
    ],
)
async def test_probes_connect_to_the_network_of_the_pod(
    runtime: RuncRuntime, tmp_path: Path, handler: dict[str, Any], result: ProbeResult
) -> None:
    """Port 8081 listens only on the pod's loopback address, which a kubelet cannot reach."""
    script = "touch /tmp/up; busybox httpd -p 8080 -h /tmp; busybox httpd -p 127.0.0.1:8081 -h /tmp; echo listening; sleep 1000"
    await runtime.start(sandbox(tmp_path), shell(script))
    async for line in runtime.logs(UID, "main", LogOptions(follow=True)):
        assert line == b"listening\n"
        break
    assert (await runtime.perform(UID, "main", HandlerAction(HandlerOccasion.READINESS, handler, 60))).result is result


HUNGRY = "a=$(yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | head -c 200000000); echo ate it"


async def test_a_container_above_its_memory_limit_is_killed(runtime: RuncRuntime, tmp_path: Path) -> None:
    await runtime.start(sandbox(tmp_path), shell(HUNGRY, limits=Limits(memory=32 << 20)))
    status = await wait_until_exited(runtime)
    assert (status.exit_code, status.reason) == (137, "OOMKilled")
    assert cgroups_of(status) == [], "no cgroup remains"


def cgroups_of(status: ContainerStatus) -> list[Path]:
    """Returns the cgroups of a container. It searches only the first two levels, because other folders vanish during a full walk."""
    name = f"*{status.id.removeprefix('runc://')}*"
    return [path for pattern in (name, f"*/{name}") for path in Path("/sys/fs/cgroup").glob(pattern)]


async def test_containers_of_the_same_name_in_two_clusters_have_separate_cgroups(
    tmp_path: Path,
) -> None:
    """With a shared cgroup, a container beside a container killed for memory was also reported as OOMKilled."""
    async with contextlib.AsyncExitStack() as stack:
        runtimes = []
        for name in ("one", "other"):
            runc = await Runc.find(tmp_path / f"runc-{name}")
            runtimes.append(RuncRuntime(tmp_path / name, Images({}, tmp_path / "images"), [], runc))
            stack.push_async_callback(runtimes[-1].close)
        quiet, hungry = runtimes
        calm = await quiet.start(sandbox(tmp_path), shell("sleep 1000"))
        await hungry.start(sandbox(tmp_path), shell(HUNGRY, limits=Limits(memory=32 << 20)))
        assert (await wait_until_exited(hungry)).reason == "OOMKilled"
        assert cgroups_of(calm)
        await quiet.stop(UID, "main", 0)
        assert quiet.statuses(UID)["main"].reason == "Error"


async def test_a_stopped_container_is_not_reported_as_out_of_memory(runtime: RuncRuntime, tmp_path: Path) -> None:
    await runtime.start(sandbox(tmp_path), shell("sleep 1000", limits=Limits(memory=32 << 20)))
    await runtime.stop(UID, "main", 0)
    status = await wait_until_exited(runtime)
    assert (status.exit_code, status.reason) == (137, "Error")


async def test_a_container_with_one_process_killed_for_memory_is_reported_as_oom_killed(
    runtime: RuncRuntime, tmp_path: Path
) -> None:
    """containerd records an event of the cgroup and does not use the exit code."""
    hungry = "(a=$(yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | head -c 200000000)); exit 0"
    await runtime.start(sandbox(tmp_path), shell(hungry, limits=Limits(memory=32 << 20)))
    assert (await wait_until_exited(runtime)).reason == "OOMKilled"


async def test_the_spec_of_a_container_contains_its_resource_limits(runtime: RuncRuntime, tmp_path: Path) -> None:
    await runtime.start(sandbox(tmp_path), shell("true", limits=Limits(memory=1 << 26, cpu=500, share=2500)))
    resources = runtime.spec(UID, "main")["linux"]["resources"]
    assert resources["memory"] == {"limit": 1 << 26}
    assert resources["cpu"] == {"shares": 2560, "quota": 50_000, "period": 100_000}
    assert (await wait_until_exited(runtime)).exit_code == 0
