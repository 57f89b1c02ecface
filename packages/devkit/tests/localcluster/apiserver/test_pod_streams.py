"""``kubectl logs`` and ``kubectl exec``: the real kubectl against the local API server and real containers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
from collections.abc import AsyncIterator, Awaitable

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.runtime.runc_runtime import factory
from dra_kubeletplugin.kube.resource import PODS
from packages.devkit.tests.localcluster.apiserver.kubectl import Kubectl

pytestmark = [pytest.mark.runc, pytest.mark.kubectl]


SCRIPT = "echo out; echo err >&2; trap 'exit 0' TERM; while :; do sleep 0.02; done"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """Starts a pod ``pod`` with a running container ``main``, and with a container ``other`` whose image is missing."""
    containers = [
        {"name": "main", "image": "busybox", "command": ["sh", "-c", SCRIPT]},
        {"name": "other", "image": "nowhere"},
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": {"containers": containers}}
    async with LocalCluster(runtimes=await factory()) as local_cluster:
        await local_cluster.apply(pod)

        async def are_settled() -> bool:
            statuses = (await local_cluster.client.get(PODS, "pod", "default"))["status"].get("containerStatuses") or []
            reasons = [s["state"].get("waiting", {}).get("reason", "") for s in statuses]
            return reasons in (["", "ErrImagePull"], ["", "ImagePullBackOff"])

        await local_cluster.wait("the containers", are_settled)
        yield local_cluster


@pytest.fixture
def kubectl(cluster: LocalCluster) -> Kubectl:
    return Kubectl(cluster)


async def test_following_logs_ends_with_the_container(kubectl: Kubectl, cluster: LocalCluster) -> None:
    following = await asyncio.create_subprocess_exec(
        *kubectl.argv("logs", "pod", "-c", "main", "-f"), stdout=asyncio.subprocess.PIPE
    )
    assert following.stdout
    async with asyncio.timeout(90):
        assert sorted([await following.stdout.readline() for _ in range(2)]) == [b"err\n", b"out\n"]
        assert sorted((await kubectl.run("logs", "pod", "-c", "main"))[1].split()) == ["err", "out"]
        assert (await kubectl.run("logs", "pod", "-c", "main", "--tail=1", "--timestamps"))[1].count("Z ") == 1
        assert following.returncode is None
        (uid,) = cluster.node.runtime.pods()
        await cluster.node.runtime.stop(uid, "main", 60)
        assert await following.stdout.read() == b""
        assert await following.wait() == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-c", "other"], 'container "other" in pod "pod" is waiting to start: trying and failing to pull image'),
        (["-c", "main", "--previous"], 'previous terminated container "main" in pod "pod" not found'),
        (["-c", "nobody"], "container nobody is not valid for pod pod"),
    ],
)
async def test_a_missing_log_is_reported_with_the_message_of_kubernetes(
    kubectl: Kubectl, args: list[str], message: str
) -> None:
    code, out, error = await kubectl.run("logs", "pod", *args)
    assert (code, out) == (1, "")
    assert message in error


async def test_exec_passes_input_both_outputs_and_the_exit_code(kubectl: Kubectl) -> None:
    script = "cat; echo $HOSTNAME >&2; exit 5"
    code, out, error = await kubectl.run(
        "exec", "-i", "pod", "-c", "main", "--", "sh", "-c", script, stdin_data=b"x" * 100_000
    )
    assert (code, out) == (5, "x" * 100_000)
    assert error == "pod\ncommand terminated with exit code 5\n"


async def test_exec_of_a_successful_command_prints_only_its_output(kubectl: Kubectl) -> None:
    assert await kubectl.run("exec", "pod", "-c", "main", "--", "echo", "hello") == (0, "hello\n", "")


async def test_exec_of_a_missing_command_is_reported(kubectl: Kubectl) -> None:
    code, _, error = await kubectl.run("exec", "pod", "-c", "main", "--", "nowhere")
    assert code == 1
    assert "Internal error occurred: error executing command in container: failed to exec in container" in error
    assert 'exec: "nowhere": executable file not found in $PATH' in error


async def test_exec_in_a_container_that_does_not_run_is_rejected(kubectl: Kubectl) -> None:
    code, _, error = await kubectl.run("exec", "pod", "-c", "other", "--", "true")
    assert code == 1
    assert 'container not found ("other")' in error


async def start_in_terminal(kubectl: Kubectl, *args: str) -> tuple[asyncio.subprocess.Process, int]:
    """Starts kubectl in a terminal. Returns the process and the master end of the terminal."""
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *kubectl.argv(*args), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    return process, master


def read_until_closed(master: int) -> bytes:
    """Returns the remaining output of an ended process. A terminal returns it in parts and then raises an error."""
    output = b""
    with contextlib.suppress(OSError):
        while part := os.read(master, 65536):
            output += part
    return output


async def test_exec_with_a_terminal_has_a_terminal_on_both_sides(kubectl: Kubectl) -> None:
    process, master = await start_in_terminal(
        kubectl, "exec", "-it", "pod", "-c", "main", "--", "sh", "-c", "tty; read word; echo got $word"
    )
    os.write(master, b"word\n")
    assert await asyncio.wait_for(process.wait(), 60) == 0
    output = read_until_closed(master)
    os.close(master)
    assert b"/dev/pts/" in output and b"got word" in output


async def test_exec_ends_the_command_when_its_client_disconnects(kubectl: Kubectl) -> None:
    process = await asyncio.create_subprocess_exec(
        *kubectl.argv("exec", "pod", "-c", "main", "--", "sh", "-c", "echo begun; exec sleep 7531"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    assert await process.stdout.readline() == b"begun\n"
    process.kill()
    await process.wait()
    async with asyncio.timeout(60):
        while "7531" in (await kubectl.run("exec", "pod", "-c", "main", "--", "ps"))[1]:
            pass


async def test_port_forward_is_rejected_as_unsupported(kubectl: Kubectl) -> None:
    code, _, error = await kubectl.run("get", "--raw", "/api/v1/namespaces/default/pods/pod/portforward")
    assert code == 1
    assert "the local cluster does not support port-forward" in error


async def test_attach_shows_new_output_and_leaves_the_container_running(kubectl: Kubectl) -> None:
    for client in range(2):
        process = await asyncio.create_subprocess_exec(
            *kubectl.argv("attach", "pod", "-c", "main"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout
        async with asyncio.timeout(60):
            await _write_until_received(
                kubectl, _read_until_line(process.stdout, f"client {client}"), f"client {client}"
            )
        process.kill()
        await process.wait()


async def _read_until_line(out: asyncio.StreamReader, text: str) -> None:
    """Reads until the line arrives. Lines for the previous client may arrive first."""
    while (line := await out.readline()) != f"{text}\n".encode():
        assert line, f"it ended before {text!r}"


async def _write_until_received(kubectl: Kubectl, line: Awaitable[None], text: str) -> None:
    """Writes to the output of the container's process until the client receives it, because no event reports the attachment."""
    received = asyncio.ensure_future(line)
    while not received.done():
        await kubectl.run("exec", "pod", "-c", "main", "--", "sh", "-c", f"echo {text} > /proc/1/fd/1")
    await received


async def test_kubectl_run_passes_input_and_deletes_the_pod(kubectl: Kubectl) -> None:
    command = ("run", "-i", "--rm", "--restart=Never", "--image=busybox", "shell", "--", "sh", "-c")
    code, out, error = await kubectl.run(*command, "read word; echo got $word; exit 3", stdin_data=b"it\n")
    assert "got it" in out, error
    assert code == 3
    assert 'pod "shell" deleted' in out


async def test_kubectl_run_with_a_terminal_has_a_terminal(kubectl: Kubectl) -> None:
    command = ("run", "-it", "--rm", "--restart=Never", "--image=busybox", "shell", "--", "sh")
    process, master = await start_in_terminal(kubectl, *command)
    output = b""
    try:
        async with asyncio.timeout(60):
            while b"# " not in output:  # the first prompt may be written before the terminal is attached
                output += await asyncio.to_thread(os.read, master, 65536)
                os.write(master, b"\n" * (b"press" in output))
            os.write(master, b"tty; stty size; exit\n")
            assert await process.wait() == 0
        output += read_until_closed(master)
    finally:
        os.close(master)
    assert b"/dev/pts/" in output or b"/dev/console" in output
