"""The requests that a running ``dra dev`` accepts on its control socket. Decoding is strict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

JSON = dict[str, Any]
ALL = "all"
"""Selects every node or driver."""
HealthWord = Literal["healthy", "unhealthy", "unknown", "reported"]


class Verb(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", forbid_unknown_fields=True):
    """A request. An empty name of a node or driver selects the only one."""


class Status(Verb, frozen=True, kw_only=True, tag="status"):
    """Shows nodes, drivers, directories and active faults."""


class Page(Verb, frozen=True, kw_only=True, tag="page"):
    """Creates a new link to the page that shows the cluster; the link is valid once."""


class Plug(Verb, frozen=True, kw_only=True, tag="plug"):
    """Adds a PCI function.

    Args:
        function: the address of an unplugged function, or a new function's description in YAML.
    """

    function: str
    node: str = ""


class Unplug(Verb, frozen=True, kw_only=True, tag="unplug"):
    address: str
    node: str = ""


class Write(Verb, frozen=True, kw_only=True, tag="write"):
    """Writes to a file of a described host's sysfs, with the same effect as in the kernel."""

    path: str
    text: str
    node: str = ""


class SetHealth(Verb, frozen=True, kw_only=True, tag="health"):
    """Overrides the result of the driver's ``health()`` for a device; ``reported`` removes the override."""

    device: str
    health: HealthWord
    message: str = ""
    effect: Literal["", "None", "NoSchedule", "NoExecute"] = ""
    driver: str = ""
    node: str = ""


class RestartKubelet(Verb, frozen=True, kw_only=True, tag="restart-kubelet"):
    """Stops and starts the kubelet. ``down_for``: seconds between stop and start."""

    node: str = ""
    down_for: float = 0.0


class Reboot(Verb, frozen=True, kw_only=True, tag="reboot"):
    """Kills the node's containers and drivers like a power failure, then starts kubelet and drivers."""

    node: str = ""


class Kill(Verb, frozen=True, kw_only=True, tag="kill"):
    """Sends SIGKILL to a driver, which is started again after ``down_for`` seconds."""

    driver: str = ""
    node: str = ""
    down_for: float = 1.0


class Upgrade(Verb, frozen=True, kw_only=True, tag="upgrade"):
    """Starts a new instance next to the old one, which is stopped when the new one is ready."""

    driver: str = ""
    node: str = ""


class CutWatch(Verb, frozen=True, kw_only=True, tag="cut-watch"):
    """Breaks all connections to the API server."""


class DropFields(Verb, frozen=True, kw_only=True, tag="drop-fields"):
    """Makes the API server drop these fields of slices, as with a disabled feature gate. An empty list restores all."""

    fields: list[str] = []


class ServeVersions(Verb, frozen=True, kw_only=True, tag="serve"):
    """Sets the versions of resource.k8s.io that the API server serves. An empty list restores all."""

    versions: list[str] = []


class Conflict(Verb, frozen=True, kw_only=True, tag="conflict"):
    """Makes the API server reject the next ``count`` updates with 409."""

    count: int = 1


class Throttle(Verb, frozen=True, kw_only=True, tag="throttle"):
    """Makes the API server reject the next ``count`` requests with 429."""

    count: int = 1


class Slow(Verb, frozen=True, kw_only=True, tag="slow"):
    """Delays each response of the API server by ``seconds``; 0 ends the delay."""

    seconds: float


class Away(Verb, frozen=True, kw_only=True, tag="away"):
    """Makes the API server unavailable for ``seconds``."""

    seconds: float


class End(Verb, frozen=True, kw_only=True, tag="end"):
    """Ends a simulated container as if its process had exited."""

    pod: str
    namespace: str = "default"
    container: str = ""
    exit_code: int = 0


class Stop(Verb, frozen=True, kw_only=True, tag="stop"):
    """Stops the whole cluster."""


AnyVerb = (
    Status | Page | Plug | Unplug | Write | SetHealth | RestartKubelet | Reboot | Kill | Upgrade | CutWatch | DropFields | ServeVersions
    | Conflict | Throttle | Slow | Away | End | Stop
)  # fmt: skip


class VerbResult(msgspec.Struct, frozen=True, kw_only=True):
    """The response. ``text`` is for people, ``data`` for programs. ``error`` is set if the request was not carried out."""

    text: str = ""
    data: Mapping[str, Any] = {}
    error: str = ""


__all__ = [
    "ALL",
    "AnyVerb",
    "Away",
    "Conflict",
    "CutWatch",
    "DropFields",
    "End",
    "HealthWord",
    "Kill",
    "Page",
    "Plug",
    "Reboot",
    "RestartKubelet",
    "ServeVersions",
    "SetHealth",
    "Slow",
    "Status",
    "Stop",
    "Throttle",
    "Unplug",
    "Upgrade",
    "Verb",
    "VerbResult",
    "Write",
]  # fmt: skip
