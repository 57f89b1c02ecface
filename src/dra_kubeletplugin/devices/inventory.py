"""What devices exist now, their health and taints, and who must be told when that changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from ..base.settings import HEALTH_TIMEOUT
from ..base.telemetry.logs import log_sample
from ..base.text import join_names
from ..driver import Health, Role
from ..errors import DriverError, printable
from ..resourceapi.gated_fields import Gate
from ..resourceapi.nodes import Where
from ..resourceapi.types import Device, Taint
from ..resourceapi.validation.slices import MAX_DEVICES
from .health_policy import DeviceHealth, HealthPolicy, HealthVerdict, checked_report
from .health_report_errors import RejectedReports
from .pool_state import GONE, DeviceEntry, PoolContent, PoolState, checked, updated_pool
from .rejected_devices import RejectedDevicesLog
from .validation import decoded, parse_pools, taint_fault

__all__ = ["GONE", "DeviceHealth", "DeviceKey", "Held", "Inventory", "PoolContent"]
log = logging.getLogger(__name__)
JSON = Mapping[str, Any]
Held = Mapping[tuple[str, str], JSON]  # pool and name of devices that claims have → what `description` said, or nothing
_NOBODY: Held = MappingProxyType({})
_NO_EFFECT = HealthPolicy()
_BREATH = 256  # devices whose health is taken before others on the event loop have their turn


class DeviceKey(NamedTuple):
    """Which device: names are unique in a pool."""

    pool: str
    device: str


class Inventory:
    """The devices of all pools of a role. Changed by :meth:`update` and :meth:`set_health`; read by publisher, engine, health stream.

    Args:
        pool: name of the pool that is meant where none is said: the node's.
        policy: what the driver's reports of bad health do.
        health_timeout: seconds after which a health report is too old to be believed, where it says nothing else.
        look_timeout: the same for what the last look at the devices found.
        clock: seconds that only ever pass, whatever is done to the time of day: by it reports grow old.
        wall: the time in unix seconds, as the kubelet has it.
        role: whose pools these are; those of the other role are passed over.
        full: devices that a slice may have; fewer where each may get a taint one day, so that none has to move then.

    Raises :class:`DriverError` where the API server would refuse the policy's taint.
    """

    def __init__(
        self,
        pool: str,
        policy: HealthPolicy = _NO_EFFECT,
        health_timeout: float = HEALTH_TIMEOUT,
        look_timeout: float = HEALTH_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        role: Role = Role.NODE,
        full: int = MAX_DEVICES,
    ) -> None:
        if policy.taint is not None and (fault := taint_fault(policy.taint)):
            raise DriverError(f"unhealthy_taint of the driver's class: {fault}")
        self.pool = pool
        self.role = role
        self.full = full
        self.health_timeout = health_timeout
        self.look_timeout = look_timeout
        self.gates_off: frozenset[Gate] = frozenset()
        """Feature gates that the API server was found to have off: what depends on them is published otherwise, or not."""
        self.known = False
        """Whether the driver ever said which devices there are: until then a device that is missing may come yet."""
        self.version = 0
        """Grows with whatever changes :meth:`contents`."""
        self.health_version = 0
        """Grows with every health report and every change of the devices."""
        self._left_out_log = RejectedDevicesLog()
        self.left_out: Mapping[str, str] = {}
        """Pools, devices and counter sets that are not published, each with the reason; by name as it is shown."""
        self.odd = RejectedReports()
        """What of the driver's last report of health was not taken as it was said."""
        self.asked_again = False
        """Whether the driver is asked for its pools when gates turn out to be off: what is left out until then is no news."""
        self.answer_follows = False  # gates were found off, and the driver has not answered since
        self.taken: Mapping[str, str] = {}
        """Pools that another publishes, each with the reason: of one pool two must never publish."""
        self._policy = policy
        self._clock = clock
        self._wall = wall
        self._looked_at = 0.0
        self._stocks: dict[str, PoolState] = {}
        self._diagnoses: dict[DeviceKey, HealthVerdict] = {}
        self._reported_at: float | None = None
        self._changed = asyncio.Condition()

    # --- devices --------------------------------------------------------------------------------

    @property
    def pools(self) -> Collection[str]:
        """Names of the pools that there are now."""
        return self._stocks.keys()

    def get(self, name: str, pool: str | None = None) -> Device | None:
        """The device, if it is there now."""
        stock = self._stocks.get(self.pool if pool is None else pool)
        entry = stock.entries.get(name) if stock else None
        return entry.device if entry else None

    def find(self, name: str, pool: str) -> Device | None:
        """The device, if it is there now, or vanished while a claim has it."""
        stock = self._stocks.get(pool)
        entry = stock.find(name) if stock else None
        return entry.device if entry else None

    def draws(self, name: str, pool: str) -> dict[str, Any] | None:
        """Counter set → counter → amount that a device draws, if it is there now or vanished while a claim has it."""
        stock = self._stocks.get(pool)
        entry = stock.find(name) if stock else None
        return entry.judged.draws() if entry else None

    def counters(self, pool: str, counter_set: str) -> Mapping[str, str] | None:
        """Counter → amount of a counter set; None where there is no such set that can be published."""
        stock = self._stocks.get(pool)
        found = stock.sets.get(counter_set) if stock else None
        return {n: c["value"] for n, c in found.json["counters"].items()} if found and not found.fault else None

    def description(self, name: str, pool: str) -> msgspec.Raw:
        """A device that is there now, as JSON, as a record keeps it while it is in use: see ``used`` of :meth:`update`."""
        return self._stocks[pool].description(name)

    @property
    def has_gone(self) -> bool:
        """Whether a device vanished that a claim still holds."""
        return any(s.gone for s in self._stocks.values())

    @property
    def has_faults(self) -> bool:
        """Whether a device is unhealthy, or vanished in use."""
        return self.has_gone or any(d.fault for d in self._diagnoses.values())

    def __len__(self) -> int:
        return sum(len(s.entries) for s in self._stocks.values())

    def __iter__(self) -> Iterator[Device]:
        return (e.device for s in self._stocks.values() for e in s.entries.values())

    def items(self) -> Iterator[tuple[DeviceKey, Device]]:
        return ((DeviceKey(s.name, n), e.device) for s in self._stocks.values() for n, e in s.entries.items())

    def shown(self, pool: str, name: str) -> str:
        """A device's name as people and :meth:`Driver.health` know it."""
        return printable(name if pool == self.pool else f"{pool}/{name}")

    def contents(self) -> list[PoolContent]:
        """The pools as they should be in slices. What the API server would refuse is missing, see :attr:`left_out`."""
        stocks = (s for s in self._stocks.values() if s.name not in self.taken)
        found = (s.content(self._taints(s), self.gates_off) for s in stocks)
        return [content for content in found if content]

    def _taints(self, stock: PoolState) -> dict[str, JSON]:
        """The taints for bad health, by device."""
        made: dict[Taint | None, JSON | None] = {}  # thousands have the same
        out = {}
        for key, diagnosis in self._diagnoses.items():
            if diagnosis.fault is None or key.pool != stock.name:
                continue
            given = diagnosis.fault.taint
            if given not in made:
                made[given] = self._taint(diagnosis)
            if (taint := made[given]) is not None:
                out[key.device] = taint
        return out

    def _taint(self, diagnosis: HealthVerdict | None) -> JSON | None:
        return self._policy.taint_for(diagnosis.fault) if diagnosis and diagnosis.fault else None

    def samples(self) -> dict[str, Mapping[frozenset[Gate], JSON]]:
        """By pool and by the feature gates that it depends on, whatever is off, one device of each kind."""
        found = {s.name: s.samples(self._taints(s)) for s in self._stocks.values() if not s.fault}
        return {pool: samples for pool, samples in found.items() if samples}

    def options(self) -> JSON:
        """What pools say of all their devices at once, whatever is off; of several that say the same the last."""
        return {name: value for s in self._stocks.values() if not s.fault for name, value in s.options.items()}

    def published(self, pool: str | None = None) -> list[JSON]:
        """The devices of one pool as objects, made for the caller."""
        found = (c for c in self.contents() if c.name == (self.pool if pool is None else pool))
        return [decoded(p.encoded) for c in found for p in c.devices]

    async def update(self, pools: object, used: Held | None = _NOBODY, method: str = "pools") -> bool:
        """Takes the driver's answer, which may be anything; True where something changed.

        Devices in ``used`` (pool and name), which claims hold, stay published with a taint when they vanish; None says that it
        is not known which these are, so all that vanish do. Its values are what :meth:`description` said, or empty: that is
        how one that vanished while no plugin ran is known. A device or counter set that the API server would refuse is left out
        alone. ``method`` is what the answer came from.

        Raises :class:`DriverError` for what is no list of pools, or has a name twice; nothing is changed then.
        """
        self._looked_at = self._clock()
        answer = parse_pools(pools, method, self.pool)
        fresh = {p.name: p for p in answer if (p.nodes.where is Where.THIS) is (self.role is Role.NODE)}
        # Of one pool two must never publish: what vanished of it here is the other role's to know.
        others = {p.name for p in answer} - fresh.keys()
        held: dict[str, dict[str, JSON]] = {}
        for (name, device), described in (used or {}).items():
            held.setdefault(name, {})[device] = described
        stocks = {}
        for name, pool in fresh.items():
            of_pool = None if used is None else held.get(name, {})
            stocks[name] = await updated_pool(self._stocks.get(name) or PoolState(name), pool, of_pool)
        for name in [*self._stocks, *(n for n in held if n not in self._stocks)]:
            if name not in fresh and name not in others:  # the pool vanished: what of it is in use stays
                before = self._stocks.get(name) or PoolState(name)
                rest = await updated_pool(before, before.emptied(), None if used is None else held.get(name, {}))
                if rest.gone:
                    stocks[name] = rest
        changed = (
            not self.known
            or list(stocks) != list(self._stocks)
            or any(not s.same(self._stocks[n]) for n, s in stocks.items())
        )
        await self._warm(stocks, self.gates_off)
        for name, stock in stocks.items():  # the server may have refused, or others forgiven, while this was made
            if (present := self._stocks.get(name)) is not None and present.refused != stock.refused:
                stocks[name] = checked(replace(stock, refused=present.refused))
        self.known = True
        self._stocks = stocks
        self._diagnoses = {k: d for k, d in self._diagnoses.items() if self._entry(k)}
        awaited, self.answer_follows = self.answer_follows, False
        self._leave_out()
        if changed or awaited:
            await self._tell(published=True)
        return changed

    async def refuse(self, reasons: Mapping[str, str], pool: str | None = None) -> None:
        """The API server refused devices, by name: they are left out until the driver describes them differently."""
        stock = self._stocks.get(self.pool if pool is None else pool)
        if stock is None:
            return
        refused = dict(stock.refused)
        for name, reason in reasons.items():
            if entry := stock.find(name):
                refused[name] = (entry.judged.shape, printable(reason))
        self._stocks[stock.name] = checked(replace(stock, refused=refused))
        self._leave_out()
        await self._tell(published=True)

    async def forgive(self) -> bool:
        """What the API server refused may be tried again; True where there is such a thing."""
        if not any(s.refused for s in self._stocks.values()):
            return False
        self._stocks = {n: checked(replace(s, refused={})) for n, s in self._stocks.items()}
        self._leave_out()
        await self._tell(published=True)
        return True

    async def set_gates_off(self, off: frozenset[Gate]) -> None:
        """What the API server drops now."""
        if off != self.gates_off:
            await self._warm(self._stocks, off)
            self.gates_off = off
            self.answer_follows = self.asked_again
            self._leave_out()
            await self._tell(published=True)

    async def set_taken(self, taken: Mapping[str, str]) -> bool:
        """Pools that another publishes now, each with the reason; True where that is news."""
        if taken == self.taken:
            return False
        self.taken = dict(taken)
        self._leave_out()
        await self._tell(published=True)
        return True

    def _leave_out(self) -> None:
        out = {}
        for stock in self._stocks.values():
            if stock.name in self.taken:
                out[f"pool {printable(stock.name)}"] = self.taken[stock.name]
                continue
            faults = dict(stock.left_out)
            if self.gates_off and not stock.fault:
                faults |= stock.withheld(self._taints(stock), self.gates_off)
            for name, fault in faults.items():
                out[self.shown(stock.name, name) if name else f"pool {printable(stock.name)}"] = fault
        self.left_out = out
        if not self.answer_follows:
            self._left_out_log.tell(out)

    def lessened(self) -> list[str]:
        """A sentence for each kind of field that devices are published without, with one of them."""
        found: dict[tuple[str, ...], list[str]] = {}
        for stock in self._stocks.values() if self.gates_off else ():
            for name, fields in stock.lessened(self._taints(stock), self.gates_off).items():
                found.setdefault(fields, []).append(self.shown(stock.name, name))
        gates = ", ".join(sorted(g.value for g in self.gates_off))
        return [
            f"{join_names(names, 1)} published without {', '.join(map(printable, fields))}: the API server's feature gate is off ({gates})"
            for fields, names in found.items()
        ]

    async def _warm(self, stocks: Mapping[str, PoolState], off: frozenset[Gate]) -> None:
        """What thousands of devices are sent as is made with turns for others, before anybody needs it."""
        for stock in list(stocks.values()):
            await asyncio.sleep(0)
            if not stock.fault:
                await stock.warm(self._taints(stock), off)

    def _entry(self, key: DeviceKey) -> DeviceEntry | None:
        stock = self._stocks.get(key.pool)
        return stock.entries.get(key.device) if stock else None

    def _keys(self) -> Iterator[DeviceKey]:
        return (DeviceKey(s.name, n) for s in self._stocks.values() for n in s.entries)

    # --- health ---------------------------------------------------------------------------------

    def healthy(self, name: str, pool: str | None = None) -> bool:
        """False where the driver's reports make a device unhealthy. Not known is not unhealthy."""
        return self._fault(name, pool) is None

    def unhealthy_reason(self, name: str, pool: str | None = None) -> str:
        """What the driver said of an unhealthy device."""
        fault = self._fault(name, pool)
        return (fault.message if fault else "") or "no reason given"

    def _fault(self, name: str, pool: str | None) -> Health | None:
        diagnosis = self._diagnoses.get(DeviceKey(self.pool if pool is None else pool, name))
        return diagnosis.fault if diagnosis else None

    def health_of(self, key: DeviceKey) -> DeviceHealth:
        """What is known of a device's health now; a report that is too old says nothing any more."""
        stock = self._stocks.get(key.pool)
        if stock and key.device in stock.gone:
            return self._known(False, "the device vanished while a claim uses it", self._looked_at, self.look_timeout)
        diagnosis = self._diagnoses.get(key)
        if diagnosis is None:
            return DeviceHealth(None, "the driver has not reported its health yet", timeout=self.health_timeout)
        timeout = self._timeout(diagnosis)
        if self._clock() - diagnosis.at > timeout:
            return self._known(None, f"the driver's last report is older than {timeout:g} s", diagnosis.at, timeout)
        return self._known(diagnosis.health.healthy, diagnosis.health.message, diagnosis.at, timeout)

    def _known(self, healthy: bool | None, message: str, at: float, timeout: float) -> DeviceHealth:
        """The age is what is certain: should the time of day be set, the kubelet is told when it was by the new one."""
        return DeviceHealth(healthy, message, self._wall() - (self._clock() - at), timeout)

    def _timeout(self, diagnosis: HealthVerdict) -> float:
        return self.health_timeout if diagnosis.told.timeout is None else diagnosis.told.timeout

    def stale_in(self) -> float | None:
        """Seconds until the next report grows too old to be believed; None where none is believed."""
        now = self._clock()
        left = [d.at + self._timeout(d) - now for d in self._diagnoses.values()]
        return min((seconds for seconds in left if seconds >= 0), default=None)

    def health(self) -> Iterator[tuple[DeviceKey, DeviceHealth]]:
        """Every device, those that vanished in use included, with its health."""
        for stock in self._stocks.values():
            for name in [*stock.entries, *stock.gone]:
                key = DeviceKey(stock.name, name)
                yield key, self.health_of(key)

    def health_age(self) -> float | None:
        """Seconds since the driver's last report was measured; None before the first."""
        return None if self._reported_at is None else max(0.0, self._clock() - self._reported_at)

    def health_counts(self) -> dict[str, int]:
        """How many devices are ``healthy``, ``unhealthy`` and ``unknown`` now."""
        out = {"healthy": 0, "unhealthy": 0, "unknown": 0}
        for _, health in self.health():
            out["unknown" if health.healthy is None else "healthy" if health.healthy else "unhealthy"] += 1
        return out

    async def set_health(self, report: object, at: float) -> None:
        """Takes the driver's answer, which may be anything, as measured ``at`` (by the inventory's clock) where it says nothing else.

        Names that are no devices are ignored; devices that are left out were healthy then.

        Raises :class:`DriverError` for what is no mapping of names to :class:`Health`; nothing is changed then.
        """
        told = self.odd.taintable(await checked_report(report))
        found = {}
        for i, key in enumerate(list(self._keys())):
            health = told.get(f"{key.pool}/{key.device}") or told.get(key.device) or Health(True)
            before, when = self._diagnoses.get(key), self._measured(health, at)
            found[key] = before.after(health, when, self._policy) if before else HealthVerdict.first(health, when)
            if i % _BREATH == _BREATH - 1:
                await asyncio.sleep(0)
        if self.known:  # before the driver's first answer nobody is a stranger
            self.odd.tell_strangers(told.keys(), {n for s in self._stocks.values() for n in (*s.entries, *s.gone)})
        await asyncio.sleep(0)
        fresh = {k: d for k, d in found.items() if self._entry(k)}  # others had their turn
        fell, rose = list[tuple[DeviceKey, Health]](), list[DeviceKey]()
        turned = False
        for key, now in fresh.items():
            was = self._diagnoses.get(key)
            if now.fault and not (was and was.fault):
                fell.append((key, now.fault))
            elif was and was.fault and not now.fault:
                rose.append(key)
            turned = turned or self._taint(was) != self._taint(now)
        log_sample(log, logging.WARNING, "device %s", fell, lambda f: self._ill(*f))
        log_sample(log, logging.INFO, "device %s is healthy again", rose, lambda key: self.shown(*key))
        self._diagnoses, self._reported_at = fresh, at
        if turned:
            await self._warm(self._stocks, self.gates_off)
        if turned and self.gates_off:
            self._leave_out()
        await self._tell(published=turned)

    def _measured(self, health: Health, at: float) -> float:
        """What was measured in the future was measured now: such a report would never grow old."""
        return at if health.measured is None else self._clock() - max(0.0, self._wall() - health.measured)

    def _ill(self, key: DeviceKey, fault: Health) -> str:
        return f"{self.shown(*key)} is unhealthy: {fault.message or 'no reason given'}"

    # --- who must be told -----------------------------------------------------------------------

    async def _tell(self, *, published: bool) -> None:
        self.version += published  # with what changed, not when the lock is free
        self.health_version += 1
        async with self._changed:
            self._changed.notify_all()

    async def changed(self, seen: int) -> int:
        """Waits until there is a version other than ``seen``, and answers it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version != seen)
            return self.version

    async def health_changed(self, seen: int) -> int:
        """Waits until there is a health version other than ``seen``, and answers it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.health_version != seen)
            return self.health_version
