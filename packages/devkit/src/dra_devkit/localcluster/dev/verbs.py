"""The requests that a running ``dra dev`` accepts on its control socket. Unknown fields are an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

ALL = "all"
"""Selects every node or driver."""
HealthWord = Literal["healthy", "unhealthy", "unknown", "reported"]


class Verb(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", forbid_unknown_fields=True):
    """A request. An empty name selects the only node or the only driver."""


class Status(Verb, frozen=True, kw_only=True, tag="status"):
    """Shows nodes, drivers, directories and active faults."""


class PrintLink(Verb, frozen=True, kw_only=True, tag="print-link"):
    """Creates a new link to the page that shows the cluster. The link can be used once."""


class PlugFunction(Verb, frozen=True, kw_only=True, tag="plug-function"):
    """Adds a PCI function.

    Args:
        function: the address of an unplugged function, or a new function's description in YAML.
    """

    function: str
    node: str = ""


class UnplugFunction(Verb, frozen=True, kw_only=True, tag="unplug-function"):
    address: str
    node: str = ""


class WriteSysfs(Verb, frozen=True, kw_only=True, tag="write-sysfs"):
    """Writes to a file of a described host's sysfs. Imitates the kernel's effect."""

    path: str
    text: str
    node: str = ""


class SetHealth(Verb, frozen=True, kw_only=True, tag="set-health"):
    """Overrides the result of the driver's ``health()`` for a device. The health ``reported`` removes the override."""

    device: str
    health: HealthWord
    message: str = ""
    effect: Literal["", "NoSchedule", "NoExecute"] = ""
    driver: str = ""
    node: str = ""


class RestartKubelet(Verb, frozen=True, kw_only=True, tag="restart-kubelet"):
    """Stops and starts the kubelet. ``down_for``: seconds between stop and start."""

    node: str = ""
    down_for: float = 0.0


class RebootNode(Verb, frozen=True, kw_only=True, tag="reboot-node"):
    """Kills the node's containers and drivers like a power failure, then starts the kubelet and the drivers."""

    node: str = ""


class KillDriver(Verb, frozen=True, kw_only=True, tag="kill-driver"):
    """Sends SIGKILL to a driver, and starts the driver again after ``down_for`` seconds."""

    driver: str = ""
    node: str = ""
    down_for: float = 1.0


class UpgradeDriver(Verb, frozen=True, kw_only=True, tag="upgrade-driver"):
    """Starts a new instance of a driver, and stops the old instance when the new one is ready."""

    driver: str = ""
    node: str = ""


class CutConnections(Verb, frozen=True, kw_only=True, tag="cut-connections"):
    """Breaks all connections to the API server."""


class DropFields(Verb, frozen=True, kw_only=True, tag="drop-fields"):
    """Makes the API server drop these fields of slices, as with a disabled feature gate. An empty list restores all fields."""

    fields: list[str] = []


class ServeVersions(Verb, frozen=True, kw_only=True, tag="serve-versions"):
    """Sets the versions of resource.k8s.io that the API server serves. An empty list restores all versions."""

    versions: list[str] = []


class ApiConflicts(Verb, frozen=True, kw_only=True, tag="api-conflicts"):
    """Makes the API server reject the next ``count`` updates with 409."""

    count: int = 1


class ApiThrottling(Verb, frozen=True, kw_only=True, tag="api-throttling"):
    """Makes the API server reject the next ``count`` requests with 429."""

    count: int = 1


class ApiDelay(Verb, frozen=True, kw_only=True, tag="api-delay"):
    """Delays each response of the API server by ``seconds``; 0 ends the delay."""

    seconds: float


class ApiOutage(Verb, frozen=True, kw_only=True, tag="api-outage"):
    """Makes the API server unavailable for ``seconds``."""

    seconds: float


class ExitContainer(Verb, frozen=True, kw_only=True, tag="exit-container"):
    """Ends a simulated container as if its process had exited."""

    pod: str
    namespace: str = "default"
    container: str = ""
    exit_code: int = 0


class Stop(Verb, frozen=True, kw_only=True, tag="stop"):
    """Stops the whole cluster."""


AnyVerb = (
    Status
    | PrintLink
    | PlugFunction
    | UnplugFunction
    | WriteSysfs
    | SetHealth
    | RestartKubelet
    | RebootNode
    | KillDriver
    | UpgradeDriver
    | CutConnections
    | DropFields
    | ServeVersions
    | ApiConflicts
    | ApiThrottling
    | ApiDelay
    | ApiOutage
    | ExitContainer
    | Stop
)


class VerbResult(msgspec.Struct, frozen=True, kw_only=True):
    """The response. ``text`` is for people, ``data`` for programs. ``error`` is set if the request was not carried out."""

    text: str = ""
    data: Mapping[str, Any] = {}
    error: str = ""
