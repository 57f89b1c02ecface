"""What can be asked of a running ``dra dev``, as it crosses the control socket: typed, decoded strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

JSON = dict[str, Any]
ALL = "all"
"""In place of a node or driver: each of them."""
HealthWord = Literal["healthy", "unhealthy", "unknown", "reported"]


class Verb(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", forbid_unknown_fields=True):
    """Of nodes and drivers an empty name means the only one."""


class Status(Verb, frozen=True, kw_only=True, tag="status"):
    """Nodes, drivers, folders, faults that are on."""


class Page(Verb, frozen=True, kw_only=True, tag="page"):
    """A new link to the page that shows the cluster; it counts once."""


class Plug(Verb, frozen=True, kw_only=True, tag="plug"):
    """``function``: the address of one that was unplugged, or a new one's description in YAML."""

    function: str
    node: str = ""


class Unplug(Verb, frozen=True, kw_only=True, tag="unplug"):
    address: str
    node: str = ""


class Write(Verb, frozen=True, kw_only=True, tag="write"):
    """To a file of a described host's sysfs, with the kernel's effect."""

    path: str
    text: str
    node: str = ""


class SetHealth(Verb, frozen=True, kw_only=True, tag="health"):
    """What ``health()`` of the driver answers for a device from now on; ``reported``: what it says itself."""

    device: str
    health: HealthWord
    message: str = ""
    effect: Literal["", "None", "NoSchedule", "NoExecute"] = ""
    driver: str = ""
    node: str = ""


class RestartKubelet(Verb, frozen=True, kw_only=True, tag="restart-kubelet"):
    """``down``: seconds between its end and its start."""

    node: str = ""
    down: float = 0.0


class Reboot(Verb, frozen=True, kw_only=True, tag="reboot"):
    """The node's containers and drivers end as by a power failure, then drivers and kubelet come back."""

    node: str = ""


class Kill(Verb, frozen=True, kw_only=True, tag="kill"):
    """SIGKILL; started again after ``down`` seconds."""

    driver: str = ""
    node: str = ""
    down: float = 1.0


class Upgrade(Verb, frozen=True, kw_only=True, tag="upgrade"):
    """A new instance beside the old one, which ends once the new one is ready."""

    driver: str = ""
    node: str = ""


class CutWatch(Verb, frozen=True, kw_only=True, tag="cut-watch"):
    """Breaks all connections to the API server."""


class DropFields(Verb, frozen=True, kw_only=True, tag="drop-fields"):
    """The API server drops these fields of slices, as with a feature gate off; none: it keeps all."""

    fields: list[str] = []


class ServeVersions(Verb, frozen=True, kw_only=True, tag="serve"):
    """The versions of resource.k8s.io that the API server has; none: all."""

    versions: list[str] = []


class Conflict(Verb, frozen=True, kw_only=True, tag="conflict"):
    """The next ``count`` updates are refused with 409."""

    count: int = 1


class Throttle(Verb, frozen=True, kw_only=True, tag="throttle"):
    """The next ``count`` requests are refused with 429."""

    count: int = 1


class Slow(Verb, frozen=True, kw_only=True, tag="slow"):
    """Seconds before each answer of the API server; 0: at once."""

    seconds: float


class Away(Verb, frozen=True, kw_only=True, tag="away"):
    """The API server answers nothing useful for this many seconds."""

    seconds: float


class End(Verb, frozen=True, kw_only=True, tag="end"):
    """A simulated container ends by itself."""

    pod: str
    namespace: str = "default"
    container: str = ""
    exit_code: int = 0


class Stop(Verb, frozen=True, kw_only=True, tag="stop"):
    """The whole cluster ends."""


AnyVerb = (
    Status | Page | Plug | Unplug | Write | SetHealth | RestartKubelet | Reboot | Kill | Upgrade | CutWatch | DropFields | ServeVersions
    | Conflict | Throttle | Slow | Away | End | Stop
)  # fmt: skip


class VerbResult(msgspec.Struct, frozen=True, kw_only=True):
    """``text`` is for people, ``data`` for programs; ``error`` where the verb was not done."""

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
