"""What is kept of a claim, so that any process can answer for it or undo it."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..cdi import ContainerEdits
from ..driver import AllocatedDevice, PreparedClaim, PreparedDevice

JSON = dict[str, Any]


class State(enum.StrEnum):
    PREPARING = "Preparing"
    PREPARED = "Prepared"
    UNPREPARING = "Unpreparing"


@dataclass
class Record:
    """One row. ``doc`` is JSON; fields of it that this version does not know are kept as they are.

    Fields of ``doc``: ``devices`` (request, pool, device, shareID, adminAccess, cdi, data), ``undo`` (step, data), ``cdi`` (the
    claim's CDI spec), ``operation``.
    """

    uid: str
    namespace: str
    name: str
    state: State
    boot_id: str
    owner: str = ""  # the process that works on it; empty when none does
    doc: JSON = field(default_factory=dict)
    error: str = ""
    attempts: int = 0
    created: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)

    @property
    def devices(self) -> list[JSON]:
        found: list[JSON] = self.doc.get("devices") or []
        return found

    @property
    def shown(self) -> str:
        """How messages name the claim."""
        return f"{self.namespace or '?'}/{self.name or '?'} (UID {self.uid})"

    def exclusive(self) -> list[tuple[str, str, str]]:
        """(pool, device, share) that nobody else may hold; admin access holds nothing."""
        return [(d["pool"], d["device"], d.get("shareID") or "") for d in self.devices if not d.get("adminAccess")]

    def same_allocation(self, other: Record) -> bool:
        """Whether both are for the same devices."""
        return sorted(_identity(d) for d in self.devices) == sorted(_identity(d) for d in other.devices)

    def complete_from(self, wanted: Record) -> None:
        """Fills in what a record lacks that was rebuilt from a CDI file: the claim's name, and its requests."""
        self.namespace, self.name = wanted.namespace, wanted.name
        requests = {_identity(d): d.get("request", "") for d in wanted.devices}
        for d in self.devices:
            d["request"] = d.get("request") or requests.get(_identity(d), "")

    def prepared_claim(self, boot_id: str) -> PreparedClaim:
        """What :meth:`Driver.unprepare` is given."""
        devices = [
            PreparedDevice(
                request=d.get("request", ""),
                pool=d["pool"],
                name=d["device"],
                share_id=d.get("shareID"),
                edits=ContainerEdits(),
                data=d.get("data"),
            )
            for d in self.devices
        ]
        return PreparedClaim(
            namespace=self.namespace,
            name=self.name,
            uid=self.uid,
            devices=devices,
            complete=bool(self.doc.get("complete")),
            same_boot=self.boot_id == boot_id,
        )


def _identity(device: Mapping[str, Any]) -> tuple[str, str, str]:
    return (device["pool"], device["device"], device.get("shareID") or "")


def allocated_json(device: AllocatedDevice) -> JSON:
    """An allocated device as a record has it before it is prepared."""
    out: JSON = {"request": device.request, "pool": device.pool, "device": device.name}
    if device.share_id:
        out["shareID"] = device.share_id
    if device.admin_access:
        out["adminAccess"] = True
    return out


def request_names(requests: Sequence[str]) -> list[str]:
    """Names as the kubelet wants them: the base of ``request/subrequest``; an empty list means all."""
    return sorted({r.partition("/")[0] for r in requests if r})
