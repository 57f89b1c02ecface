"""The claim and device objects that a driver's methods receive and return."""

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
    """A driver's result for one allocated device. :meth:`AllocatedDevice.prepared` creates it.

    Attributes:
        request, pool, name, share_id: identify the device, as in the allocation.
        admin_access: whether the request has admin access, as in the allocation. The claim then does not hold the device exclusively.
            :meth:`Driver.recover` must set this too.
        edits: changes that the container runtime makes to the containers.
        data: the driver's own JSON, at most 64 KiB. It is kept in the record, and :meth:`Driver.unprepare` gets it.
        status: written to the claim's status after prepare (KEP-4817). If the API server is unavailable, prepare still succeeds
            and the write is retried.
        metadata: more attributes for the containers' metadata files, in addition to the device's own; used if :attr:`Driver.metadata`
            is on.
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
        request: name of the claim's request; ``request/subrequest`` for an alternative of a prioritised list.
        pool, name: identify the device.
        share_id: set if several claims share the device (KEP-5075).
        admin_access: True for monitoring; other claims may use the device at the same time.
        consumed_capacity: the capacity of the device that this share consumes.
        config: typed parameters of the request. If the request has none: the defaults, or None if a field has no default.
        config_source: where the parameters come from: ``FromClass``, ``FromClaim``, or empty for the defaults.
        device: the device as the driver published it, with its ``data``.
        tolerations: tolerations of the request, as in the claim.
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
        """Returns the :class:`PreparedDevice` for this device.

        Args:
            edits: changes to the containers that use the device.
            data: the driver's own JSON, which :meth:`Driver.unprepare` gets; at most 64 KiB.
            status: written to the claim's status.
            metadata: attributes added to the device metadata files of the claim's containers.
        """
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
    """Saves the undo steps of a claim. The claim manager passes a subclass that writes them to the record.

    An ``async def prepare`` awaits the result of ``register``. A plain ``prepare`` runs in a thread and does not.
    """

    def register(self, step: str, data: Mapping[str, JSON]) -> Awaitable[None]:
        raise DriverError(
            f"on_undo({step!r}) needs a claim that the plugin prepares; this Claim object was created directly, so it has no record"
        )


@dataclass(frozen=True)
class EncodedClaim:
    """A ResourceClaim in resource.k8s.io/v1 as the API server sent it, not yet decoded.

    Few drivers read the object, and a claim of 1 MB takes up to 30 MB when decoded.
    """

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
    """Descriptor of :attr:`Claim.object`: decodes the object when it is first read."""

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
    """Returns the annotations of a claim without decoding its other fields."""
    found = vars(claim)["object"]
    if isinstance(found, EncodedClaim):
        return found.annotations()
    return (found.get("metadata") or {}).get("annotations") or {}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim to prepare or to bind.

    Attributes:
        namespace, name, uid: of the ResourceClaim.
        devices: the claim's devices of this driver, in the order of the allocation.
        reserved_for: consumers (pods), as in the claim's status.
        object: the whole ResourceClaim in resource.k8s.io/v1 form, as the API server sent it.
        operation: id that every log line of this call contains.
        node: name of the only node where the allocation can be used; empty if there may be several.
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
        """Writes the status of one of the claim's devices to ``status.devices[]`` of the ResourceClaim (KEP-4817).

        You may call it from any thread, during prepare or bind or at any time later. The write starts at once, in the background, and
        is retried for ten minutes. It is not retried if the API server rejects the content (400, 422); the log then contains the error. A
        later report for the same device replaces this one. The entries that other drivers and the controller wrote do not change.

        Args:
            device: one of :attr:`devices`.
            status: the new status.

        Returns:
            A handle. You may ignore it. ``await`` it, or call its ``wait()`` in a thread, to wait at most 5 s for the write; the result
            is whether the status is in the claim.

        Raises:
            DriverError: the device does not belong to this claim, or ``status`` is not a DeviceStatus.
        """
        if not isinstance(status, DeviceStatus) or not any(device is d or device == d for d in self.devices):
            raise DriverError(
                f"report() of claim {self.namespace}/{self.name}: pass one of the claim's devices and a DeviceStatus"
            )
        return self._status.report((device.pool, device.name, device.share_id or ""), status)

    def on_undo(self, step: str, /, **data: JSON) -> Awaitable[None]:
        """Registers how to undo the next step. Call it *before* you take the step, within ``prepare``.

        To undo the step, the framework later calls the driver's method ``undo_<step>(claim, **data)``. It does so when prepare fails,
        when the process dies during prepare and another process takes over, and at unprepare. It always calls ``unprepare`` first, then
        the undo steps, the newest first. The argument ``claim`` is a :class:`PreparedClaim`.

        The undo method must be idempotent. It may run for a step that you registered but never took, and again after success. If it
        raises, the framework still runs the other undo steps, and later calls ``unprepare`` and all undo steps again.

        In ``async def prepare``, await the result; the step is on disk afterwards. In a plain ``prepare``, or in a thread of the
        driver, the step is on disk when the call returns. It costs one synced write, about a millisecond. If you forget the ``await``,
        the step is still saved and run, but prepare fails: the step may have been taken before it was saved.

        Args:
            step: name of the step; the driver must have the method ``undo_<step>``.
            data: arguments for that method: JSON of at most 64 KiB.

        Raises:
            DriverError: the method is missing or does not accept ``data``, ``data`` is not JSON, or prepare has ended.
            DraError: the step cannot be saved. Do not take it then.
        """
        return self._undo.register(step, data)


# Set after @dataclass, which would use the descriptor as the field's default.
Claim.object = _DecodedWhenRead()  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class PreparedClaim:
    """A claim to unprepare, read from the framework's record. The ResourceClaim object may be gone.

    Attributes:
        namespace, name, uid: of the ResourceClaim. Namespace and name are empty if :meth:`Driver.recover` did not know them.
        devices: the devices that prepare returned, with their ``data``, without edits, status and metadata. If prepare did not return:
            the allocated devices, without ``data``.
        complete: False if prepare did not finish, so any part of it may have happened. It can also be False if the record was lost and
            the framework rebuilt it.
        same_boot: False if the node was rebooted since prepare; state in memory and in /sys is lost then.
    """

    namespace: str
    name: str
    uid: str
    devices: Sequence[PreparedDevice]
    complete: bool = True
    same_boot: bool = True


@dataclass(frozen=True, kw_only=True)
class BoundDevice:
    """The name of a device for which :meth:`Driver.bind` was called."""

    request: str
    pool: str
    name: str
    share_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class BoundClaim:
    """A claim to unbind, read from the controller's record. The ResourceClaim object may be gone.

    Attributes:
        namespace, name, uid: of the ResourceClaim.
        node: node of the allocation; empty if there may be several.
        devices: the allocated devices that have binding conditions.
    """

    namespace: str
    name: str
    uid: str
    node: str
    devices: Sequence[BoundDevice]


@dataclass(frozen=True, kw_only=True)
class RecoveredClaim:
    """A claim that :meth:`Driver.recover` found in use on the hardware, and whose record was lost.

    Attributes:
        uid: UID of the ResourceClaim; required.
        devices: the devices in use.
        namespace, name: of the ResourceClaim, if the hardware knows them.
    """

    uid: str
    devices: Sequence[PreparedDevice]
    namespace: str = ""
    name: str = ""
