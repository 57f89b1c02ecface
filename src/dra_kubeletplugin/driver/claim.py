"""The claim and device objects that a driver's methods receive and return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ..base.json_types import JSONValue
from ..cdi import ContainerEdits
from ..errors import DriverError
from ..resourceapi.amounts import Amount, Capacity
from ..resourceapi.quantity import Quantity
from ..resourceapi.types import Attribute, Device
from .config.model import Config
from .encoded_claim import EncodedClaim
from .process import ProcessSpec, Ready
from .status import DeviceStatus, ReportedStatus, ReportStatus

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PreparedDevice:
    """A driver's result for one allocated device. :meth:`AllocatedDevice.prepared` creates it, with the names of the allocation.

    Attributes:
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
    data: JSONValue = None
    status: DeviceStatus | None = None
    metadata: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AllocatedDevice:
    """A device of this driver, by its pool and name, that the scheduler allocated to a claim.

    Attributes:
        request: name of the claim's request; ``request/subrequest`` for an alternative of a prioritised list.
        share_id: set if several claims share the device (KEP-5075).
        admin_access: True for monitoring; other claims may use the device at the same time.
        consumed_capacity: the capacity of the device that this share consumes.
        config: typed parameters of the request, of a kind for this device (:attr:`Config.DEVICES`). If the request has none: the
            defaults of the first kind for this device; None if a field has no default, or no kind is for this device.
        config_source: where the parameters come from: ``FromClass``, ``FromClaim``, or empty for the defaults.
        published: the whole device as the driver published it.
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
    published: Device
    tolerations: Sequence[Mapping[str, Any]] = ()

    @property
    def data(self) -> Any:
        """The object that this process passed as ``data`` to :class:`Device`.

        None if another process published the device: the controller, or another instance of the plugin.
        """
        return self.published.data

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        return self.published.attributes

    @property
    def capacity(self) -> Mapping[str, Amount | Capacity]:
        return self.published.capacity

    def prepared(
        self,
        edits: ContainerEdits | None = None,
        *,
        data: JSONValue = None,
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


class UndoRegistrar(Protocol):
    """Saves the undo steps, shared steps and processes of a claim that the plugin prepares.

    An ``async def prepare`` awaits the results. A plain ``prepare`` runs in a thread; there, each
    method returns only when the step is saved or the process is ready, so there is nothing to await.
    """

    def register(self, method: Callable[..., object], data: Mapping[str, Any]) -> Awaitable[None]: ...
    def share(self, setup: Callable[..., object], key: str, data: Mapping[str, Any]) -> Awaitable[None]: ...
    def start(self, process: ProcessSpec) -> Awaitable[None]: ...


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
    """A claim to prepare or to bind, with the namespace, name and UID of its ResourceClaim.

    Attributes:
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
    _undo: UndoRegistrar | None = field(default=None, repr=False, compare=False)
    _status: ReportStatus | None = field(default=None, repr=False, compare=False)

    def devices_by_config(self) -> list[tuple[Config | None, list[AllocatedDevice]]]:
        """Returns the parameters of the claim, each with the devices that have these parameters.

        Use it for a step that is taken once for several devices, such as one daemon for all GPUs of the claim. Parameters of the same
        kind with equal fields are in one group, also if the claim contains them in two entries. The groups are in the order of their
        first devices.
        """
        groups: list[tuple[Config | None, list[AllocatedDevice]]] = []
        for device in self.devices:
            for config, members in groups:
                if config == device.config:
                    members.append(device)
                    break
            else:
                groups.append((device.config, [device]))
        return groups

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
        return _given(self._status, "report()")((device.pool, device.name, device.share_id or ""), status)

    def on_undo(
        self,
        method: Callable[Concatenate[PreparedClaim, P], Awaitable[None] | None],
        /,
        *no_args: P.args,
        **data: P.kwargs,
    ) -> Awaitable[None]:
        """Registers how to undo the next step, such as ``claim.on_undo(self.unload, address=address)``.

        Call it *before* you take the step, within ``prepare``. To undo the step, the framework later calls
        ``unload(claim, address=address)``, with a :class:`PreparedClaim`. It does so when prepare fails, when the process dies during
        prepare and another process takes over, and at unprepare. It always calls ``unprepare`` first, then the undo steps, the newest
        first.

        The method must be idempotent. It may run for a step that you registered but never took, and again after success. If it
        raises, the framework still runs the other undo steps, and later calls ``unprepare`` and all undo steps again. A later process
        finds the method by its name in the claim's record, so keep the old name of a renamed method too: ``old_name = new_name``.

        In ``async def prepare``, await the result; the step is on disk afterwards. In a plain ``prepare``, or in a thread of the
        driver, the step is on disk when the call returns. It costs one synced write, about a millisecond. If you forget the ``await``,
        the undo step is still saved, but prepare fails with an error that names the line: you may have taken the step before it was saved.

        Args:
            method: a method of the driver, ``def`` or ``async def``.
            data: arguments for that method, by keyword: JSON of at most 64 KiB.

        Raises:
            DriverError: ``method`` is not a method of the driver or does not accept ``data``, ``data`` is not JSON, or prepare has ended.
            DraError: the step cannot be saved. Do not take it then.
        """
        _only_keywords("on_undo", no_args)
        return _given(self._undo, "on_undo()").register(method, data)

    def shared_step(
        self,
        setup: Callable[Concatenate[str, P], Awaitable[None] | None],
        key: str,
        /,
        *no_args: P.args,
        **data: P.kwargs,
    ) -> Awaitable[None]:
        """Makes this claim a user of hardware state that several claims share: firmware, a mode of a card, virtual functions.

        The driver has two methods for each such state, ``setup_<step>(key, **data)`` and ``teardown_<step>(key, **data)``. You pass the
        first: ``claim.shared_step(self.setup_firmware, "0000:17:00.0", version="4.2")``. For the first claim that uses a key, the
        framework calls it. Later claims wait until this method has returned, and do not call it. After the last of these claims was
        unprepared, the framework calls the second. It calls ``unprepare`` and all undo steps of that claim first. Both methods run
        with the :meth:`Driver.hardware_lock` of ``key``, so they never overlap for one ``key``, also in both instances of a rolling
        update.

        Call it within ``prepare``, before your own steps on this hardware. When it returns, the state is set up and stays so until the
        claim is unprepared. In ``async def prepare``, await the result. A repeated call for the same claim has no effect.

        - ``setup_<step>`` raises: the prepare fails, also if you catch the error, and the framework calls ``teardown_<step>``.
        - The process dies during ``setup_<step>``: the framework calls ``teardown_<step>``, and the next claim sets the state up.
        - ``teardown_<step>`` raises, or the process dies during the call: the devices of the last claim stay reserved, and the framework
          calls it again later, without ``unprepare`` and the undo steps. If another claim needs the state first, the framework calls
          ``teardown_<step>`` and then ``setup_<step>``.
        - The node is rebooted: the framework relies on no state of the earlier boot. It calls ``teardown_<step>``
          before a new claim sets the state up, or after the last older claim has ended, because some state survives a reboot.
        - Records are lost: the framework may call ``setup_<step>`` for state that is already set up. It does not call ``teardown_<step>``
          while a claim with an incomplete record may use the state. Until :meth:`Driver.recover` has returned, calls that would set the
          state up or tear it down fail, and the kubelet retries.

        So ``setup_<step>`` must accept state that is already set up, and must not disturb its users then. ``teardown_<step>`` must be
        idempotent: it may be called for state that was never set up, again after success, and for hardware that has disappeared.
        Neither method gets the claim, because the state outlives it.

        Args:
            setup: the driver's method ``setup_<step>``.
            key: name of the piece of hardware, such as a PCI address or a serial number; at most 200 characters.
            data: further arguments for both methods, by keyword: JSON of at most 64 KiB. They are a part of the state.

        Raises:
            DriverError: ``setup`` is not a method of the driver, one of the methods has another name or does not accept ``data``,
                ``data`` is not JSON, or prepare has ended.
            SharedStepError: another claim uses the state with other ``data``. The kubelet retries.
            HardwareLockedError: another call holds the lock of ``key`` for longer than ``CALL_TIMEOUT`` (40 s). The kubelet retries.
            DraError: the step cannot be saved, or ``setup_<step>`` raised.
        """
        _only_keywords("shared_step", no_args)
        return _given(self._undo, "shared_step()").share(setup, key, data)

    def start_process(
        self,
        name: str,
        argv: Sequence[str | Path],
        /,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = "/",
        ready: Ready | None = None,
        ready_timeout: float = 30.0,
        stop: Sequence[str | Path] = (),
        stop_timeout: float = 10.0,
        devices: Sequence[AllocatedDevice] | None = None,
    ) -> Awaitable[None]:
        """Starts a process that runs until the claim is unprepared, such as a vendor's daemon. The driver needs ``processes = True``.

        Call it within ``prepare``. In ``async def prepare``, await the result. It returns when the process is ready. The process outlives
        this plugin process: the record names it before its program runs, and the next plugin process finds it by process id and start
        time. In a container, see :attr:`Driver.processes`.

        The process gets its own session, standard input from ``/dev/null``, and as environment only ``env``, PATH and
        ``DRA_CLAIM_PROCESS``. Its output goes to a file in ``process-logs/`` of the driver's folder. The framework cuts the file to its
        end when it is above 1 MiB.

        The framework ends the process like an undo step: after the undo steps that were registered later, and before earlier ones. It
        runs ``stop``, or sends SIGTERM. After ``stop_timeout``, it kills the process with all its descendants. If a process remains,
        the rollback fails and is retried.

        If the process ends by itself, the devices that need it become unhealthy within about a second, until the claim is unprepared. The
        claim and its pods get the event ``ProcessEnded``. The framework does not start the process again, because its clients may have lost
        state.

        Args:
            name: unique in the claim: at most 40 lower case letters, digits and '-'.
            argv: the program and its arguments. The program must not go into the background by itself.
            env: environment variables. They are stored in the record on the node's disk, so do not pass secrets.
            cwd: the working folder.
            ready: called until it returns True: a function or ``async def`` function without arguments. None: ready at once.
            ready_timeout: seconds until the start fails, because ``ready`` has not returned True.
            stop: a program with arguments that asks the process to end. It gets the same environment.
            stop_timeout: seconds from this request until the framework kills the process.
            devices: the devices that need the process; by default all of the claim.

        Raises:
            DriverError: an argument is invalid, the claim has a process of this name, ``processes`` is not True, or prepare has ended.
            RetryableError: the process cannot be started, or it ended or was not ready in time. The log contains the end of its
                output. Prepare then fails, also if you catch the error.
            DraError: the record cannot be written, or ``ready`` raised.
        """
        needing = self.devices if devices is None else devices
        arguments = {
            "name": name,
            "argv": argv,
            "env": env or {},
            "cwd": cwd,
            "ready": ready,
            "ready_timeout": ready_timeout,
            "stop": stop,
            "stop_timeout": stop_timeout,
            "devices": [(d.pool, d.name) for d in needing],
        }
        process = ProcessSpec.of(arguments)
        return _given(self._undo, process.call).start(process)


