"""What a claim can ask for, typed: the names are those of ``resource.k8s.io/v1``.

    ClaimSpec(
        Request("gpus", count=2, selectors=['device.attributes["gpu.example.com"].index < 4']),
        FirstAvailable("nic", [SubRequest("fast", "nics-100g"), SubRequest("any", "nics")]),
        constraints=[MatchAttribute("resource.kubernetes.io/pcieRoot")],
        config=[OpaqueConfig("gpu.example.com", {"apiVersion": "gpu.example.com/v1", "kind": "GpuConfig"}, requests=["gpus"])],
    )

Nothing is checked here: the API server says what it refuses, as it would to kubectl. Source: KEP-4381 and those named below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

JSON = dict[str, Any]
CLASS = "devices"
"""The DeviceClass of all devices of the driver under test, which is there in every test."""


@dataclass(frozen=True)
class Toleration:
    """Of a device's taints (KEP-5055). Without a key it tolerates every taint.

    Args:
        seconds: how long a NoExecute taint is tolerated; None for ever.
    """

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["", "NoSchedule", "NoExecute"] = ""
    seconds: int | None = None

    def to_json(self) -> JSON:
        given = {"key": self.key, "operator": self.operator, "value": self.value, "effect": self.effect}
        out: JSON = {k: v for k, v in given.items() if v}
        return out if self.seconds is None else out | {"tolerationSeconds": self.seconds}


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What a request and an alternative have in common.

    Args:
        count: of devices; with ``all`` it has no meaning.
        all: every device that matches (``allocationMode: All``).
        selectors: CEL expressions that a device must satisfy, each of them.
        capacity: how much of each device, by name, as quantities (KEP-5075).
        tolerations: of taints that devices may have.
    """

    count: int = 1
    all: bool = False
    selectors: Sequence[str] = ()
    capacity: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Toleration] = ()

    def _json(self, device_class: str) -> JSON:
        out: JSON = {"deviceClassName": device_class, "allocationMode": "All" if self.all else "ExactCount"}
        if not self.all:
            out["count"] = self.count
        if self.selectors:
            out["selectors"] = [{"cel": {"expression": s}} for s in self.selectors]
        if self.capacity:
            out["capacity"] = {"requests": dict(self.capacity)}
        if self.tolerations:
            out["tolerations"] = [t.to_json() for t in self.tolerations]
        return out


@dataclass(frozen=True)
class Request(_Asked):
    """Exactly these devices.

    Args:
        admin_access: devices that may be in use, for monitoring (KEP-5018); the namespace must allow it.
    """

    name: str = "device"
    device_class: str = CLASS
    admin_access: bool = field(default=False, kw_only=True)

    def to_json(self) -> JSON:
        exactly = self._json(self.device_class)
        if self.admin_access:
            exactly["adminAccess"] = True
        return {"name": self.name, "exactly": exactly}


@dataclass(frozen=True)
class SubRequest(_Asked):
    """One alternative of :class:`FirstAvailable`."""

    name: str
    device_class: str = CLASS

    def to_json(self) -> JSON:
        return {"name": self.name, **self._json(self.device_class)}


@dataclass(frozen=True)
class FirstAvailable:
    """The first alternative that can be had (KEP-4816)."""

    name: str
    alternatives: Sequence[SubRequest]

    def to_json(self) -> JSON:
        return {"name": self.name, "firstAvailable": [a.to_json() for a in self.alternatives]}


@dataclass(frozen=True)
class MatchAttribute:
    """All devices of ``requests`` have the same value of ``attribute``, a qualified name; of all requests where none is named."""

    attribute: str
    requests: Sequence[str] = ()

    def to_json(self) -> JSON:
        return _for_requests({"matchAttribute": self.attribute}, self.requests)


@dataclass(frozen=True)
class DistinctAttribute:
    """No two devices of ``requests`` have the same value of ``attribute`` (KEP-5075)."""

    attribute: str
    requests: Sequence[str] = ()

    def to_json(self) -> JSON:
        return _for_requests({"distinctAttribute": self.attribute}, self.requests)


@dataclass(frozen=True)
class OpaqueConfig:
    """Parameters for a driver; of all requests where none is named.

    Args:
        driver: its name.
        parameters: with ``apiVersion`` and ``kind``, as the driver documents them.
    """

    driver: str
    parameters: Mapping[str, Any]
    requests: Sequence[str] = ()

    def to_json(self) -> JSON:
        return _for_requests(
            {"opaque": {"driver": self.driver, "parameters": dict(self.parameters)}},
            self.requests,
        )


class ClaimSpec:
    """The spec of a ResourceClaim, and what a ResourceClaimTemplate has in ``spec.spec``. One device without requests."""

    def __init__(
        self,
        *requests: Request | FirstAvailable,
        constraints: Sequence[MatchAttribute | DistinctAttribute] = (),
        config: Sequence[OpaqueConfig] = (),
    ) -> None:
        self.requests = requests or (Request(),)
        self.constraints = constraints
        self.config = config

    def to_json(self) -> JSON:
        devices: JSON = {"requests": [r.to_json() for r in self.requests]}
        if self.constraints:
            devices["constraints"] = [c.to_json() for c in self.constraints]
        if self.config:
            devices["config"] = [c.to_json() for c in self.config]
        return {"devices": devices}


def _for_requests(entry: JSON, requests: Sequence[str]) -> JSON:
    return ({"requests": list(requests)} if requests else {}) | entry


__all__ = [
    "CLASS",
    "ClaimSpec",
    "DistinctAttribute",
    "FirstAvailable",
    "MatchAttribute",
    "OpaqueConfig",
    "Request",
    "SubRequest",
    "Toleration",
]
