"""A runtime that runs no processes. It injects devices into an OCI spec like containerd, and keeps the spec for tests."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

from .base_spec import PATH, bind, with_devices
from .changes import Changes
from .container_logs import ContainerLog
from .interface import (
    ApiAccess,
    ContainerConfig,
    ContainerError,
    ContainerState,
    ContainerStatus,
    ExecSession,
    HandlerAction,
    LogOptions,
    Outcome,
    Role,
    Sandbox,
)
from .node_files import NodeFiles
from .simulated_behavior import PREFIX, behavior_of, outcome_of

_HINT = "`kubectl logs` shows what was injected, and `dra dev --containers` runs real containers"


def _base_spec(container: ContainerConfig) -> JSON:
    return {
        "ociVersion": "1.1.0",
        "process": {
            "user": {"uid": container.user or 0, "gid": container.group or 0},
            "args": [*container.command, *container.args] or ["/bin/sh"],
            "env": [PATH, *(f"{name}={value}" for name, value in container.env)],
            "cwd": container.working_dir or "/",
        },
        "root": {"path": "rootfs"},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, *map(bind, container.mounts)],
        "linux": {},
    }


def _unmountable(spec: Mapping[str, Any]) -> str:
    """Returns why runc could not mount the container's file systems; empty if it could."""
    for mount in spec["mounts"]:
        if not mount.get("type") and not {"bind", "rbind"} & set(mount.get("options") or ()):
            source, place = mount["source"], mount["destination"]
            return (  # runc would treat such a mount as a file system without a type
                f'failed to create containerd task: error mounting "{source}" to rootfs at "{place}": no such device: the CDI mount '
                "has neither a type nor the option bind"
            )
    return ""


@dataclass
class _SimulatedContainer:
    status: ContainerStatus
    spec: JSON
    log: ContainerLog
    end: asyncio.TimerHandle | None = None


