"""What the kubelet asks of a container runtime: as much of the CRI as pods with devices need.

The kubelet decides (order, restarts, back-off, probes, volumes); the runtime runs one container when it is told to, and says when
it ended. Containers outlive the kubelet: after its restart the kubelet asks :meth:`ContainerRuntime.statuses` and carries on.
Source: k8s.io/cri-api, runtime.v1.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol

_NOT_STARTED = 128  # the exit code of a container whose process could not be started


class ContainerError(Exception):
    """A container cannot be created or started.

    ``reason`` is what ``state.waiting.reason`` of the pod's status shows (``CreateContainerError``, ``RunContainerError``,
    ``ErrImagePull``, ...); the text is the runtime's own, as in the pod's event.
    """

    def __init__(self, message: str, reason: str = "CreateContainerError") -> None:
        super().__init__(message)
        self.reason = reason


class ImagePullError(ContainerError):
    """The image is not there and cannot be had."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "ErrImagePull")


class Role(Enum):
    """What a container is for."""

    INIT = "init"  # runs to its end before the next one starts
    SIDECAR = "sidecar"  # an init container with restartPolicy Always: starts in its turn, runs as long as the pod
    MAIN = "main"


class ContainerState(Enum):
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True)
class Sandbox:
    """A pod as the runtime knows it. ``folder`` is the pod's own on the host (kubelet root, pods/<uid>), for what it needs there;
    ``restart_policy`` tells a runtime that only simulates whether a container is to end by itself."""

    namespace: str
    name: str
    uid: str
    hostname: str
    folder: Path
    annotations: Mapping[str, str] = field(default_factory=dict)
    host_network: bool = False
    restart_policy: str = "Always"


@dataclass(frozen=True)
class Mount:
    """A file or folder of the host in the container. ``from_host``: the pod asked for this very path (hostPath), it is not one that
    the kubelet made; a runtime that guards the host refuses it."""

    host: Path
    container: str
    read_only: bool = False
    from_host: bool = False


@dataclass(frozen=True)
class Limits:
    """``memory`` in bytes, ``cpu`` and the ``share`` of it that counts when others want some in thousandths; 0: no limit."""

    memory: int = 0
    cpu: int = 0
    share: int = 0


@dataclass(frozen=True)
class ContainerConfig:
    """One container to start.

    Args:
        attempt: 0, and one more with each restart in this pod; a container is known by pod UID, name and attempt.
        command: replaces the image's entry point where it is not empty, and ``args`` its arguments; references are expanded.
        env: in order, values resolved (``valueFrom`` included).
        cdi_devices: qualified names, in the order of injection.
        user, group: numbers, or None for the image's.
        stdin, stdin_once: whether its standard input is open for who attaches, and for the first one alone.
        tty: whether its process has a terminal.
        limits: what it may have of the machine.
        security: the container's ``securityContext`` over the pod's, as in the API; what a runtime does not implement it refuses.
    """

    name: str
    role: Role
    attempt: int
    image: str
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    working_dir: str = ""
    env: Sequence[tuple[str, str]] = ()
    mounts: Sequence[Mount] = ()
    cdi_devices: Sequence[str] = ()
    user: int | None = None
    group: int | None = None
    security: Mapping[str, Any] = field(default_factory=dict)
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class ContainerStatus:
    """The newest attempt of a container. Times are seconds since the epoch.

    Args:
        id: as in ``containerStatuses[].containerID``, with the runtime's scheme (``containerd://...``).
        simulated: nothing really runs; the pod says so.
        reason: why it ended (``Completed``, ``Error``, ``OOMKilled``, ``StartError``), empty while it runs.
        message: its termination message.
    """

    id: str
    name: str
    attempt: int
    state: ContainerState
    image: str
    started_at: float
    simulated: bool = False
    finished_at: float = 0.0
    exit_code: int = 0
    reason: str = ""
    message: str = ""

    def not_started(self, message: str) -> ContainerStatus:
        """The same container as containerd has it whose process could not be started."""
        return replace(
            self, state=ContainerState.EXITED, started_at=0.0, finished_at=time.time(), exit_code=_NOT_STARTED,
            reason="StartError", message=message,
        )  # fmt: skip


@dataclass(frozen=True)
class LogOptions:
    """As ``kubectl logs``: 0 and None mean everything."""

    follow: bool = False
    previous: bool = False  # of the attempt before
    tail: int | None = None  # lines
    since: float = 0.0  # seconds since the epoch
    timestamps: bool = False
    limit: int | None = None  # bytes


