"""The class that an author subclasses. Its docstrings are the contract."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeAlias, TypeVar

from ..base.settings import DNS_SUBDOMAIN, MAX_DRIVER_NAME, Settings
from ..errors import DriverError, printable
from ..host import Host
from ..host.events import SUBSYSTEMS
from ..resourceapi.gated_fields import Gate
from ..resourceapi.pools import Pool
from ..resourceapi.types import Attribute, Device, Taint
from .claim import BoundClaim, Claim, PreparedClaim, PreparedDevice, RecoveredClaim
from .config.model import Config
from .metadata_update import MetadataUpdate, metadata_update
from .status import NetworkData

T = TypeVar("T")
# What `def` answers, `async def` with `yield`, and `async def` without.
Answer: TypeAlias = Iterable[T] | AsyncIterable[T] | Awaitable[Iterable[T]]


class Role(Enum):
    """What a process does for a driver."""

    NODE = "node"
    """The plugin of one node: prepares claims, and publishes the pools of this node."""
    CONTROLLER = "controller"
    """One for the cluster: publishes the pools that belong to no single node, and binds claims."""


_LAST = 1e11  # seconds; no later time fits into what Go and databases have


def _nobody() -> None:
    pass


def _no_claims(update: MetadataUpdate) -> Awaitable[int]:
    raise DriverError("update_metadata(): only a driver that the plugin of a node runs has prepared claims")


@dataclass(frozen=True)
class Health:
    """A device's health.

    Args:
        healthy: None where it is not known.
        message: shown in the pod's status, for a healthy device too; cut at 1,024 bytes of UTF-8, which is what the kubelet keeps.
        taint: of this fault; left out, it is :attr:`Driver.unhealthy_taint`. The effect ``"NoExecute"`` evicts the pods that use
            the device, ``"None"`` only tells. For an unhealthy device only; taints of others belong to :class:`Device`.
        measured: when, in unix seconds, for a report that is not made while ``health`` is called, such as a monitor's last one:
            told as if it were of now, it would hide that the monitor hangs. Left out, it is when ``health`` was called.
        timeout: seconds after which the device counts as unknown, unless it was measured again; above ``HEALTH_INTERVAL``. Left
            out, the longer of 30 s and three times that interval.

    Raises :class:`DriverError` for a taint of a device that is not unhealthy, and for times that are none.
    """

    healthy: bool | None
    message: str = ""
    taint: Taint | None = None
    measured: float | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("measured", 0.0), ("timeout", 1e-3)):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and least <= value < _LAST):
                raise DriverError(
                    f"Health.{name} is {printable(value)}: give seconds, {'unix time' if not least else 'above 0'}"
                )
        if self.taint is not None and (self.healthy is None or self.healthy):
            raise DriverError(
                "Health has a taint and is not unhealthy: give healthy=False, or put the taint on the Device"
            )


class Driver:
    """Base class of all drivers. Subclass it, set ``name``, write ``devices`` and ``prepare``, and pass it to ``run``.

    Methods may be ``async def``, which run on the event loop and must not block, or plain ``def``, which run in a thread and
    may. Both may ``yield`` what they answer; it is read to its end within the call. Each call of an ``async def`` has a task of
    its own: what must be entered and left in one task (a cancel scope) cannot span two methods.

    What a method raises is the fault of that call alone, whatever it is, ``SystemExit`` included. A method that does not return
    holds up its own claim and nothing else, until 256 plain ones hang: then further calls fail, and say so. No method is ever
    stopped in its thread; an ``async def`` is cancelled when the plugin ends before it, or gives up on it. While a method
    runs, other processes leave its claim alone, because it may still touch the hardware.

    The framework keeps what a driver would otherwise have to: records of what is prepared, the guard against double use, CDI
    files, sockets, slices. One object lives for the whole process; during a rolling update two processes have one each.

    A subclass sets:
        name: DNS subdomain of at most 63 bytes, e.g. ``gpu.example.com``; the vendor's own domain.
        config: subclass of :class:`Config`, or a list of them: the kinds of opaque parameters. None where there are none.
        options: an object of a frozen dataclass, whose fields are the driver's own options with their defaults: each is a flag of
            ``dra run`` and a variable. ``self.options`` has what was given, in ``__init__`` too. Left out where there are none.
        unhealthy_taint: put on unhealthy devices; None for no taint. ``NoExecute`` would also evict the pods that use them.
        metadata: whether programs in containers find their devices described in files, see :mod:`dra_kubeletplugin.metadata`.
        subsystems: kernel subsystems whose events are a reason to call ``devices`` again, e.g. ``("pci", "infiniband")``.

    The framework sets, after ``__init__``, which takes no arguments, and before any method is called:
        host: the machine.
        settings: the options of this process, such as ``settings.node_name``.
        log: a logger of the driver's own.
        role: ``Role.NODE``, or ``Role.CONTROLLER`` under ``dra controller``.
        gates_off: feature gates that the API server was found to have off; ``pools`` is called again when that changes.

    Only ``devices`` (or ``pools``) and ``prepare`` are needed.
    """

    name: ClassVar[str] = ""
    """DNS subdomain of at most 63 bytes, e.g. ``gpu.example.com``; the vendor's own domain."""
    config: ClassVar[type[Config] | Sequence[type[Config]] | None] = None
    """Kinds of opaque parameters; None where there are none."""
    unhealthy_taint: ClassVar[Taint | None] = Taint(key="dra-kubeletplugin.dev/unhealthy", effect="NoSchedule")
    """Put on unhealthy devices; None for no taint. NoExecute would also evict the pods that use them."""
    metadata: ClassVar[bool] = False
    """Whether containers get device metadata files (KEP-5304): the attributes of their devices, and what
    ``AllocatedDevice.prepared(metadata=...)`` adds."""
    subsystems: ClassVar[Sequence[str]] = SUBSYSTEMS
    """Kernel subsystems whose events are a reason to call ``devices`` again, e.g. ``("pci", "infiniband")``."""

    host: Host
    settings: Settings
    log: logging.Logger
    role: Role = Role.NODE
    gates_off: frozenset[Gate] = frozenset()
    """Feature gates that the API server was found to have off. It drops what depends on them, so partitions, for example, are
    withheld then. ``pools`` is called again when this changes, and may answer a plainer layout, such as whole devices."""
    _look_again: Callable[[], None] = staticmethod(_nobody)
    _update: Callable[[MetadataUpdate], Awaitable[int]] = staticmethod(_no_claims)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        listed = isinstance(cls.subsystems, Iterable) and not isinstance(cls.subsystems, str)
        if not listed or not all(isinstance(s, str) and s for s in cls.subsystems):
            raise DriverError(
                f"{cls.__name__}.subsystems {cls.subsystems!r} is no list of kernel subsystems such as ('pci', 'net')"
            )
        if not isinstance(cls.name, str):
            raise DriverError(f"{cls.__name__}.name is {type(cls.name).__name__}, not text such as 'fpga.example.com'")
        if type(cls.name) is not str:
            cls.name = str.__str__(cls.name)  # of a class derived from str it could not be sent
        if cls.name and (len(cls.name.encode()) > MAX_DRIVER_NAME or not DNS_SUBDOMAIN.fullmatch(cls.name)):
            raise DriverError(
                f"{cls.__name__}.name {cls.name!r} is not a DNS subdomain of at most {MAX_DRIVER_NAME} bytes: "
                "lower case letters, digits, '-' and '.', e.g. fpga.example.com"
            )

    def attach(
        self,
        host: Host,
        settings: Settings,
        role: Role = Role.NODE,
        look_again: Callable[[], None] = _nobody,
        update: Callable[[MetadataUpdate], Awaitable[int]] = _no_claims,
    ) -> None:
        """Called once by the framework, before anything else.

        ``look_again`` is what :meth:`changed` does, ``update`` what :meth:`update_metadata` does; both from any thread.
        """
        self.host = host
        self.settings = settings
        self.role = role
        self.log = logging.getLogger(f"driver.{type(self).__name__}")
        self._look_again = look_again
        self._update = update

    def changed(self) -> None:
        """Says that the devices, or their health, may have changed: they are looked at soon, once for many calls. From any thread
        or method.

        For drivers that know first, from a vendor's event or a fabric manager; without it a change is seen with the next
        event of the kernel, or after ``rescan_interval`` seconds, and one of their health after ``health_interval``. The kubelet
        is told what :meth:`health` answers then at once.
        """
        self._look_again()

    def update_metadata(
        self,
        claim: Claim | PreparedClaim | str,
        request: str,
        *,
        network_data: NetworkData | None = None,
        attributes: Mapping[str, Attribute | None] | None = None,
        device: str = "",
    ) -> Awaitable[int]:
        """Tells the containers of a prepared claim what was not known when it was prepared, such as addresses (KEP-5304).

        It goes on record and into the metadata file of the request, which running containers see change; its generation grows by
        one, unless it says all this already. Awaited on the event loop; in any other thread it is done when this returns.
        Answers the generation. May be called while the claim is still being prepared, and then waits for that: not within
        ``prepare`` itself, where ``prepared(metadata=..., status=...)`` says the same.

        Args:
            claim: the claim, or its UID.
            request: name of its request, with or without the alternative that was chosen.
            network_data: replaces what is there; None leaves it.
            attributes: besides those that are there, at most 32 in all; None for one that goes.
            device: its name, where the request has several; ``pool/name`` where that is not enough.

        Raises :class:`DriverError` for what no file may say, for a request or device that the claim does not have, and where
        :attr:`metadata` is off; :class:`~dra_kubeletplugin.errors.MetadataUpdateError` where the claim is not prepared (any more);
        :class:`~dra_kubeletplugin.errors.ClaimBusyError` where it is worked on for too long;
        :class:`~dra_kubeletplugin.errors.RecordsError` where it cannot be written. Where only the file cannot, it is on
        record, and is written as soon as that is possible.
        """
        if not self.metadata:
            raise DriverError(
                f"update_metadata(): {type(self).__name__}.metadata is off, so no container has such a file"
            )
        return self._update(metadata_update(claim, request, network_data, attributes, device))

    def start(self) -> Awaitable[None] | None:
        """Opens what lives as long as the process, such as a vendor's library. An exception ends the process, non-zero."""

    def stop(self) -> Awaitable[None] | None:
        """Closes it again, after the last call that returned in time. Not called when the process is killed."""

    def devices(self) -> Answer[Device]:
        """All devices of this node that claims may get, in the order in which they should be given out.

        The simple case of :meth:`pools`: one pool, named like the node. Called at start, after hardware events and
        :meth:`changed`, and every ``rescan_interval`` seconds; never twice at once. Must be quick to repeat and must answer the
        same names for the same hardware: claims refer to devices by name, over reboots too. A device that is left out is not
        given to new claims. An exception is logged, and the last answer stays in force.
        """
        raise DriverError(f"{type(self).__name__} has no `devices` method: it must answer a list of Device")

    def pools(self) -> Answer[Pool]:
        """All pools of this driver that this process knows of, as one answer; ``devices`` is not called where it is overridden.

        For counters (KEP-4815), for several pools on one node, and for devices that belong to no single node. Called as
        :meth:`devices` is, in both roles: as :attr:`role` says, the plugin publishes what is of ``Nodes.this()`` and the
        controller the rest; what is the other's is ignored. A pool that is answered no more is deleted, except for devices that
        claims still have. A device that breaks a rule is left out alone; where a name comes twice the whole answer is
        refused, and the last one stays in force.
        """
        if self.role is Role.CONTROLLER:
            return []
        answer = self.devices()
        if isinstance(answer, Iterable):
            return [Pool(self.settings.node_name, list(answer))]
        return self._one_pool(answer)

    async def _one_pool(self, answer: AsyncIterable[Device] | Awaitable[Iterable[Device]]) -> list[Pool]:
        devices = [d async for d in answer] if isinstance(answer, AsyncIterable) else list(await answer)
        return [Pool(self.settings.node_name, devices)]

    def prepare(self, claim: Claim) -> Answer[PreparedDevice]:
        """Makes the claim's devices ready for containers, and answers one :class:`PreparedDevice` for each.

        Called when the first pod of a claim is about to start. Before the call a record is on disk and the devices are held for
        this claim; another claim's exclusive hold is refused without a call, and so are partitions of one counter set, or shares
        of one device, that together would have more than there is. Several claims are prepared at once. The call may
        take as long as it must: the kubelet is answered before its 45 s end, and its retry joins this call.

        Devices of pools that another process publishes (the controller, another instance of the plugin) come as their slices
        describe them, with ``device.data`` None.

        It is repeated only when an earlier one failed and was undone, or the node was rebooted; the answer is kept, so other
        repetitions never reach the driver. The process may die anywhere within: then ``unprepare`` is called, with
        ``complete=False``, and so are the steps registered with ``claim.on_undo``.

        Raise :class:`RetryableError` for what may pass and :class:`PermanentError` for what will not; their text is the pod's
        event. Keep it the same for the same fault, without counts or times: each new text is a new event.
        """
        raise DriverError(f"{type(self).__name__} has no `prepare` method: it must answer a list of PreparedDevice")

    def unprepare(self, claim: PreparedClaim) -> Awaitable[None] | None:
        """Reverses ``prepare``, after the claim's last pod has stopped.

        Idempotent: may be called again after success, for a claim whose prepare never began or broke off
        (``claim.complete`` is False), by another process than prepare, and after a reboot. The ResourceClaim object may be gone.
        Nothing else uses the devices until it returns. An exception keeps them held, and the call is repeated.
        """

    def bind(self, claim: Claim) -> Awaitable[None] | None:
        """Makes devices with binding conditions ready for the node where they were allocated, while the scheduler waits (KEP-5007).

        Called in the controller role, for each allocation whose devices have binding conditions that are not all true;
        ``claim.devices`` are these, ``claim.node`` is where. When it returns, all binding conditions become True and the pod is
        bound. Raise :class:`PermanentError` where it cannot be: a binding failure condition becomes True with the text as
        message, the scheduler takes the allocation back and tries again. Anything else that is raised is tried again with
        growing pauses, until the scheduler's own timeout (10 minutes by default).

        Idempotent: called again for the same allocation after a crash, when the leader changes, and after an error. Never twice
        at once for a claim, nor for a device that another claim still has: that one's :meth:`unbind` comes first.
        ``claim.report`` adds data to the claim. Plain ``def`` methods run on in their thread when the process loses its lead,
        for at most a few seconds, and then the process ends.
        """
        raise DriverError(
            f"{type(self).__name__} has no `bind` method, and a claim has devices with binding conditions"
        )

    def unbind(self, claim: BoundClaim) -> Awaitable[None] | None:
        """Reverses :meth:`bind`, once the claim has been deallocated or allocated anew, or has gone.

        Called in the controller role. Idempotent: may be called again after success, and for a claim whose bind never began,
        failed or broke off. Nobody else is given the devices' bind until it returns. An exception is tried again with growing
        pauses.
        """

    def health(self) -> Mapping[str, Health] | Awaitable[Mapping[str, Health]]:
        """Health by device name, asked every ``health_interval`` seconds, in the node role. Devices that are left out count as healthy.

        A name stands for the devices of that name in all pools of this node; ``pool/name`` for one of them.

        An unhealthy device is published with the report's taint, or :attr:`unhealthy_taint`, and not prepared unless the operator
        allows it (``UNHEALTHY_POLICY``). The operator also says how many reports in a row it takes (``UNHEALTHY_AFTER``,
        ``HEALTHY_AFTER``), and which effect taints have (``UNHEALTHY_EFFECT``). The first report of a device that this process gets
        counts at once, so a restart ends any run of reports; one that is not known (None) leaves a fault in force. Devices of a
        controller's pools have the taints that :meth:`pools` gives them.
        """
        return {}

    def recover(self) -> Answer[RecoveredClaim]:
        """What the hardware itself knows to be in use, with the request and ``admin_access`` of each device if it knows them.

        Called whenever the record database had to be made anew: after damage or loss, and at the first start on a node, where
        nothing is in use yet. What is answered is held for those claims until they are unprepared; what the CDI files tell is
        held without it. How much a claim takes only the files tell: of what is answered alone, a share counts as its whole
        device, a partition as what it draws now, and a device that is not there any more as all counters of its pool.
        """
        return ()

    @property
    def answers_pools(self) -> bool:
        return type(self).pools is not Driver.pools

    @property
    def binds(self) -> bool:
        return type(self).bind is not Driver.bind

    @property
    def reports_health(self) -> bool:
        return type(self).health is not Driver.health

    def config_kinds(self) -> Sequence[type[Config]]:
        if self.config is None:
            return ()
        return (self.config,) if isinstance(self.config, type) else tuple(self.config)
