"""``kubectl logs`` and ``kubectl exec``, by kubectl itself against our API server and containers that really run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra_kubeletplugin.kube.resource import PODS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.runtime.runc_runtime import factory

pytestmark = [pytest.mark.runc, pytest.mark.kubectl]


@dataclass
class Kubectl:
    config: Path

    def argv(self, *args: str) -> list[str]:
        # Not its usual cache: there a cluster of before may have had the same port.
        return ["kubectl", "--kubeconfig", str(self.config), "--cache-dir", str(self.config.parent / "cache"), *args]

    async def __call__(self, *args: str, given: bytes | None = None) -> tuple[int | None, str, str]:
        process = await asyncio.create_subprocess_exec(
            *self.argv(*args),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            out, error = await process.communicate(given)
        return process.returncode, out.decode(), error.decode()


SCRIPT = "echo out; echo err >&2; trap 'exit 0' TERM; while :; do sleep 0.02; done"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """A pod ``pod`` with a container ``main`` that runs, and ``other`` whose image is not there."""
    containers = [
        {"name": "main", "image": "busybox", "command": ["sh", "-c", SCRIPT]},
        {"name": "other", "image": "nowhere"},
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": {"containers": containers}}
    async with LocalCluster(runtimes=await factory()) as made:
        await made.apply(pod)

        async def known() -> bool:
            statuses = (await made.client.get(PODS, "pod", "default")).get("status", {}).get("containerStatuses") or []
            return [s["state"].get("waiting", {}).get("reason", "") for s in statuses] in (
                ["", "ErrImagePull"],
                ["", "ImagePullBackOff"],
            )

        await made.wait("the containers", known)
        yield made


@pytest.fixture
def kubectl(cluster: LocalCluster) -> Kubectl:
    return Kubectl(cluster.kubeconfig)


async def test_logs_are_those_of_the_container_and_following_ends_with_it(
    kubectl: Kubectl, cluster: LocalCluster
) -> None:
    following = await asyncio.create_subprocess_exec(
        *kubectl.argv("logs", "pod", "-c", "main", "-f"), stdout=asyncio.subprocess.PIPE
    )
    assert following.stdout
    async with asyncio.timeout(90):
        assert sorted([await following.stdout.readline() for _ in range(2)]) == [b"err\n", b"out\n"]
        assert sorted((await kubectl("logs", "pod", "-c", "main"))[1].split()) == ["err", "out"]
        assert (await kubectl("logs", "pod", "-c", "main", "--tail=1", "--timestamps"))[1].count("Z ") == 1
        assert following.returncode is None
        (uid,) = cluster.node.runtime.pods()
        await cluster.node.runtime.stop(uid, "main", 60)
        assert await following.stdout.read() == b""
        assert await following.wait() == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-c", "other"], 'container "other" in pod "pod" is waiting to start: trying and failing to pull image'),
        (["-c", "main", "--previous"], 'previous terminated container "main" in pod "pod" not found'),
        (["-c", "nobody"], "container nobody is not valid for pod pod"),
    ],
)
async def test_what_has_no_log_is_reported_in_kubernetes_words(kubectl: Kubectl, args: list[str], says: str) -> None:
    code, out, error = await kubectl("logs", "pod", *args)
    assert (code, out) == (1, "")
    assert says in error


async def test_a_command_has_its_input_its_two_outputs_and_its_exit_code(kubectl: Kubectl) -> None:
    script = "cat; echo $HOSTNAME >&2; exit 5"
    code, out, error = await kubectl("exec", "-i", "pod", "-c", "main", "--", "sh", "-c", script, given=b"x" * 100_000)
    assert (code, out) == (5, "x" * 100_000)
    assert error == "pod\ncommand terminated with exit code 5\n"


async def test_a_command_that_succeeds_ends_with_nothing_stated(kubectl: Kubectl) -> None:
    assert await kubectl("exec", "pod", "-c", "main", "--", "echo", "hello") == (0, "hello\n", "")


async def test_a_command_that_is_not_in_the_container_is_reported(kubectl: Kubectl) -> None:
    code, _, error = await kubectl("exec", "pod", "-c", "main", "--", "nowhere")
    assert code == 1
    assert "Internal error occurred: error executing command in container: failed to exec in container" in error
    assert 'exec: "nowhere": executable file not found in $PATH' in error


async def test_a_container_that_does_not_run_takes_no_command(kubectl: Kubectl) -> None:
    code, _, error = await kubectl("exec", "pod", "-c", "other", "--", "true")
    assert code == 1
    assert 'container not found ("other")' in error


async def terminal(kubectl: Kubectl, *args: str) -> tuple[asyncio.subprocess.Process, int]:
    """kubectl in a terminal, and our end of that."""
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *kubectl.argv(*args), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    return process, master


def rest(master: int) -> bytes:
    """What a process has written that has ended: a terminal gives it in parts, and then an error."""
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(master, 65536):
            shown += part
    return shown


async def test_a_terminal_is_one_on_both_sides(kubectl: Kubectl) -> None:
    process, master = await terminal(
        kubectl, "exec", "-it", "pod", "-c", "main", "--", "sh", "-c", "tty; read word; echo got $word"
    )
    os.write(master, b"word\n")
    assert await asyncio.wait_for(process.wait(), 60) == 0
    shown = rest(master)
    os.close(master)
    assert b"/dev/pts/" in shown and b"got word" in shown


async def test_the_command_ends_when_its_client_goes(kubectl: Kubectl) -> None:
    process = await asyncio.create_subprocess_exec(
        *kubectl.argv("exec", "pod", "-c", "main", "--", "sh", "-c", "echo begun; exec sleep 7531"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    assert await process.stdout.readline() == b"begun\n"
    process.kill()
    await process.wait()
    async with asyncio.timeout(60):
        while "7531" in (await kubectl("exec", "pod", "-c", "main", "--", "ps"))[1]:
            pass


async def test_what_is_not_there_is_reported(kubectl: Kubectl) -> None:
    code, _, error = await kubectl("get", "--raw", "/api/v1/namespaces/default/pods/pod/portforward")
    assert code == 1
    assert "the local cluster does not support port-forward" in error


async def test_who_attaches_sees_what_comes_and_leaves_the_container_running(kubectl: Kubectl) -> None:
    for client in range(2):
        process = await asyncio.create_subprocess_exec(
            *kubectl.argv("attach", "pod", "-c", "main"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout
        async with asyncio.timeout(60):
            await _say_until(kubectl, _line(process.stdout, f"client {client}"), f"client {client}")
        process.kill()
        await process.wait()


async def _line(out: asyncio.StreamReader, text: str) -> None:
    """Until it comes: what was said to the client before may be on its way still."""
    while (line := await out.readline()) != f"{text}\n".encode():
        assert line, f"it ended before {text!r}"


async def _say_until(kubectl: Kubectl, line: Awaitable[None], text: str) -> None:
    """Has the container's own process say something until it is heard: nobody tells when a client is attached."""
    heard = asyncio.ensure_future(line)
    while not heard.done():
        await kubectl("exec", "pod", "-c", "main", "--", "sh", "-c", f"echo {text} > /proc/1/fd/1")
    await heard


async def test_a_shell_is_run_with_its_input_and_gone_afterwards(kubectl: Kubectl) -> None:
    words = ("run", "-i", "--rm", "--restart=Never", "--image=busybox", "shell", "--", "sh", "-c")
    code, out, error = await kubectl(*words, "read word; echo got $word; exit 3", given=b"it\n")
    assert "got it" in out, error
    assert code == 3
    assert 'pod "shell" deleted' in out


async def test_a_shell_has_a_terminal_where_it_requests_one(kubectl: Kubectl) -> None:
    words = ("run", "-it", "--rm", "--restart=Never", "--image=busybox", "shell", "--", "sh")
    process, master = await terminal(kubectl, *words)
    shown = b""
    try:
        async with asyncio.timeout(60):
            while b"# " not in shown:  # the first prompt may have come before the terminal was attached
                shown += await asyncio.to_thread(os.read, master, 65536)
                os.write(master, b"\n" * (b"press" in shown))
            os.write(master, b"tty; stty size; exit\n")
            assert await process.wait() == 0
        shown += rest(master)
    finally:
        os.close(master)
    assert b"/dev/pts/" in shown or b"/dev/console" in shown