class SimulatedRuntime:
    """Simulates containers.

    A container ends when :mod:`.simulated_behavior` schedules it, when it is stopped, or when :meth:`end` is called.

    Args:
        state: a directory for the logs and the OCI specs, ``<pod UID>/<container>.json``.
        cdi_dirs: directories of CDI specs, lowest priority first.
        dev: the directory in which device nodes are looked up. A described host has its own directory.
    """

    version = "simulated://1"

    def __init__(self, state: Path, cdi_dirs: Sequence[Path], dev: Path = Path("/dev")) -> None:
        self.state = state
        self.cdi_dirs = cdi_dirs
        self.dev = dev
        self.api: ApiAccess | None = None
        self._pods: dict[str, dict[str, _SimulatedContainer]] = {}
        self._earlier: dict[tuple[str, str], ContainerLog] = {}  # logs of the previous attempt
        self._changes = Changes()

    def node_path(self, path: str) -> Path | None:
        return NodeFiles(self.state.parent / "kubelet", next(iter(self.cdi_dirs), None), self.dev).find(path)

    async def start(self, sandbox: Sandbox, container: ContainerConfig) -> ContainerStatus:
        behavior = behavior_of(sandbox, container)
        spec = with_devices(_base_spec(container), container, self.cdi_dirs, self.dev)
        folder = self.state / sandbox.uid
        # Environments may contain secrets, so only the owner can read these directories.
        for place in (self.state, folder):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = ContainerLog(folder / f"{container.name}-{container.attempt}.log")
        (folder / f"{container.name}.json").write_text(json.dumps(spec, indent=2) + "\n")
        log.write("stdout", describe_injection(container, spec))
        status = ContainerStatus(
            f"simulated://{sandbox.uid}/{container.name}/{container.attempt}",
            container.name,
            container.attempt,
            ContainerState.RUNNING,
            container.image,
            time.time(),
            simulated=True,
        )
        containers = self._pods.setdefault(sandbox.uid, {})
        if before := containers.get(container.name):
            _close(before)
            self._earlier[sandbox.uid, container.name] = before.log
        found = _SimulatedContainer(status, spec, log)
        containers[container.name] = found
        if why := _unmountable(spec):
            found.status = status.not_started(why)
            log.close()
            raise ContainerError(why, "RunContainerError")
        if behavior.seconds == 0.0 and container.role is Role.INIT:
            _ended(found, behavior.exit_code)
        elif behavior.seconds is not None:
            found.end = asyncio.get_running_loop().call_later(
                behavior.seconds, self._end, sandbox.uid, found, behavior.exit_code
            )
        return found.status

    def _end(self, pod_uid: str, container: _SimulatedContainer, code: int) -> None:
        _ended(container, code)
        self._changes.notify(pod_uid)

    async def stop(self, pod_uid: str, name: str, grace: float) -> None:
        if found := self._pods.get(pod_uid, {}).get(name):
            _ended(found, 137 if grace == 0 else 143)

    def end(self, pod_uid: str, name: str, exit_code: int = 0) -> None:
        """Ends a container as if its process had exited.

        Raises:
            KeyError: there is no such container.
        """
        self._end(pod_uid, self._pods[pod_uid][name], exit_code)

    async def remove(self, pod_uid: str) -> None:
        for container in self._pods.pop(pod_uid, {}).values():
            _close(container)
        self._earlier = {key: log for key, log in self._earlier.items() if key[0] != pod_uid}
        await asyncio.to_thread(shutil.rmtree, self.state / pod_uid, ignore_errors=True)

    def statuses(self, pod_uid: str) -> dict[str, ContainerStatus]:
        return {name: c.status for name, c in self._pods.get(pod_uid, {}).items()}

    def pods(self) -> set[str]:
        return set(self._pods)

    def changes(self) -> AsyncIterator[str]:
        return self._changes.listen()

    def spec(self, pod_uid: str, name: str) -> JSON:
        return copy.deepcopy(self._pods[pod_uid][name].spec)

    def logs(self, pod_uid: str, name: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Yields a description of the injected devices, because no process writes a log."""
        log = self._earlier[pod_uid, name] if options.previous else self._pods[pod_uid][name].log
        return log.read(options)

    async def exec(
        self, pod_uid: str, name: str, command: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> ExecSession:
        self.spec(pod_uid, name)
        raise ContainerError(
            f"containers are simulated here, so no process runs and no command can be executed: {_HINT}"
        )

    async def attach(self, pod_uid: str, name: str) -> ExecSession:
        self.spec(pod_uid, name)
        raise ContainerError(f"containers are simulated here, so there is no process to attach to: {_HINT}")

    async def perform(self, pod_uid: str, name: str, action: HandlerAction) -> Outcome:
        return outcome_of(name, action)

    async def reboot(self) -> None:
        for uid in self.pods():
            await self.remove(uid)

    async def close(self) -> None:
        await self.reboot()


def describe_injection(container: ContainerConfig, spec: Mapping[str, Any]) -> str:
    """Returns the log of a simulated container: the command and the devices that a real container would have."""
    process, linux = spec["process"], spec["linux"]
    own = {f"{name}={value}" for name, value in container.env} | {PATH}
    lines = [
        "# This container is simulated: no process runs. `dra dev --containers` runs real containers.",
        f"# Annotations set the time and exit code: {PREFIX}/duration: 5s, {PREFIX}/exit-code: 1",
        f"image: {container.image}",
        f"command: {json.dumps(process['args'])}",
    ]
    lines += _section("environment of the pod", [e for e in process["env"] if e in own - {PATH}])
    lines += _section("requested devices", container.cdi_devices)
    lines += _section("environment injected", [e for e in process["env"] if e not in own])
    lines += _section("devices injected", map(_device, linux.get("devices") or []))
    lines += _section("network devices injected", linux.get("netDevices") or {})
    lines += _section("mounts", [_mount(m) for m in spec["mounts"] if m.get("type") != "proc"])
    lines += _section("groups injected", map(str, process["user"].get("additionalGids") or []))
    hooks = (
        f"{stage}: {' '.join(h.get('args') or [h['path']])}"
        for stage, found in (spec.get("hooks") or {}).items()
        for h in found
    )
    return "\n".join([*lines, *_section("hooks injected", hooks)])


def _section(title: str, entries: Any) -> list[str]:
    found = [f"  {entry}" for entry in entries]
    return [f"{title}:", *found] if found else []


def _device(device: Mapping[str, Any]) -> str:
    return f"{device['path']} {device['type']} {device.get('major', 0)}:{device.get('minor', 0)}"


def _mount(mount: Mapping[str, Any]) -> str:
    return f"{mount['destination']} from {mount.get('source', '')} ({','.join(mount.get('options') or [])})"


def _ended(container: _SimulatedContainer, code: int) -> None:
    if container.status.state is ContainerState.RUNNING:
        reason = "Completed" if code == 0 else "Error"
        container.status = replace(
            container.status, state=ContainerState.EXITED, finished_at=time.time(), exit_code=code, reason=reason
        )
    _close(container)


def _close(container: _SimulatedContainer) -> None:
    if container.end:
        container.end.cancel()
    container.log.close()
