"""Claims as a driver sees them: what is allocated, what was prepared, what must be undone."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..cdi import ContainerEdits
from ..errors import DriverError
from ..resourceapi.encoded import from_json
from ..resourceapi.quantity import Quantity
from ..resourceapi.types import Attribute, Device
from .config.model import Config
from .status import DeviceStatus, ReportedStatus, StatusSink

JSON = Any


@dataclass(frozen=True, kw_only=True)
class PreparedDevice:
    """A driver's answer for one allocated device; made by :meth:`AllocatedDevice.prepared`.

    ``edits`` are what containers get. ``data`` is the driver's own JSON of at most 64 KiB: it is kept in the record and comes
    back at unprepare. ``admin_access`` is that of the allocation: such a device is held by nobody, and :meth:`Driver.recover`
    must say so. ``status`` is told in the claim once it is prepared (KEP-4817); no outage of the API server fails a prepare.
    ``metadata`` are attributes for programs in containers besides the device's own, where :attr:`Driver.metadata` is on.
    """

    request: str
    pool: str
    name: str
    share_id: str | None = None
    admin_access: bool = False
    edits: ContainerEdits = field(default_factory=ContainerEdits)
    data: JSON = None
    status: DeviceStatus | None = None
    metadata: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AllocatedDevice:
    """A device of this driver that the scheduler allocated to a claim.

    Attributes:
        request: name of the claim's request, ``request/subrequest`` for a prioritised alternative.
        pool, name: which device.
        share_id: set when several claims share the device (KEP-5075).
        admin_access: for monitoring; the device may be in use by others at the same time.
        consumed_capacity: what this share has of the device.
        config: typed parameters of the request; where it has none, the defaults, or None if a field has no default.
        config_source: ``FromClass``, ``FromClaim``, or empty.
        device: as the driver published it, with its ``data``.
        tolerations: of the request.
    """

    request: str
    pool: str
    name: str
    share_id: str | None
    admin_access: bool
    consumed_capacity: Mapping[str, Quantity]
    config: Config | None
    config_source: str
    device: Device
    tolerations: Sequence[Mapping[str, Any]] = ()

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.device.attributes

    def prepared(
        self,
        edits: ContainerEdits | None = None,
        *,
        data: JSON = None,
        status: DeviceStatus | None = None,
        metadata: Mapping[str, Attribute] | None = None,
    ) -> PreparedDevice:
        """This device, ready, with the changes that containers need, and what the claim and its metadata files are to tell of it."""
        return PreparedDevice(
            request=self.request,
            pool=self.pool,
            name=self.name,
            share_id=self.share_id,
            admin_access=self.admin_access,
            edits=edits or ContainerEdits(),
            data=data,
            status=status,
            metadata=metadata or {},
        )


class UndoRegistrar:
    """How a claim registers a step's reversal; made by the engine.

    Two doors to the same thing: awaited from ``async def prepare``, called from a plain one in its thread.
    """

    def register(self, step: str, data: Mapping[str, JSON]) -> Awaitable[None]:
        raise DriverError(
            f"on_undo({step!r}): this claim was made by hand: only one that the plugin prepares has a record"
        )


@dataclass(frozen=True)
class EncodedClaim:
    """A ResourceClaim in resource.k8s.io/v1 as the API server sent it. Decoded, one of 1 MB takes up to 30 MB, and few drivers read it."""

    body: bytes

    def decoded(self) -> dict[str, Any]:
        return {**from_json(self.body), "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}

    def annotations(self) -> Mapping[str, str]:
        found: _WithAnnotations = from_json(self.body, _WithAnnotations)
        return found.metadata.annotations or {}


class _Annotations(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _WithAnnotations(msgspec.Struct):
    metadata: _Annotations


class _DecodedWhenRead:
    """The field ``object`` of :class:`Claim`."""

    def __get__(self, claim: Claim | None, owner: type | None = None) -> Any:
        if claim is None:
            return self
        value = vars(claim)["object"]
        if isinstance(value, EncodedClaim):
            value = vars(claim)["object"] = value.decoded()
        return value

    def __set__(self, claim: Claim, value: Any) -> None:
        vars(claim)["object"] = value


def annotations_of(claim: Claim) -> Mapping[str, str]:
    """The annotations of a claim, whose other fields are not decoded for them."""
    found = vars(claim)["object"]
    if isinstance(found, EncodedClaim):
        return found.annotations()
    return (found.get("metadata") or {}).get("annotations") or {}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim to prepare.

    Attributes:
        namespace, name, uid: of the ResourceClaim.
        devices: those of this driver, in the order of the allocation.
        reserved_for: consumers (pods), as in the claim's status.
        object: the whole ResourceClaim as the API server gave it, in resource.k8s.io/v1 form.
        operation: id that is on every log line of this call.
        node: name of the one node where the allocation can be used; empty where there may be several.
    """

    namespace: str
    name: str
    uid: str
    devices: Sequence[AllocatedDevice]
    reserved_for: Sequence[Mapping[str, Any]] = ()
    object: Mapping[str, Any] = field(default_factory=dict)
    operation: str = ""
    node: str = ""
    _undo: UndoRegistrar = field(default_factory=UndoRegistrar, repr=False, compare=False)
    _status: StatusSink = field(default_factory=StatusSink, repr=False, compare=False)

    def report(self, device: AllocatedDevice, status: DeviceStatus, /) -> ReportedStatus:
        """Tells in the claim's ``status.devices[]`` how one of its devices is (KEP-4817), now or at any time later.

        It leaves at once and is tried again for ten minutes; from any thread, awaited or not. Awaiting it waits for the write,
        for 5 s at most, and answers whether it is there; plain methods call ``report(...).wait()``. A later report on the same
        device replaces it; what other drivers and the controller say stays as it is.

        Raises :class:`DriverError` for a device that is not of this claim.
        """
        if not isinstance(status, DeviceStatus) or not any(device is d or device == d for d in self.devices):
            raise DriverError(
                f"report() of claim {self.namespace}/{self.name}: give one of its devices and a DeviceStatus"
            )
        return self._status.report((device.pool, device.name, device.share_id or ""), status)

    def on_undo(self, step: str, /, **data: JSON) -> Awaitable[None]:
        """Registers how to reverse what comes next, *before* it is done.

        The driver's method ``undo_<step>(claim, **data)`` is called, newest step first, when prepare fails, when its process
        dies and another takes over, and at unprepare. ``data`` is JSON of at most 64 KiB. The step is on disk
        when this returns (plain ``prepare`` or a thread of the driver's own) or has been awaited (``async def prepare``); one
        synced write, about a millisecond. A step whose ``await`` was forgotten is saved and run like all others, but fails the
        prepare, because it may have been taken too early.

        Raises :class:`DriverError` where the method is missing, does not take ``data``, ``data`` is no JSON, or prepare has
        ended; :class:`DraError` where the step cannot be saved: then it must not be taken.
        """
        return self._undo.register(step, data)


