"""A runtime that runs nothing: it injects devices into an OCI spec as containerd does, and keeps that for whoever looks."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .cdi_cache import CdiCache, InjectError
from .interface import (
    ContainerConfig,
    ContainerError,
    ContainerStatus,
    ExecSession,
    LogOptions,
    Mount,
    Role,
    Sandbox,
    State,
)

JSON = dict[str, Any]
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def oci_spec(container: ContainerConfig, cdi_dirs: Sequence[Path], dev: Path) -> JSON:
    """The container's OCI spec after injection of its devices; device nodes are looked up below ``dev``.

    Raises :class:`ContainerError` in containerd's words.
    """
    base = {
        "ociVersion": "1.1.0",
        "process": {
            "user": {"uid": container.user or 0, "gid": container.group or 0},
            "args": [*(container.command or ["/bin/sh"]), *container.args],
            "env": [_PATH, *(f"{name}={value}" for name, value in container.env)],
            "cwd": container.working_dir or "/",
        },
        "root": {"path": "rootfs"},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, *map(_bind, container.mounts)],
        "linux": {},
    }
    try:
        return CdiCache(cdi_dirs).inject(base, container.cdi_devices, dev)
    except InjectError as e:
        raise ContainerError(f"failed to create containerd container: CDI device injection failed: {e}") from None


def _bind(mount: Mount) -> JSON:
    options = ["rbind", "ro" if mount.read_only else "rw"]
    return {"destination": mount.container, "type": "bind", "source": str(mount.host), "options": options}


@dataclass(frozen=True)
class _Container:
    status: ContainerStatus
    spec: JSON
    role: Role


class SimulatedRuntime:
    """Init containers end at once, others run until they are stopped, or :meth:`end` is called.

    Args:
        state: a folder in which the OCI specs can be read, ``<pod UID>/<container>.json``.
        cdi_dirs: folders of CDI specs, lowest priority first.
        dev: where device nodes are looked up; of a described host its own.
    """

    version = "simulated://1"

    def __init__(self, state: Path, cdi_dirs: Sequence[Path], dev: Path = Path("/dev")) -> None:
        self.state = state
        self.cdi_dirs = cdi_dirs
        self.dev = dev
        self._pods: dict[str, dict[str, _Container]] = {}
        self._watchers: set[asyncio.Queue[str]] = set()

    async def start(self, sandbox: Sandbox, container: ContainerConfig) -> ContainerStatus:
        spec = oci_spec(container, self.cdi_dirs, self.dev)
        folder = self.state / sandbox.uid
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{container.name}.json").write_text(json.dumps(spec, indent=2) + "\n")
        status = ContainerStatus(
            f"simulated://{sandbox.uid}/{container.name}/{container.attempt}",
            container.name,
            container.attempt,
            State.RUNNING,
            container.image,
            time.time(),
            simulated=True,
        )
        if container.role is Role.INIT:
            status = _ended(status, 0)
        self._pods.setdefault(sandbox.uid, {})[container.name] = _Container(status, spec, container.role)
        return status

    async def stop(self, pod_uid: str, name: str, grace: float) -> None:
        found = self._pods.get(pod_uid, {}).get(name)
        if found and found.status.state is State.RUNNING:
            self._pods[pod_uid][name] = replace(found, status=_ended(found.status, 137))

    def end(self, pod_uid: str, name: str, exit_code: int = 0) -> None:
        """The container's process ends by itself. Raises ``KeyError`` where there is none."""
        found = self._pods[pod_uid][name]
        if found.status.state is State.RUNNING:
            self._pods[pod_uid][name] = replace(found, status=_ended(found.status, exit_code))
        for queue in self._watchers:
            queue.put_nowait(pod_uid)

    async def remove(self, pod_uid: str) -> None:
        self._pods.pop(pod_uid, None)
        await asyncio.to_thread(shutil.rmtree, self.state / pod_uid, ignore_errors=True)

    def statuses(self, pod_uid: str) -> dict[str, ContainerStatus]:
        return {name: c.status for name, c in self._pods.get(pod_uid, {}).items()}

    def pods(self) -> set[str]:
        return set(self._pods)

    async def changes(self) -> AsyncIterator[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    def spec(self, pod_uid: str, name: str) -> JSON:
        return self._pods[pod_uid][name].spec

    async def logs(self, pod_uid: str, name: str, options: LogOptions) -> AsyncIterator[bytes]:
        """What was injected, since nothing runs."""
        process = self.spec(pod_uid, name)["process"]
        yield b"# simulated: nothing runs here; this container would have been started with\n"
        yield json.dumps({"args": process["args"], "env": process["env"]}).encode() + b"\n"

    async def exec(
        self, pod_uid: str, name: str, command: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> ExecSession:
        self.spec(pod_uid, name)
        raise ContainerError("containers are simulated here: nothing runs in which a command could")

    async def reboot(self) -> None:
        for uid in self.pods():
            await self.remove(uid)

    async def close(self) -> None:
        self._pods.clear()


def _ended(status: ContainerStatus, code: int) -> ContainerStatus:
    reason = "Completed" if code == 0 else "Error"
    return replace(status, state=State.EXITED, finished_at=time.time(), exit_code=code, reason=reason)


__all__ = ["SimulatedRuntime", "oci_spec"]
