"""The interface between the kubelet and a container runtime: the part of the CRI that pods with devices need.

The kubelet decides about order, restarts, backoff, probes and volumes. The runtime starts and stops single containers
and reports when they end. Containers continue to run while the kubelet restarts. The new kubelet then reads
:meth:`ContainerRuntime.statuses`. Source: k8s.io/cri-api, runtime.v1.
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
    """A container cannot be created or started. The text becomes an event of the pod.

    Args:
        reason: ``state.waiting.reason`` of the pod's status (``CreateContainerError``, ``RunContainerError``,
            ``ErrImagePull``, ...).
    """

    def __init__(self, message: str, reason: str = "CreateContainerError") -> None:
        super().__init__(message)
        self.reason = reason


class ImagePullError(ContainerError):
    """The image is missing and cannot be pulled."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "ErrImagePull")


class Role(Enum):
    """The role of a container in its pod."""

    INIT = "init"  # runs to its end before the next container starts
    SIDECAR = "sidecar"  # an init container with restartPolicy Always; it starts in order and runs as long as the pod
    MAIN = "main"


class ContainerState(Enum):
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True)
class Sandbox:
    """The properties of a pod that the runtime needs.

    Args:
        folder: the pod's directory on the host, ``pods/<uid>`` below the kubelet's root, for files of the runtime.
        restart_policy: the pod's restart policy. The simulating runtime uses it to decide whether a container ends by itself.
    """

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
    """A file or directory of the host in the container.

    Args:
        from_host: whether the path is a hostPath of the pod. Otherwise, the kubelet created the path. A runtime that protects
            the host refuses a hostPath.
        of_node: whether the path is a hostPath below a folder of the node that pods may see (:meth:`ContainerRuntime.node_path`).
    """

    host: Path
    container: str
    read_only: bool = False
    from_host: bool = False
    of_node: bool = False


@dataclass(frozen=True)
class ApiAccess:
    """How containers reach the API server.

    Args:
        ca: the certificate of its authority, PEM.
    """

    host: str
    port: int
    ca: str


SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The folder of the service account's token in a container."""


@dataclass(frozen=True)
class Limits:
    """Resource limits of a container. 0 means no limit.

    Args:
        memory: bytes.
        cpu: thousandths of a CPU.
        share: the container's share of a busy CPU, from its CPU request in thousandths of a CPU.
    """

    memory: int = 0
    cpu: int = 0
    share: int = 0


@dataclass(frozen=True)
class ContainerConfig:
    """One container to start.

    Args:
        attempt: the number of restarts of this container in this pod. The pod's UID, the name and the attempt identify a container.
        command: replaces the image's entry point if it is not empty. References such as ``$(NAME)`` are already expanded.
        args: replaces the image's arguments if it is not empty. References are already expanded.
        env: names and values, in order. References and ``valueFrom`` are already resolved.
        cdi_devices: CDI device ids, in the order of injection.
        user, group: numeric ids; None for the user or group of the image.
        stdin: whether attached clients can write to standard input.
        stdin_once: whether standard input is closed after the first attached client has written and detached.
        tty: whether the process has a terminal.
        security: the ``securityContext`` of the pod, overridden by the fields of the container's ``securityContext``. A
            runtime refuses fields that it does not implement.
        limits: resource limits.
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
    """The status of the newest attempt of a container. Times are in seconds since the epoch.

    Args:
        id: as in ``containerStatuses[].containerID``, with the runtime's scheme (``containerd://...``).
        simulated: whether the container is simulated, without a process. The pod then has the condition Simulated.
        reason: why the container ended (``Completed``, ``Error``, ``OOMKilled``, ``StartError``); empty while it runs.
        message: the container's termination message.
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
        """Returns the status that containerd reports for this container if its process could not be started."""
        return replace(
            self,
            state=ContainerState.EXITED,
            started_at=0.0,
            finished_at=time.time(),
            exit_code=_NOT_STARTED,
            reason="StartError",
            message=message,
        )


@dataclass(frozen=True)
class LogOptions:
    """Options of ``kubectl logs``. The values 0 and None mean no restriction."""

    follow: bool = False
    previous: bool = False  # logs of the previous attempt
    tail: int | None = None  # lines
    since: float = 0.0  # seconds since the epoch
    timestamps: bool = False
    limit: int | None = None  # bytes


class HandlerOccasion(Enum):
    """When a probe or hook runs. The value is its field in the API."""

    STARTUP = "startupProbe"
    READINESS = "readinessProbe"
    LIVENESS = "livenessProbe"
    POST_START = "postStart"
    PRE_STOP = "preStop"


