"""Typed builders for the spec of a ResourceClaim. They have the names that ``resource.k8s.io/v1`` uses.

    ClaimSpec(
        Request("gpus", count=2, selectors=['device.attributes["gpu.example.com"].index < 4']),
        FirstAvailable("nic", [SubRequest("fast", "nics-100g"), SubRequest("any", "nics")]),
        constraints=[MatchAttribute("resource.kubernetes.io/pcieRoot")],
        config=[OpaqueConfig("gpu.example.com", {"apiVersion": "gpu.example.com/v1", "kind": "GpuConfig"})],
    )

The builders validate nothing; the API server validates the claim. Source: KEP-4381 and the KEPs named below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dra_kubeletplugin.base.json_types import JSON

CLASS = "devices"
"""The DeviceClass for all devices of the driver under test. Every test has it."""


@dataclass(frozen=True)
class Toleration:
    """A toleration of device taints (KEP-5055). Without a key it tolerates every taint.

    Args:
        seconds: how long a NoExecute taint is tolerated; None means forever.
    """

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["", "NoSchedule", "NoExecute"] = ""
    seconds: int | None = None

    def to_json(self) -> JSON:
        fields = {"key": self.key, "operator": self.operator, "value": self.value, "effect": self.effect}
        out: JSON = {k: v for k, v in fields.items() if v}
        return out if self.seconds is None else out | {"tolerationSeconds": self.seconds}


@dataclass(frozen=True, kw_only=True)
class _RequestFields:
    """The fields that a request and an alternative share.

    Args:
        count: the number of devices; ignored if ``all`` is set.
        all: every device that matches (``allocationMode: All``).
        selectors: CEL expressions; a device must satisfy all of them.
        capacity: how much of each device is requested: quantities by capacity name (KEP-5075).
        tolerations: tolerations of device taints.
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
class Request(_RequestFields):
    """A request for an exact number of devices.

    Args:
        admin_access: requests devices that may be in use, for monitoring (KEP-5018); the namespace must allow it.
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
class SubRequest(_RequestFields):
    """One alternative of :class:`FirstAvailable`."""

    name: str
    device_class: str = CLASS

    def to_json(self) -> JSON:
        return {"name": self.name, **self._json(self.device_class)}


@dataclass(frozen=True)
class FirstAvailable:
    """A request for the first alternative that can be allocated (KEP-4816)."""

    name: str
    alternatives: Sequence[SubRequest]

    def to_json(self) -> JSON:
        return {"name": self.name, "firstAvailable": [a.to_json() for a in self.alternatives]}


@dataclass(frozen=True)
class MatchAttribute:
    """Requires that all devices of ``requests`` have the same value of ``attribute``, a qualified name.

    Without ``requests``, it applies to all requests of the claim.
    """

    attribute: str
    requests: Sequence[str] = ()

    def to_json(self) -> JSON:
        return _for_requests({"matchAttribute": self.attribute}, self.requests)


@dataclass(frozen=True)
class DistinctAttribute:
    """Requires that no two devices of ``requests`` have the same value of ``attribute`` (KEP-5075)."""

    attribute: str
    requests: Sequence[str] = ()

    def to_json(self) -> JSON:
        return _for_requests({"distinctAttribute": self.attribute}, self.requests)


@dataclass(frozen=True)
class OpaqueConfig:
    """Opaque parameters for a driver. Without ``requests``, they apply to all requests of the claim.

    Args:
        driver: the name of the driver.
        parameters: the parameters in the form that the driver documents, with ``apiVersion`` and ``kind``.
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
    """The spec of a ResourceClaim, also used as ``spec.spec`` of a ResourceClaimTemplate.

    The default is one request for one device.
    """

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