class HandlerOccasion(Enum):
    """When something is asked of a container that runs; the field of the API in which it is."""

    STARTUP = "startupProbe"
    READINESS = "readinessProbe"
    LIVENESS = "livenessProbe"
    POST_START = "postStart"
    PRE_STOP = "preStop"


@dataclass(frozen=True)
class HandlerAction:
    """A probe or a lifecycle hook that is to be carried out once.

    Args:
        handler: ``exec``, ``httpGet``, ``tcpSocket`` or ``grpc`` as in the API, its port a number.
        timeout: seconds.
        number: of probes of this kind that this attempt of the container has had before.
        annotations: the pod's, as they are now: with them an author says how a simulated one ends.
    """

    occasion: HandlerOccasion
    handler: Mapping[str, Any]
    timeout: float
    number: int = 0
    annotations: Mapping[str, str] = field(default_factory=dict)


class ProbeResult(Enum):
    PASS = auto()
    FAIL = auto()
    ERROR = auto()  # it could not be carried out: as if it had not been tried
    NOBODY = auto()  # nothing really runs, and nobody has said how it would end


@dataclass(frozen=True)
class Outcome:
    """How an :class:`HandlerAction` ended; ``text`` is what the pod's event says of it."""

    verdict: ProbeResult
    text: str = ""


class ExecSession(Protocol):
    """A command in a running container, as ``kubectl exec`` has it."""

    async def read(self) -> tuple[int, bytes] | None:
        """The next output: 1 or 2 for its stream, and the bytes; None at the end."""

    async def write(self, data: bytes) -> None:
        """To its standard input. Empty data closes it."""

    async def resize(self, width: int, height: int) -> None:
        """Of its terminal; nothing without one."""

    async def wait(self) -> int:
        """Its exit code."""

    async def close(self) -> None:
        """Kills it where it still runs."""


class ContainerRuntime(Protocol):
    """Runs containers of one node. All methods may be called at once for different pods; for one pod the kubelet calls in turn.

    ``dev`` is where device nodes are looked up: of a described host, which may be put there before pods run, its own.
    """

    dev: Path

    @property
    def version(self) -> str:
        """For ``status.nodeInfo.containerRuntimeVersion``, e.g. ``simulated://1``."""

    async def start(self, sandbox: Sandbox, container: ContainerConfig) -> ContainerStatus:
        """Injects the CDI devices, creates the container and starts it; of an older attempt only the logs stay.

        Raises :class:`ContainerError`, as containerd would say it, also where a CDI device cannot be resolved. A container that was
        created and could not be started (``RunContainerError``) has ended, as :meth:`ContainerStatus.not_started`.
        """

    async def stop(self, pod_uid: str, name: str, grace: float) -> None:
        """Ends a container: its stop signal, and after ``grace`` seconds the end. Returns once it has ended; unknown is success."""

    async def remove(self, pod_uid: str) -> None:
        """Ends what is left of the pod at once and forgets it, its logs included. Unknown is success."""

    def statuses(self, pod_uid: str) -> dict[str, ContainerStatus]:
        """The newest attempt of each container by name; empty for a pod that is not known."""

    def pods(self) -> set[str]:
        """UIDs of all pods that are known."""

    def changes(self) -> AsyncIterator[str]:
        """UIDs of pods of which a container has ended by itself, from now on. Never ends."""

    def spec(self, pod_uid: str, name: str) -> dict[str, Any]:
        """The OCI spec with which the newest attempt was started, devices injected. Raises ``KeyError``."""

    def logs(self, pod_uid: str, name: str, options: LogOptions) -> AsyncIterator[bytes]:
        """What the container wrote. Raises ``KeyError`` where there is no such container."""

    async def exec(
        self, pod_uid: str, name: str, command: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> ExecSession:
        """Starts a command in a running container.

        Raises :class:`ContainerError`, and ``KeyError`` where there is no such container.
        """

    async def perform(self, pod_uid: str, name: str, action: HandlerAction) -> Outcome:
        """Carries out a probe or a hook in a running container, or from beside it. Never raises for what the container does."""

    async def attach(self, pod_uid: str, name: str) -> ExecSession:
        """What the container's own process writes from now on, and its standard input where that is open.

        Raises :class:`ContainerError`, and ``KeyError`` where there is no such container.
        """

    async def reboot(self) -> None:
        """The machine went down: all containers have ended, as by a power failure, and are forgotten."""

    async def close(self) -> None:
        """The cluster ends: what runs is ended."""


__all__ = [
    "ContainerConfig",
    "ContainerError",
    "ContainerRuntime",
    "ContainerState",
    "ContainerStatus",
    "ExecSession",
    "ImagePullError",
    "LogOptions",
    "Mount",
    "Role",
    "Sandbox",
]