def _given(attribute: T | None, call: str) -> T:
    if attribute is None:
        raise DriverError(
            f"{call} needs a claim that the plugin prepares; this object is of bind(), or was created directly"
        )
    return attribute


def _only_keywords(call: str, args: Sequence[object]) -> None:
    if args:
        raise DriverError(
            f"{call}(): pass data for the method by keyword, such as address=..., because the record contains the names"
        )


# Set after @dataclass, which would use the descriptor as the field's default.
Claim.object = _DecodedWhenRead()  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class PreparedClaim:
    """A claim to unprepare, read from the framework's record. The ResourceClaim object may be gone.

    Attributes:
        namespace: namespace of the ResourceClaim; empty if :meth:`Driver.recover` did not know it.
        name: name of the ResourceClaim; empty if :meth:`Driver.recover` did not know it.
        devices: the devices that prepare returned, with their ``data``, without edits, status and metadata. If the claim was not
            committed: the allocated devices, without ``data``.
        complete: False if the claim was not committed as prepared, so any part of prepare may have happened. It can also be False if the
            record was lost and :meth:`Driver.recover` reported the claim.
        same_boot: False if the node was rebooted since prepare; state in memory and in /sys is lost then.
    """

    namespace: str
    name: str
    uid: str
    devices: Sequence[PreparedDevice]
    complete: bool = True
    same_boot: bool = True


@dataclass(frozen=True)
class SharedStep:
    """A shared step that a recovered claim uses, with the arguments of :meth:`Claim.shared_step`."""

    setup: Callable[..., object]
    key: str
    data: Mapping[str, JSONValue] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RecoveredClaim:
    """A claim that :meth:`Driver.recover` found in use on the hardware, and whose record was lost.

    Attributes:
        uid: UID of the ResourceClaim; required.
        devices: the devices in use.
        namespace: namespace of the ResourceClaim, if the hardware knows it.
        name: name of the ResourceClaim, if the hardware knows it.
        shared_steps: the shared steps that the claim uses. None if they are not known: no shared state is then torn down while the
            claim is recorded.
        undo_steps: method and data of each undo step that the claim's end needs, the oldest first, as for :meth:`Claim.on_undo`.
    """

    uid: str
    devices: Sequence[PreparedDevice]
    namespace: str = ""
    name: str = ""
    shared_steps: Sequence[SharedStep] | None = None
    undo_steps: Sequence[tuple[Callable[..., object], Mapping[str, JSONValue]]] = ()