@dataclass(frozen=True)
class HandlerAction:
    """One run of a probe or lifecycle hook.

    Args:
        handler: ``exec``, ``httpGet``, ``tcpSocket`` or ``grpc`` as in the API, with a numeric port.
        timeout: seconds.
        number: how often this probe has already run for this attempt of the container.
        annotations: the pod's annotations, which set the results of a simulated container.
    """

    occasion: HandlerOccasion
    handler: Mapping[str, Any]
    timeout: float
    number: int = 0
    annotations: Mapping[str, str] = field(default_factory=dict)


class ProbeResult(Enum):
    PASS = auto()
    FAIL = auto()
    ERROR = auto()  # the probe could not be run; it does not count
    UNDEFINED = auto()  # the container is simulated, and no annotation sets a result


@dataclass(frozen=True)
class Outcome:
    """The result of a :class:`HandlerAction`. ``text`` is for the pod's event."""

    result: ProbeResult
    text: str = ""


class ExecSession(Protocol):
    """A command in a running container, as for ``kubectl exec``."""

    async def read(self) -> tuple[int, bytes] | None:
        """Returns the next output as its stream (1 or 2) and the bytes; None at the end."""

    async def write(self, data: bytes) -> None:
        """Writes to standard input. Empty data closes it."""

    async def resize(self, width: int, height: int) -> None:
        """Sets the size of the terminal. Does nothing without a terminal."""

    async def wait(self) -> int:
        """Waits for the command to end. Returns its exit code."""

    async def close(self) -> None:
        """Kills the command if it still runs."""


class ContainerRuntime(Protocol):
    """Runs the containers of one node.

    Methods may be called concurrently for different pods. For one pod, the kubelet makes one call at a time. ``dev`` is
    the directory in which device nodes are looked up. For a described host, it is set before pods run. ``api`` is how containers
    reach the API server; None if they cannot, and then they get no token of their service account.
    """

    dev: Path
    api: ApiAccess | None

    def node_path(self, path: str) -> Path | None:
        """Returns the file of this machine for a path of the node; None if pods may not see the path."""

    @property
    def version(self) -> str:
        """The value of ``status.nodeInfo.containerRuntimeVersion``, for example ``simulated://1``."""

    async def start(self, sandbox: Sandbox, container: ContainerConfig) -> ContainerStatus:
        """Injects the CDI devices, creates the container and starts it. Keeps only the logs of the previous attempt.

        Raises:
            ContainerError: the container cannot be started, or a CDI device cannot be resolved. The text is the same as
                containerd's. If the container was created, but not started (``RunContainerError``), its status is
                :meth:`ContainerStatus.not_started`.
        """

    async def stop(self, pod_uid: str, name: str, grace: float) -> None:
        """Stops a container: sends its stop signal and kills it after ``grace`` seconds. Returns when it has ended.

        Does nothing if the container is unknown.
        """

    async def remove(self, pod_uid: str) -> None:
        """Kills the pod's containers and deletes its state and logs. Does nothing if the pod is unknown."""

    def statuses(self, pod_uid: str) -> dict[str, ContainerStatus]:
        """Returns the newest attempt of each container by name; empty for an unknown pod."""

    def pods(self) -> set[str]:
        """Returns the UIDs of all known pods."""

    def changes(self) -> AsyncIterator[str]:
        """Yields the UID of a pod each time one of its containers ends by itself, after the first item was awaited. Never ends."""

    def spec(self, pod_uid: str, name: str) -> dict[str, Any]:
        """Returns the OCI spec, with devices, of the newest attempt.

        Raises:
            KeyError: there is no such container.
        """

    def logs(self, pod_uid: str, name: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Yields the container's output.

        Raises:
            KeyError: there is no such container.
        """

    async def exec(
        self, pod_uid: str, name: str, command: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> ExecSession:
        """Starts a command in a running container.

        Raises:
            ContainerError: the command cannot be started.
            KeyError: there is no such container.
        """

    async def perform(self, pod_uid: str, name: str, action: HandlerAction) -> Outcome:
        """Runs a probe or hook in a running container or through the pod's network.

        A failure of the probe or hook is in the result. It is not raised.
        """

    async def attach(self, pod_uid: str, name: str) -> ExecSession:
        """Attaches to the container's main process: to its further output, and to its standard input if that is open.

        Raises:
            ContainerError: the container is not running.
            KeyError: there is no such container.
        """

    async def reboot(self) -> None:
        """Kills and forgets all containers, as a power failure does."""

    async def close(self) -> None:
        """Stops all containers at the end of the cluster."""
