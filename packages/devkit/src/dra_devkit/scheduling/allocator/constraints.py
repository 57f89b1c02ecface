"""Constraints between the devices of one claim: equal or different values of an attribute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from ...kubernetes_releases import AllocatorBehavior
from .pools import Candidate

_KINDS = (("string", "strings"), ("int", "ints"), ("bool", "bools"), ("version", "versions"))
Values = frozenset[tuple[str, Any]]


def attribute_of(candidate: Candidate, name: str) -> ReadOnlyJSON | None:
    """Returns the device's attribute with the fully qualified name ``name``."""
    return attribute(candidate.device, candidate.id.driver, name)


def attribute(device: ReadOnlyJSON, driver: str, name: str) -> ReadOnlyJSON | None:
    """Returns the attribute of a driver's device with the fully qualified name ``name``.

    An attribute in the driver's own domain may be published without the domain.
    """
    attributes = device.get("attributes") or {}
    if name in attributes:
        found: ReadOnlyJSON = attributes[name]
        return found
    domain, _, bare = name.partition("/")
    return attributes.get(bare) if domain == driver else None


class Constraint(ABC):
    """A constraint on the devices of ``requests``; an empty list means all requests."""

    def __init__(self, attribute: str, requests: list[str]) -> None:
        self.attribute = attribute
        self.requests = frozenset(requests)
        self._added: list[Values] = []

    def covers(self, request: str, subrequest: str) -> bool:
        if not self.requests or request in self.requests:
            return True
        return bool(subrequest) and f"{request}/{subrequest}" in self.requests

    @abstractmethod
    def add(self, request: str, values: Values) -> bool:
        """Adds a device with its values. Returns False, without adding it, if the device violates the constraint."""

    def remove(self, request: str) -> None:
        """Removes the device of the request that was added last."""
        self._added.pop()


class MatchAttributeConstraint(Constraint):
    """All devices have the attribute, and at least one of its values is common to all devices.

    The attribute may be a list of values (KEP-5491).
    """

    def add(self, request: str, values: Values) -> bool:
        common = self._added[-1] & values if self._added else values
        if common:
            self._added.append(common)
        return bool(common)


class DistinctAttributeConstraint(Constraint):
    """All devices have the attribute, and no two devices share a value of it."""

    def add(self, request: str, values: Values) -> bool:
        if any(values & others for others in self._added):
            return False
        self._added.append(values)
        return True


class LatestDistinctAttributeConstraint(Constraint):
    """The constraint of releases before 1.37: a device is compared with the latest device of each request only."""

    def __init__(self, attribute: str, requests: list[str]) -> None:
        super().__init__(attribute, requests)
        self._latest: dict[str, Values] = {}

    def add(self, request: str, values: Values) -> bool:
        if any(values & others for others in self._latest.values()):
            return False
        self._latest[request] = values
        return True

    def remove(self, request: str) -> None:
        self._latest.pop(request, None)


def values_of(attribute: ReadOnlyJSON) -> Values:
    """Returns each value with its type, because a string and a version are never equal. A scalar counts as a list of one value."""
    return frozenset(
        (scalar, value)
        for scalar, listed in _KINDS
        for value in ([attribute[scalar]] if scalar in attribute else attribute.get(listed) or ())
    )


def build(claim: ReadOnlyJSON, behavior: AllocatorBehavior) -> list[Constraint]:
    distinct = DistinctAttributeConstraint if behavior.compares_all_devices else LatestDistinctAttributeConstraint
    out: list[Constraint] = []
    for c in claim["spec"].get("devices", {}).get("constraints") or []:
        requests = list(c.get("requests") or [])
        if c.get("matchAttribute") is not None:
            out.append(MatchAttributeConstraint(c["matchAttribute"], requests))
        elif c.get("distinctAttribute") is not None:
            out.append(distinct(c["distinctAttribute"], requests))
        else:
            raise ValueError("empty constraint (unsupported constraint type?)")
    return out
