"""The base class of all drivers: you subclass :class:`Driver`, and its docstrings are the contract.

For each method, they state when it is called, in which process, how often, and what happens when it raises.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar

from ..base.settings import Settings
from ..errors import DriverError
from ..host import Host
from ..host.events import SUBSYSTEMS
from ..resourceapi.pools import Pool
from ..resourceapi.types import Attribute, Device, Taint
from .bound import BoundClaim
from .claim import Claim, PreparedClaim, PreparedDevice, RecoveredClaim
from .config.model import Config
from .hardware_lock import LOCKS, HardwareLock
from .health import Health
from .metadata_update import MetadataUpdate, metadata_update
from .metrics import DriverMetrics
from .self_checks import Check
from .status import NetworkData

T = TypeVar("T")
DriverResult: TypeAlias = Sequence[T] | Awaitable[Sequence[T]]  # of `def`, and of `async def`


class Role(Enum):
    """What a process does for a driver."""

    NODE = "node"
    """The plugin on one node: prepares claims and publishes the pools of this node."""
    CONTROLLER = "controller"
    """The controller, one per cluster: publishes the pools that belong to no single node, and binds claims."""


def _do_nothing() -> None:
    pass


def _no_claims(update: MetadataUpdate) -> Awaitable[int]:
    raise DriverError("update_metadata(): only a driver that runs in a node plugin has prepared claims")


class DriverProcess(NamedTuple):
    """What a driver requests of its process. Without a process, as in a unit test, a rescan does nothing."""

    rescan: Callable[[], None] = _do_nothing
    update_metadata: Callable[[MetadataUpdate], Awaitable[int]] = _no_claims


NO_PROCESS = DriverProcess()


class Driver:
    """Base class of all drivers. Subclass it, set ``name``, write ``devices`` and ``prepare``, and pass the class to ``run``.

    Only ``devices`` (or ``pools``) and ``prepare`` are required.

    A method is ``async def`` or plain ``def``, and returns a list where it has a result. An ``async def`` method runs on the event loop
    and must not block. A plain method runs in a thread and may block. Each call of an ``async def`` method runs in its own task, so a
    cancel scope cannot begin in one method and end in another.

    An exception fails only the call that raised it, even ``SystemExit``. A method that does not return delays only its own claim or task.
    At most 256 plain methods run at once. A further call waits 10 s for a free thread and then fails with an error.

    Calls of different methods may run at the same time. Calls of ``prepare``, ``unprepare`` and undo steps overlap for several claims,
    never for one claim. Calls of ``devices``, ``pools``, ``health``, ``checks`` or ``recover`` do not overlap calls of the same method.

    The framework never stops a plain method in its thread. It cancels an ``async def`` method when the plugin stops or when a time
    limit ends, such as ``START_TIMEOUT``; the method then has 1 s to clean up. It does not cancel ``prepare`` when the kubelet stops
    waiting. While a method runs, other plugin processes do not touch its claim, because the method may still use the hardware.

    The framework keeps the records of prepared claims, prevents two claims from getting the same device, and writes CDI files, sockets
    and slices. One driver object lives as long as the process. During a rolling update, two plugin processes run, each with its own
    driver object.

    The framework calls ``__init__`` without arguments. Then, before any other method, it sets ``host``, ``settings``, ``log`` and
    ``role``. It sets ``gates_off`` whenever it learns other gates. A subclass sets ``name``, and the other class attributes if it needs
    them.

    Attributes:
        name: DNS subdomain of at most 63 bytes, in the vendor's own domain, e.g. ``gpu.example.com``.
        config: the kinds of opaque parameters: a subclass of :class:`Config`, or a list of them, for example one for each type of
            device (:attr:`Config.DEVICES`). None if the driver takes none. With several kinds, a claim's parameters must have
            ``apiVersion`` and ``kind``.
        options: an instance of a frozen dataclass. Each field is an option of the driver: a flag of ``dra run`` and an environment
            variable, with the field's value as default. ``self.options`` has the values of this process, already in ``__init__``.
        unhealthy_taint: the taint of unhealthy devices; None for no taint. ``NoExecute`` also evicts the pods that use them.
        metadata: whether containers get files that describe their devices (KEP-5304); see :mod:`dra_kubeletplugin.metadata`. The files
            contain the attributes of the container's devices and the attributes that ``AllocatedDevice.prepared(metadata=...)`` adds.
        privileged: whether the driver writes to sysfs (:meth:`Host.write`) or ``/proc``, or loads kernel modules. In a container that is
            not privileged, sysfs and ``/proc/sys`` are read-only. With ``True``, ``dra deploy`` makes the plugin's container
            privileged. With ``False``, :meth:`Host.write` raises :class:`DriverError`, also in tests and in ``dra dev``.
        processes: whether the driver starts processes for claims with :meth:`Claim.start_process`. A container's processes end with
            the container. So in a cluster, a process supervisor in another container starts them (``PROCESS_SUPERVISOR``). Without a
            supervisor, they end when the plugin's container ends. ``True`` also makes the framework publish and report health, as for
            a driver with :meth:`health`.
        subsystems: kernel subsystems whose events make the framework call ``devices`` again, e.g. ``("pci", "infiniband")``.
        host: the machine: its devices and files.
        settings: the options of this process, e.g. ``settings.node_name``.
        log: the driver's logger.
        role: ``Role.NODE``, or ``Role.CONTROLLER`` under ``dra controller``.
        gates_off: feature gates that are off in the API server, as far as the framework knows; empty at first. The API server drops fields
            whose gate is off, so the framework does not publish devices that need such fields, for example partitions. When this set
            changes, ``pools`` is called again and may return a simpler layout, such as whole devices.
    """

    name: ClassVar[str] = ""
    config: ClassVar[type[Config] | Sequence[type[Config]] | None] = None
    unhealthy_taint: ClassVar[Taint | None] = Taint(key="dra-kubeletplugin.dev/unhealthy", effect="NoSchedule")
    metadata: ClassVar[bool] = False
    privileged: ClassVar[bool] = False
    processes: ClassVar[bool] = False
    subsystems: ClassVar[Sequence[str]] = SUBSYSTEMS

    host: Host
    settings: Settings
    log: logging.Logger
    role: Role = Role.NODE
    gates_off: frozenset[str] = frozenset()
    _dra_process: DriverProcess = NO_PROCESS  # no name that a driver is likely to give to a process of its own

    def rescan(self) -> None:
        """Requests a new call of ``devices`` (or ``pools``) and ``health``, because devices or their health may have changed.

        You may call it from any thread and any method. The framework combines calls that follow each other closely. The kubelet gets
        the new result of :meth:`health` at once.

        Use it if the driver learns of changes before the framework does, e.g. from a vendor's event or a fabric manager. Otherwise the
        framework sees a changed device with the next kernel event or after ``rescan_interval`` seconds, and changed health after
        ``health_interval`` seconds.
        """
        self._dra_process.rescan()

    @functools.cached_property
    def metrics(self) -> DriverMetrics:
        """The driver's own metrics, which the plugin and the controller serve in ``/metrics``.

        Declare them in ``__init__`` or :meth:`start`, for example
        ``self.made = self.metrics.counter("partitions_created_total", "Partitions created.", ["profile"])``, and change them in any
        method and thread: ``self.made.labels(profile="1g").inc()``. There are ``counter``, ``gauge`` and ``histogram``, which return those
        of ``prometheus_client``. The names in ``/metrics`` begin with the driver's name, such as
        ``gpu_example_com_partitions_created_total``. Values are lost when the process ends.
        """
        return DriverMetrics(self.name)

    def hardware_lock(self, key: str, *, timeout: float | None = None) -> HardwareLock:
        """Returns a lock for a piece of hardware.

        The lock excludes all other calls and threads, also in the other plugin instance of a rolling update. The kernel releases it if
        the process dies. Any method in the node role may take it, for example around calls of a vendor's library that must not overlap
        for a card.

        Write ``with self.hardware_lock(key):`` in a plain method and ``async with self.hardware_lock(key):`` in an ``async def``
        method. You may keep the returned object and use it again, in any thread.

        The setup and teardown methods of :meth:`Claim.shared_step` already run with the lock of their key. A call that holds the lock
        cannot take it again.

        Args:
            key: name of the piece of hardware, such as a PCI address or a serial number; at most 200 characters.
            timeout: seconds to wait for the lock; by default ``CALL_TIMEOUT`` (40 s).

        Raises:
            DriverError: ``key`` or ``timeout`` is invalid. The ``with`` block raises it on entry if this call already holds the lock.
            HardwareLockedError: the ``with`` block raises it on entry if the lock is not free in time. The message names the holder. Do
                not catch it: the kubelet retries.
        """
        return HardwareLock(
            self.settings.plugin_dir / LOCKS, key, self.settings.call_timeout if timeout is None else timeout
        )

    def update_metadata(
        self,
        claim: Claim | PreparedClaim | str,
        request: str,
        *,
        network_data: NetworkData | None = None,
        attributes: Mapping[str, Attribute | None] | None = None,
        device: str = "",
    ) -> Awaitable[int]:
        """Updates the metadata files of a prepared claim with facts that were unknown at prepare, such as addresses (KEP-5304).

        You may call it on the event loop or in any thread. On the event loop, await the result. In another thread, the update is done
        when the call returns. The update is written to the claim's record and to the metadata file of the request; running containers
        see the file change.

        You may call it while the claim is being prepared; it then waits until prepare ends. Do not call it within ``prepare``: there,
        use ``prepared(metadata=..., status=...)``.

        Args:
            claim: the claim, or its UID.
            request: name of the claim's request, with or without the chosen alternative.
            network_data: replaces the current network data; None keeps it.
            attributes: added to the current attributes, at most 32 in all; the value None removes an attribute.
            device: name of the device, if the request has several; ``pool/name`` if the name alone is ambiguous.

        Returns:
            The file's generation: one higher than before, or unchanged if the file already contains the update.

        Raises:
            DriverError: a metadata file cannot contain the value, the claim does not have the request or device, or :attr:`metadata`
                is off.
            MetadataUpdateError: the claim is not prepared, is no longer prepared, or has no device metadata.
            ClaimBusyError: another operation on the claim takes too long, or another instance of the plugin prepares the claim.
            StoppingError: the plugin stops, or :meth:`start` has not returned yet.
            RecordsError: the record or the file cannot be written. If only the file cannot be written, the record contains the update,
                and the framework writes the file later; the message says so.
        """
        if not self.metadata:
            raise DriverError(
                f"update_metadata(): {type(self).__name__}.metadata is off, so no container has such a file"
            )
        return self._dra_process.update_metadata(metadata_update(claim, request, network_data, attributes, device))

    def start(self) -> Awaitable[None] | None:
        """Opens resources that the driver keeps until the process stops, such as the vendor's library.

        Called once, in both roles, before any other method except ``__init__``. If it raises, or does not return within
        ``START_TIMEOUT``, the process exits with a non-zero code and :meth:`stop` is not called.
        """

    def stop(self) -> Awaitable[None] | None:
        """Closes the resources that :meth:`start` opened.

        Called once when the process stops, after it has waited for the running calls, at most ``SHUTDOWN_GRACE_PERIOD`` seconds. The
        process waits at most 3 s for this method, and logs an exception. It is not called when the process is killed.
        """

    def devices(self) -> DriverResult[Device]:
        """Returns all devices of this node that claims may get, in the order in which the scheduler should allocate them.

        This is the simple form of :meth:`pools`: one pool, with the node's name. Called in the node role: at start, after kernel
        events, after :meth:`rescan`, and every ``rescan_interval`` seconds. Two calls never overlap.

        A call must be cheap to repeat. It must return the same names for the same hardware, also after a reboot, because claims refer
        to devices by name. New claims do not get a device that you leave out; a claim that holds it keeps it. If the method raises, the
        framework logs the error, keeps the last result and calls again. It handles errors in the result as for :meth:`pools`.
        """
        raise DriverError(f"{type(self).__name__} has no `devices` method: it must return a list of Device")

    def pools(self) -> DriverResult[Pool]:
        """Returns all pools that this process knows of. If you override it, ``devices`` is not called.

        Use it for counters (KEP-4815), for several pools on one node, and for devices that belong to no single node. Called in both
        roles, at the same times as :meth:`devices`. Depending on :attr:`role`, the plugin publishes the pools with ``Nodes.this()`` and
        the controller publishes all others; each ignores the other's pools.

        The publisher deletes a pool that you no longer return, except for devices that claims still hold. If a device breaks a rule of
        the API server, or has the name of an earlier device of its pool, only that device is not published. If two pools have one name,
        or the method raises, the framework rejects the whole result and keeps the last one.
        """
        raise DriverError(f"{type(self).__name__} has no `pools` method: it must return a list of Pool")

    def prepare(self, claim: Claim) -> DriverResult[PreparedDevice]:
        """Makes the claim's devices ready for containers, and returns one :class:`PreparedDevice` for each of ``claim.devices``.

        Called in the node role, before the first pod of the claim starts. Calls for several claims run at once. Before the call, the
        framework writes a record to disk and reserves the devices for this claim. If another claim holds a device exclusively, the
        framework refuses the claim without calling this method. It does the same if partitions of a counter set, or shares of a device,
        would together exceed the available amount.

        The call may take as long as necessary. The kubelet waits at most 45 s; the framework replies earlier, and the kubelet's retry
        joins the same call. After success the framework keeps the result. It calls this method again for the claim only after it has
        rolled the claim back: after a failed prepare, after a reboot of the node, or if the claim was allocated other devices.

        Another process (the controller, another plugin instance) may publish a device's pool. Then the device
        has the content of its slice, and its ``data`` is None.

        The process may die at any point of the call. Then the framework calls ``unprepare`` with ``complete=False``, and afterwards the
        undo steps that you registered with ``claim.on_undo``. The same happens when the call raises.

        Raise :class:`RetryableError` for a fault that may pass, and :class:`PermanentError` for a fault that will not pass. The kubelet
        retries after both. The exception's text becomes an event of the pod. Use the same text for the same fault, without counts or
        times: each new text is a new event.
        """
        raise DriverError(f"{type(self).__name__} has no `prepare` method: it must return a list of PreparedDevice")

    def unprepare(self, claim: PreparedClaim) -> Awaitable[None] | None:
        """Reverses :meth:`prepare`, after the last pod of the claim has stopped or after a failed prepare.

        Called in the node role. It must be idempotent. It may be called again after success, in another process than prepare, and after
        a reboot. It may also be called for a claim whose prepare never began or did not finish (``claim.complete`` is False). The
        ResourceClaim object may be gone; ``claim`` comes from the framework's record.

        Afterwards the framework runs the undo steps of the claim, also if ``unprepare`` raised. If all succeed, it ends the use of shared
        steps. No other claim gets the devices until all of this has succeeded. If ``unprepare`` or an undo step raises, the devices stay
        reserved, and the framework later calls ``unprepare`` and all undo steps again. If only a ``teardown_<step>`` raises, the framework
        later calls only that method again.
        """

    def bind(self, claim: Claim) -> Awaitable[None] | None:
        """Makes devices with binding conditions ready for the node where they were allocated, while the scheduler waits (KEP-5007).

        Called in the controller role, for each allocation with binding conditions that are not true yet. ``claim.devices`` contains all
        devices of the claim that have binding conditions, and ``claim.node`` the node. When the method returns, the framework sets all
        binding conditions to True and the scheduler binds the pod.

        Raise :class:`PermanentError` if the devices cannot be made ready. The framework then sets the first binding failure condition
        of each device to True, with the exception's text as message. The scheduler deallocates the claim and tries again. Without a
        failure condition the scheduler waits until its own timeout (10 minutes by default). After any other exception the framework
        calls again, with backoff, while the claim has the devices.

        It must be idempotent: it is called again for the same allocation after a crash, a change of the leader, or an error. Calls for
        one claim never overlap. If another claim still has a device, that claim's :meth:`unbind` runs first. ``claim.report`` adds data
        to the claim's status. When the process loses its leadership, a plain ``def`` method continues in its thread for a few seconds,
        until the process ends.
        """
        raise DriverError(
            f"{type(self).__name__} has no `bind` method, and a claim has devices with binding conditions"
        )

    def unbind(self, claim: BoundClaim) -> Awaitable[None] | None:
        """Reverses :meth:`bind`, after the claim was deallocated, allocated again or deleted.

        Called in the controller role. It must be idempotent: it may be called again after success, and for a claim whose bind never
        began, failed or was interrupted. Until it returns, the framework calls :meth:`bind` for no other claim with these devices. If
        it raises, the framework calls again, with backoff. The ResourceClaim object may be gone.
        """

    def health(self) -> Mapping[str, Health] | Awaitable[Mapping[str, Health]]:
        """Returns the health of devices by name. A device that you leave out counts as healthy.

        Called in the node role, every ``health_interval`` seconds and after :meth:`rescan`. Two calls never overlap. If it raises or
        hangs, the last reports expire and their devices become unknown.

        A key ``name`` refers to the devices of that name in all pools of this node; a key ``pool/name`` refers to one device.

        An unhealthy device is published with the report's taints, and with :attr:`unhealthy_taint` if the report contains only
        informational taints or none. It is not prepared, unless the operator allows it (``UNHEALTHY_POLICY``). The operator also sets
        how many consecutive reports are needed (``UNHEALTHY_AFTER``, ``HEALTHY_AFTER``), and the effect of taints
        (``UNHEALTHY_EFFECT``). The first report of a device in this process counts at once, so counting begins again after a restart.
        A report of None (unknown) does not clear a fault.

        A device gets the informational taints of its last report. A change of these taints is published at most once a minute for each
        device, or when the device becomes unhealthy or healthy.

        For devices of a controller's pools, :meth:`pools` sets the taints.
        """
        return {}

    def checks(self) -> DriverResult[Check]:
        """Checks whether this machine has what the driver needs. Returns a :class:`Check` for each requirement, also if it has no problem.

        Use it for facts that no other method reports: the version of the vendor's library, the state of a service, or whether the library
        finds as many devices as PCI. Called in both roles at start, every ``rescan_interval`` seconds and after :meth:`rescan`, and by
        ``dra doctor DRIVER`` after :meth:`start`. It must change nothing. Problems are shown in ``/readyz``, in the log and in the metric
        ``dra_driver_check_failing``; ``/readyz?verbose`` also shows checks without a problem.
        """
        return ()

    def recover(self) -> DriverResult[RecoveredClaim]:
        """Returns the claims that use the hardware, as far as the hardware itself knows.

        Called in the node role after the records were damaged or lost. It is also called at the first start on a node, where nothing is
        in use yet. If it raises, the framework calls it again.

        Set the request and ``admin_access`` of each device if the hardware knows them. The framework reserves the returned devices for
        these claims until they are unprepared. You need not return claims that have CDI files: the framework finds them itself.

        Only the CDI files contain how much of a device a claim uses. For a claim that only this method returns, the framework reserves
        more: for a share, the whole device; for a partition, the amounts that the device now consumes according to the
        inventory; for a device that no longer exists, all counters of its pool.
        """
        return ()
