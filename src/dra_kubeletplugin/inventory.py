"""What devices exist now, their health and taints, and who must be told when that changes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping

from .driver import Health
from .errors import DriverError
from .resources.types import CounterSet, Device, Taint

log = logging.getLogger(__name__)
GONE = Taint(key="dra-kubeletplugin.dev/gone", effect="NoSchedule")


class Inventory:
    """The devices of one pool. Changed by :meth:`update` and :meth:`set_health`; read by publisher, engine and health stream.

    Args:
        pool: the pool's name, which is the node's.
        unhealthy_taint: what unhealthy devices get.
    """

    def __init__(self, pool: str, unhealthy_taint: Taint | None = None) -> None:
        self.pool = pool
        self.unhealthy_taint = unhealthy_taint
        self.counter_sets: tuple[CounterSet, ...] = ()
        self.health: Mapping[str, Health] = {}
        self.version = 0
        self._devices: dict[str, Device] = {}
        self._gone: dict[str, Device] = {}
        self._changed = asyncio.Condition()

    def get(self, name: str) -> Device | None:
        """The device, if it is there now."""
        return self._devices.get(name)

    def healthy(self, name: str) -> bool:
        health = self.health.get(name)
        return health is None or health.healthy is not False

    @property
    def known(self) -> bool:
        return self.version > 0

    @property
    def has_gone(self) -> bool:
        """Whether a device vanished that a claim still holds."""
        return bool(self._gone)

    def __len__(self) -> int:
        return len(self._devices)

    def __iter__(self) -> Iterator[Device]:
        return iter(self._devices.values())

    def published(self) -> list[Device]:
        """The devices as they should be in slices: with taints for bad health, and with those that vanished in use."""
        out = []
        for device in [*self._devices.values(), *self._gone.values()]:
            taints = list(device.taints)
            if device.name in self._gone:
                taints.append(GONE)
            elif not self.healthy(device.name) and self.unhealthy_taint:
                taints.append(self.unhealthy_taint)
            out.append(dataclasses.replace(device, taints=taints) if len(taints) != len(device.taints) else device)
        return out

    async def update(
        self, devices: Iterable[Device], counter_sets: Iterable[CounterSet] = (), used: Collection[str] = ()
    ) -> bool:
        """Takes the driver's answer; True where something changed.

        Order is kept: what was there stays in place, what is new comes behind it. Devices in ``used``, which claims hold,
        stay published with a taint when they vanish.

        Raises :class:`DriverError` for what is no device, or has a name twice; nothing is changed then.
        """
        fresh: dict[str, Device] = {}
        for device in devices:
            if not isinstance(device, Device):
                raise DriverError(f"devices() answered {type(device).__name__}, not Device")
            if device.name in fresh:
                raise DriverError(
                    f"devices() answered two devices named {device.name!r}: names must be unique in a node"
                )
            fresh[device.name] = device
        sets = tuple(counter_sets)
        kept = {name: fresh[name] for name in self._devices if name in fresh}
        ordered = kept | fresh
        missing = {**self._gone, **self._devices}
        gone = {n: d for n, d in missing.items() if n not in fresh and n in used}
        same = ordered == self._devices and sets == self.counter_sets and gone.keys() == self._gone.keys()
        for name in gone.keys() - self._gone.keys():
            log.warning("device %s vanished while a claim uses it: it stays published with a taint", name)
        self._devices, self.counter_sets, self._gone = ordered, sets, gone
        if not same or self.version == 0:
            await self._tell()
        return not same

    async def set_health(self, health: Mapping[str, Health]) -> None:
        """Takes the driver's report. Names that are no devices are ignored."""
        known = {n: h for n, h in health.items() if n in self._devices}
        if known == self.health:
            return
        for name, h in known.items():
            before = self.health.get(name)
            if h.healthy is False and (before is None or before.healthy is not False):
                log.warning("device %s is unhealthy: %s", name, h.message or "no reason given")
            elif h.healthy is not False and before is not None and before.healthy is False:
                log.info("device %s is healthy again", name)
        self.health = known
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self.version += 1
            self._changed.notify_all()

    async def changed(self, seen: int) -> int:
        """Waits until there is a version other than ``seen``, and answers it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version != seen)
            return self.version