Claim.object = _DecodedWhenRead()  # type: ignore[assignment]  # after @dataclass, which takes a class attribute for a default


@dataclass(frozen=True, kw_only=True)
class PreparedClaim:
    """A claim to unprepare, from our own record: the API object may be gone.

    Attributes:
        devices: what prepare answered, or, where it never got that far, what was allocated (without data).
        complete: False when prepare did not finish: any part of it may have happened.
        same_boot: False when the node was rebooted since: what lives in memory and in /sys is gone already.
    """

    namespace: str
    name: str
    uid: str
    devices: Sequence[PreparedDevice]
    complete: bool = True
    same_boot: bool = True


@dataclass(frozen=True, kw_only=True)
class BoundDevice:
    """A device for which :meth:`Driver.bind` was called, by its name."""

    request: str
    pool: str
    name: str
    share_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class BoundClaim:
    """A claim to unbind, from the controller's own record: the API object may be gone.

    Attributes:
        node: where it was allocated; empty where that may be several.
        devices: those that were allocated and have binding conditions.
    """

    namespace: str
    name: str
    uid: str
    node: str
    devices: Sequence[BoundDevice]


@dataclass(frozen=True, kw_only=True)
class RecoveredClaim:
    """What :meth:`Driver.recover` knows of a claim whose record was lost."""

    uid: str
    devices: Sequence[PreparedDevice]
    namespace: str = ""
    name: str = ""
