"""A runtime that runs real containers with runc. Images are directories. CDI devices are injected as in containerd.

It protects this machine: a container gets only the devices of its claims, a loopback network, at most the default
capabilities, and the mounts of the kubelet and of CDI specs.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import secrets
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dra_kubeletplugin.base.json_types import JSON

from . import handlers, refusals
from .api_proxy import ApiProxy
from .base_spec import PATH, ContainerContext, OciProcess, base_spec, with_devices
from .cgroups import memory_ran_out
from .changes import Changes
from .console import AttachSession, Console
from .container_logs import ContainerLog
from .exec_session import RuncExec
from .images import Image, Images
from .interface import (
    SERVICE_ACCOUNT,
    ApiAccess,
    ContainerConfig,
    ContainerError,
    ContainerState,
    ContainerStatus,
    HandlerAction,
    LogOptions,
    Mount,
    Outcome,
    ProbeResult,
    Sandbox,
)
from .node_files import NodeFiles
from .pod_namespaces import ADDRESS, PodNamespaces
from .runc import Runc

_NETWORK_DEVICES = (1, 4, 0)  # the first runc version that moves network devices of the host into a container
_NULL = (1, 3)
_MESSAGE = "/dev/termination-log"
_MESSAGE_BYTES = 4096


@dataclass
class _RuncContainer:
    status: ContainerStatus
    spec: JSON
    log: ContainerLog
    console: Console
    stop_signal: str
    message: Path | None
    ended: asyncio.Task[None] | None = None

    @property
    def identity(self) -> str:
        return self.status.id.removeprefix("runc://")


@dataclass
class _PodSandbox:
    sandbox: Sandbox
    namespaces: PodNamespaces
    containers: dict[str, _RuncContainer] = field(default_factory=dict)
    earlier: dict[str, ContainerLog] = field(default_factory=dict)  # logs of the previous attempt
    proxy: ApiProxy | None = None


class RuncRuntime:
    """Implements :class:`.interface.ContainerRuntime`.

    Args:
        state: a directory that only this runtime uses, for OCI specs, logs and runc's state.
        images: finds the images.
        cdi_dirs: directories of CDI specs, lowest priority first.
        runc: runs the containers.
        dev: the directory in which device nodes are looked up. The device nodes of a described host do not work, so a
            container gets copies of /dev/null instead.
    """

    def __init__(
        self, state: Path, images: Images, cdi_dirs: Sequence[Path], runc: Runc, dev: Path = Path("/dev")
    ) -> None:
        self.state = state
        self.images = images
        self.cdi_dirs = cdi_dirs
        self.dev = dev
        self.api: ApiAccess | None = None
        self._runc = runc
        self._pods: dict[str, _PodSandbox] = {}
        self._changes = Changes()

    @property
    def version(self) -> str:
        return "runc://" + ".".join(map(str, self._runc.version))

    @property
    def _files(self) -> NodeFiles:
        sysfs = None if self.dev == Path("/dev") else self.dev.parent
        return NodeFiles(self.state.parent / "kubelet", next(iter(self.cdi_dirs), None), self.dev, sysfs)

    def node_path(self, path: str) -> Path | None:
        return self._files.find(path)

    # --- one container ------------------------------------------------------------------------------------

    async def start(self, sandbox: Sandbox, container: ContainerConfig) -> ContainerStatus:
        image = await asyncio.to_thread(self.images.find, container.image)
        pod = self._pods.get(sandbox.uid)
        if pod is None:
            pod = _PodSandbox(sandbox, await PodNamespaces.make(sandbox.hostname))
            self._pods[sandbox.uid] = pod
        if pod.proxy is None and self.api is not None and _has_token(container):
            pod.proxy = await _proxy(self.api, pod.namespaces)
        folder = self.state / sandbox.uid / f"{container.name}-{container.attempt}"
        identity = self._runc.name()
        spec = await asyncio.to_thread(self._prepare, pod, container, image, folder, identity)
        if before := pod.containers.pop(container.name, None):
            before.log.close()
            pod.earlier[container.name] = before.log
        log = ContainerLog(folder / "log")
        console = Console(log, stdin=container.stdin, once=container.stdin_once, terminal=container.tty)
        status = ContainerStatus(
            f"runc://{identity}",
            container.name,
            container.attempt,
            ContainerState.RUNNING,
            container.image,
            time.time(),
        )
        message = folder / "termination-log"
        found = _RuncContainer(
            status, spec, log, console, image.stop_signal or "TERM", message if message.exists() else None
        )
        try:
            started = await self._runc.run(identity, folder, console.streams, tty=container.tty)
            console.started(started.process)
        except BaseException as e:
            console.started(None)
            await self._runc.delete(identity)
            log.close()
            if not isinstance(e, ContainerError):
                raise
            why = f"failed to create containerd task: failed to create shim task: OCI runtime create failed: {_as_create(str(e))}: unknown"
            found.status = status.not_started(why)
            pod.containers[container.name] = found
            raise ContainerError(why, "RunContainerError") from None
        found.status = status = replace(status, started_at=time.time())
        pod.containers[container.name] = found
        found.ended = asyncio.create_task(self._follow(sandbox.uid, found), name=f"container {container.name}")
        return status

    def _prepare(self, pod: _PodSandbox, container: ContainerConfig, image: Image, folder: Path, identity: str) -> JSON:
        """Writes the OCI bundle. Returns the spec with the container's devices.

        Raises:
            ContainerError: the container cannot be created.
        """
        uid, gid = image.user_of(container.user, container.group)
        permissions = refusals.allowed(pod.sandbox, container, uid)
        shutil.rmtree(folder, ignore_errors=True)
        # Environments may contain secrets, so only the owner can read these directories.
        for part in (self.state, self.state / pod.sandbox.uid, folder):
            part.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("rootfs", "scratch"):
            (folder / name).mkdir()
        (folder / "image").symlink_to(image.root)
        env = dict(e.split("=", 1) for e in (PATH, *image.env) if "=" in e)
        env |= {"HOSTNAME": pod.sandbox.hostname}
        if self.api is not None and _has_token(container):
            env |= {"KUBERNETES_SERVICE_HOST": self.api.host, "KUBERNETES_SERVICE_PORT": str(self.api.port)}
        env |= dict(container.env)
        process = OciProcess(
            image.arguments(container.command, container.args),
            [f"{k}={v}" for k, v in env.items()],
            container.working_dir or image.working_dir or "/",
            uid,
            gid,
            permissions.groups,
            permissions.capabilities,
            permissions.no_new_privileges,
            container.tty,
        )
        context = ContainerContext(
            [*self._own_mounts(pod.sandbox, container, folder), *self._files.mounts(container.mounts)],
            pod.namespaces.paths,
            f"/dra-dev-{identity}",  # without a parent directory, because runc would not remove it
            permissions.read_only_root,
            container.limits,
        )
        spec = with_devices(base_spec(process, context), container, self.cdi_dirs, self.dev)
        if spec["linux"].get("netDevices") and self._runc.version < _NETWORK_DEVICES:
            raise ContainerError(
                f"a device requires a network device of the host, which runc {'.'.join(map(str, self._runc.version))} "
                f"does not pass to containers: use runc {'.'.join(map(str, _NETWORK_DEVICES))} or later"
            )
        self._files.replace(spec["mounts"])
        runnable_spec = spec if self.dev == Path("/dev") else _without_described(spec)
        (folder / "config.json").write_text(json.dumps(runnable_spec, indent=2) + "\n")
        (folder.parent / f"{container.name}.json").write_text(json.dumps(spec, indent=2) + "\n")
        return spec

    def _own_mounts(self, sandbox: Sandbox, container: ContainerConfig, folder: Path) -> list[Mount]:
        """Returns the mounts that a runtime adds to every container, without those at paths where the kubelet mounts something."""
        shared = self.state / sandbox.uid / "shared"
        memory = shared / "shm"
        if not memory.is_dir():
            memory.mkdir(parents=True)
            memory.chmod(0o1777)
            (shared / "hostname").write_text(f"{sandbox.hostname}\n")
            (shared / "hosts").write_text(f"127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.0.1\t{sandbox.hostname}\n")
            (shared / "resolv.conf").write_text("")
        message = folder / "termination-log"
        message.touch()
        message.chmod(0o666)
        own = [
            Mount(memory, "/dev/shm"),
            Mount(message, _MESSAGE),
            *(Mount(shared / name, f"/etc/{name}") for name in ("hostname", "hosts", "resolv.conf")),
        ]
        taken = {m.container for m in container.mounts}
        return [m for m in own if m.container not in taken]

    async def _follow(self, uid: str, container: _RuncContainer) -> None:
        """Waits until the container has ended and its output is in the log, then sets its final status."""
        code = await container.console.follow()
        container.log.close()
        code, finished = code if code >= 0 else 128 - code, time.time()
        out_of_memory = await asyncio.to_thread(memory_ran_out, container.spec["linux"]["cgroupsPath"])
        # An error is ignored, because the container has ended even if runc cannot delete it now.
        with contextlib.suppress(ContainerError, OSError):
            await self._runc.delete(container.identity)
        message = ""
        if container.message:
            with contextlib.suppress(OSError):
                message = container.message.read_bytes()[:_MESSAGE_BYTES].decode(errors="replace")
        container.status = replace(
            container.status,
            state=ContainerState.EXITED,
            finished_at=finished,
            exit_code=code,
            reason="OOMKilled" if out_of_memory else "Completed" if code == 0 else "Error",
            message=message,
        )
        self._changes.notify(uid)

    async def stop(self, pod_uid: str, name: str, grace: float) -> None:
        pod = self._pods.get(pod_uid)
        if pod is not None and name in pod.containers:
            await self._end(pod.containers[name], grace)

    async def _end(self, container: _RuncContainer, grace: float) -> None:
        task = container.ended
        if task is None or task.done() or container.status.state is ContainerState.EXITED:
            return
        if grace > 0:
            await self._runc.signal(container.identity, container.stop_signal)
            await asyncio.wait({task}, timeout=grace)
        if not task.done():
            await self._runc.signal(container.identity, "KILL")
            await asyncio.wait({task})

    async def remove(self, pod_uid: str) -> None:
        pod = self._pods.pop(pod_uid, None)
        if pod is not None:
            await asyncio.gather(*(self._end(c, 0) for c in pod.containers.values()))
            if pod.proxy is not None:
                await pod.proxy.close()
            pod.namespaces.close()
        await asyncio.to_thread(shutil.rmtree, self.state / pod_uid, ignore_errors=True)

    # --- state --------------------------------------------------------------------------------------------

    def statuses(self, pod_uid: str) -> dict[str, ContainerStatus]:
        pod = self._pods.get(pod_uid)
        return {name: c.status for name, c in pod.containers.items()} if pod else {}

    def pods(self) -> set[str]:
        return set(self._pods)

    def changes(self) -> AsyncIterator[str]:
        return self._changes.listen()

    def spec(self, pod_uid: str, name: str) -> JSON:
        return copy.deepcopy(self._pods[pod_uid].containers[name].spec)

    def logs(self, pod_uid: str, name: str, options: LogOptions) -> AsyncIterator[bytes]:
        pod = self._pods[pod_uid]
        return (pod.earlier[name] if options.previous else pod.containers[name].log).read(options)

    async def exec(
        self, pod_uid: str, name: str, command: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> RuncExec:
        identity = self._running(pod_uid, name).identity
        scratch = self.state / pod_uid / f"exec-{secrets.token_hex(8)}"
        try:
            return await RuncExec.start(self._runc, identity, scratch, command, stdin=stdin, tty=tty)
        except ContainerError as e:
            raise ContainerError(
                f'failed to exec in container: failed to start exec "{scratch.name}": OCI runtime exec failed: {e}: unknown'
            ) from None

    async def attach(self, pod_uid: str, name: str) -> AttachSession:
        return self._running(pod_uid, name).console.attach()

    def _running(self, pod_uid: str, name: str) -> _RuncContainer:
        container = self._pods[pod_uid].containers[name]
        if container.status.state is not ContainerState.RUNNING:
            raise ContainerError(f"container {name} is not running: it ended with {container.status.exit_code}")
        return container

    async def perform(self, pod_uid: str, name: str, action: HandlerAction) -> Outcome:
        pod = self._pods.get(pod_uid)
        if pod is None:
            return Outcome(ProbeResult.ERROR, f"pod {pod_uid} does not run")
        namespaces = pod.namespaces

        async def run(command: Sequence[str]) -> RuncExec:
            return await self.exec(pod_uid, name, command)

        async def connect(port: int, timeout: float) -> socket.socket:
            return await namespaces.connect(ADDRESS, port, timeout)

        return await handlers.perform(action, run, connect, ADDRESS)

    async def reboot(self) -> None:
        await asyncio.gather(*(self.remove(uid) for uid in self.pods()))

    async def close(self) -> None:
        await self.reboot()
        await self._runc.close()


async def factory(images: Mapping[str, Path] | None = None) -> Callable[[str, Path, Sequence[Path]], RuncRuntime]:
    """Checks that containers can run here. Returns a function that creates a node's runtime.

    The function takes the node's name, a directory for this runtime, and the directories of CDI specs.

    Args:
        images: directories by image name.

    Raises:
        ContainerError: containers cannot run on this machine; the text lists what is missing.
    """
    found = await Runc.find(Path())
    shared: list[Images] = []  # one for all nodes, so that a layer is unpacked once; containers write above it

    def make(_: str, folder: Path, cdi_dirs: Sequence[Path]) -> RuncRuntime:
        if not shared:
            shared.append(Images(images or {}, folder / "images"))
        return RuncRuntime(folder, shared[0], cdi_dirs, Runc(folder / "runc", found.version))

    return make


def _has_token(container: ContainerConfig) -> bool:
    return any(m.container == SERVICE_ACCOUNT for m in container.mounts)


async def _proxy(api: ApiAccess, namespaces: PodNamespaces) -> ApiProxy:
    try:
        return await ApiProxy.start(api, namespaces)
    except OSError as e:
        raise ContainerError(
            f"the pod cannot reach the API server at {api.host}:{api.port}: {e}; use an --api-address of 127.0.0.1"
        ) from None


def _as_create(error: str) -> str:
    """Changes runc's error to the text of containerd, which calls ``runc create`` and ``runc start`` instead of ``runc run``."""
    return error.replace("runc run failed", "runc create failed")


def _without_described(spec: JSON) -> JSON:
    """Returns the spec with copies of /dev/null in place of the device nodes of a described host.

    These device nodes do not exist, and a real device of this machine may have the same device numbers.
    """
    out = copy.deepcopy(spec)
    devices = out["linux"].get("devices") or []
    if devices:
        for device in devices:
            device |= {"type": "c", "major": _NULL[0], "minor": _NULL[1]}
        rule = {"allow": True, "type": "c", "major": _NULL[0], "minor": _NULL[1], "access": "rwm"}
        out["linux"]["resources"]["devices"] = [{"allow": False, "access": "rwm"}, rule]
    return out
