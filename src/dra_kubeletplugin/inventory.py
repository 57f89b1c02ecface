"""What devices exist now, their health and taints, and who must be told when that changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .driver import Health
from .errors import DriverError, describe, printable
from .publishable import Judged, Parcel, counters_fault, decoded, judge, named, parcel, taint_fault, tainted
from .resources.types import CounterSet, Device, Taint
from .settings import HEALTH_TIMEOUT

log = logging.getLogger(__name__)
GONE = Taint(key="dra-kubeletplugin.dev/gone", effect="NoSchedule")
_BREATH = 16  # devices that are judged before others on the event loop have their turn
JSON = Mapping[str, Any]


@dataclass(frozen=True)
class DeviceHealth:
    """What is known of a device's health: ``healthy`` is None where nothing is.

    ``at`` is when that was measured, in unix seconds; 0 where it never was.
    """

    healthy: bool | None
    message: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Entry:
    device: Device
    judged: Judged
    gone_at: float = 0.0  # unix seconds since when a device that is in use is missing


class Inventory:
    """The devices of one pool. Changed by :meth:`update` and :meth:`set_health`; read by publisher, engine and health stream.

    Args:
        pool: the pool's name, which is the node's.
        unhealthy_taint: what devices get that the driver reports as unhealthy.
        health_timeout: seconds after which a health report is too old to be believed.
        clock: the time in unix seconds.

    Raises :class:`DriverError` where the API server would refuse ``unhealthy_taint``.
    """

    def __init__(
        self,
        pool: str,
        unhealthy_taint: Taint | None = None,
        health_timeout: float = HEALTH_TIMEOUT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if unhealthy_taint is not None and (fault := taint_fault(unhealthy_taint)):
            raise DriverError(f"unhealthy_taint of the driver's class: {fault}")
        self.pool = pool
        self.health_timeout = health_timeout
        self.known = False
        """Whether the driver ever said which devices there are: until then a device that is missing may come yet."""
        self.version = 0
        """Grows with whatever changes :meth:`published` or :meth:`published_sets`."""
        self.health_version = 0
        """Grows with every health report and every change of the devices."""
        self.left_out: Mapping[str, str] = {}
        """Devices and counter sets that are not published, each with the reason."""
        self._unhealthy_taint = unhealthy_taint.json() if unhealthy_taint is not None else None
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._gone: dict[str, _Entry] = {}
        self._sets: dict[str, Judged] = {}
        self._refused: dict[str, tuple[bytes, str]] = {}  # by the API server: name → what it refused, and why
        self._reports: dict[str, tuple[Health, float]] = {}
        self._reported_at: float | None = None
        self._strangers: set[str] = set()  # names in the last report that are no devices
        self._changed = asyncio.Condition()

    # --- devices --------------------------------------------------------------------------------

    def get(self, name: str) -> Device | None:
        """The device, if it is there now."""
        entry = self._entries.get(name)
        return entry.device if entry else None

    def counters(self, counter_set: str) -> Mapping[str, str] | None:
        """Counter → amount of a counter set; None where there is no such set."""
        found = self._sets.get(counter_set)
        return {n: c["value"] for n, c in found.json["counters"].items()} if found and not found.fault else None

    def description(self, name: str) -> JSON:
        """How a device is published, with its counter sets, for a record of what is in use: see ``used`` of :meth:`update`."""
        entry = self._entries[name]
        device = entry.judged.json
        sets = [
            self._sets[c["counterSet"]] for c in device.get("consumesCounters") or () if c["counterSet"] in self._sets
        ]
        return {"device": device, "counterSets": [s.json for s in sets]}

    @property
    def has_gone(self) -> bool:
        """Whether a device vanished that a claim still holds."""
        return bool(self._gone)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Device]:
        return (e.device for e in self._entries.values())

    def parcels(self) -> list[Parcel]:
        """The devices as they should be in slices: with taints for bad health, and with those that vanished in use.

        What the API server would refuse is missing, see :attr:`left_out`.
        """
        out = []
        for name, entry in self._entries.items():
            if name not in self.left_out:
                if self._unhealthy_taint is not None and not self.healthy(name):
                    out.append(parcel(tainted(entry.judged.json, self._unhealthy_taint)))
                else:
                    out.append(entry.judged.parcel(name))
        gone = GONE.json()
        out += [parcel(tainted(e.judged.json, gone)) for name, e in self._gone.items() if name not in self.left_out]
        return out

    def published(self) -> list[JSON]:
        """:meth:`parcels` as objects, made for the caller."""
        return [decoded(p.encoded) for p in self.parcels()]

    def published_sets(self) -> list[JSON]:
        """The counter sets as they should be in slices."""
        return [j.json for j in self._sets.values() if not j.fault]

    async def update(self, devices: object, counter_sets: object = (), used: Collection[str] | None = ()) -> bool:
        """Takes the driver's answer, which may be anything; True where something changed.

        Order is kept: what was there stays in place, what is new comes behind it. Devices in ``used``, which claims hold,
        stay published with a taint when they vanish; None says that it is not known which these are, so all that vanish do.
        A device or counter set that the API server would refuse is left out alone.

        Raises :class:`DriverError` for what is no list of devices, or has a name twice; nothing is changed then.
        """
        fresh: dict[str, Device] = named(devices, Device, "devices")
        fresh_sets: dict[str, CounterSet | None] = named(counter_sets, CounterSet, "counter_sets")
        sets = {n: _judge_set(s, self._sets.get(n)) for n, s in fresh_sets.items()}
        entries: dict[str, _Entry] = {}
        for i, name in enumerate([*(n for n in self._entries if n in fresh), *fresh]):
            if name not in entries:
                entries[name] = _entry(fresh[name], self._entries.get(name))
            if i % _BREATH == _BREATH - 1:
                await asyncio.sleep(0)
        now = self._clock()
        vanished = {n: _Entry(e.device, e.judged, now) for n, e in self._entries.items() if n not in fresh}
        missing = {n: e for n, e in {**vanished, **self._gone}.items() if n not in fresh}
        gone = {n: e for n, e in missing.items() if used is None or n in used}
        for name in gone.keys() - self._gone.keys():
            log.warning("device %s vanished while a claim uses it: it stays published with a taint", name)
        changed = (
            not self.known
            or _differ(_judged(entries), _judged(self._entries))
            or _differ(_judged(gone), _judged(self._gone))
            or _differ(sets, self._sets)
        )
        self.known = True
        self._entries, self._gone, self._sets = entries, gone, sets
        self._reports = {n: r for n, r in self._reports.items() if n in entries}
        self._leave_out()
        if changed:
            await self._tell(published=True)
        return changed

    async def refuse(self, reasons: Mapping[str, str]) -> None:
        """The API server refused devices, by name: they are left out until the driver describes them differently."""
        for name, reason in reasons.items():
            if entry := self._entries.get(name) or self._gone.get(name):
                self._refused[name] = (entry.judged.shape, printable(reason))
        self._leave_out()
        await self._tell(published=True)

    async def forgive(self) -> bool:
        """What the API server refused may be tried again; True where there is such a thing."""
        if not self._refused:
            return False
        self._refused = {}
        self._leave_out()
        await self._tell(published=True)
        return True

    def _leave_out(self) -> None:
        out = {f"counter set {printable(n)}": j.fault for n, j in self._sets.items() if j.fault}
        known = {**self._gone, **self._entries}
        counters = {n: j.json["counters"] for n, j in self._sets.items() if not j.fault}
        self._refused = {n: r for n, r in self._refused.items() if n in known and known[n].judged.shape == r[0]}
        for name, entry in known.items():
            fault = entry.judged.fault or counters_fault(entry.judged, self._sets, counters)
            if not fault and name in self._refused:
                fault = f"refused by the API server: {self._refused[name][1]}"
            if fault:
                out[name] = fault
        for name, fault in out.items():
            if self.left_out.get(name) != fault:
                log.error("%s is not published: %s", printable(name), fault)
        for name in self.left_out.keys() - out.keys():
            log.info("%s is left out no longer", printable(name))
        self.left_out = out

    # --- health ---------------------------------------------------------------------------------

    def healthy(self, name: str) -> bool:
        """False where the driver's last word on a device is that it is unhealthy. Not known is not unhealthy."""
        report = self._reports.get(name)
        return report is None or report[0].healthy is not False

    def unhealthy_reason(self, name: str) -> str:
        """The driver's last word on an unhealthy device."""
        report = self._reports.get(name)
        return (report[0].message if report else "") or "no reason given"

    def health_of(self, name: str) -> DeviceHealth:
        """What is known of a device's health now; a report that is too old says nothing any more."""
        if gone := self._gone.get(name):
            return DeviceHealth(False, "the device vanished while a claim uses it", gone.gone_at)
        report = self._reports.get(name)
        if report is None:
            return DeviceHealth(None, "the driver has not reported its health yet")
        health, at = report
        if abs(self._clock() - at) > self.health_timeout:
            return DeviceHealth(None, f"the driver's last report is older than {self.health_timeout:g} s", at)
        return DeviceHealth(health.healthy, health.message, at)

    def health(self) -> Iterator[tuple[str, DeviceHealth]]:
        """Every device, those that vanished in use included, with its health."""
        return ((name, self.health_of(name)) for name in [*self._entries, *self._gone])

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
        """Takes the driver's answer, which may be anything, as measured ``at`` (unix seconds).

        Names that are no devices are ignored; devices that are left out were healthy then.

        Raises :class:`DriverError` for what is no mapping of names to :class:`Health`; nothing is changed then.
        """
        told = _checked(report)
        fresh = {n: (told.get(n, Health(True)), at) for n in self._entries}
        strangers = told.keys() - self._entries.keys() - self._gone.keys()
        for name in strangers - self._strangers:
            log.warning("health() tells of %s, which is no device of this node: it is ignored", printable(name))
        self._strangers = strangers
        for name, (health, _) in fresh.items():
            if health.healthy is False and self.healthy(name):
                log.warning("device %s is unhealthy: %s", name, health.message or "no reason given")
            elif health.healthy is not False and not self.healthy(name):
                log.info("device %s is healthy again", name)
        turned = any(self.healthy(n) != (h.healthy is not False) for n, (h, _) in fresh.items())
        self._reports, self._reported_at = fresh, at
        await self._tell(published=turned)

    # --- who must be told -----------------------------------------------------------------------

    async def _tell(self, *, published: bool) -> None:
        async with self._changed:
            self.version += published
            self.health_version += 1
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


def _entry(device: Device, before: _Entry | None) -> _Entry:
    """Where nothing changed the old one is kept: what a look every minute makes anew is garbage at once then."""
    if before is None:
        return _Entry(device, judge(device))
    judged = judge(device, before.judged)
    return before if judged is before.judged and _same(device, before.device) else _Entry(device, judged)


def _judged(entries: Mapping[str, _Entry]) -> dict[str, Judged]:
    return {n: e.judged for n, e in entries.items()}


def _differ(now: Mapping[str, Judged], before: Mapping[str, Judged]) -> bool:
    """Order counts."""
    return list(now) != list(before) or any(now[n] is not before[n] and now[n] != before[n] for n in now)


def _same(device: Device, before: Device) -> bool:
    try:
        return device.data is before.data and device == before
    except Exception:  # an author's object may be anything inside
        return False


def _judge_set(counter_set: CounterSet | None, before: Judged | None) -> Judged:
    if counter_set is None:
        return Judged(b"", "counter_sets() answered two of this name")
    return judge(counter_set, before)


def _checked(report: object) -> dict[str, Health]:
    if not isinstance(report, Mapping):
        raise DriverError(f"health() answered {type(report).__name__}: it must answer a mapping of names to Health")
    out = {}
    try:
        for name, health in report.items():
            if not isinstance(name, str) or not isinstance(health, Health):
                raise DriverError(
                    f"health() answered {type(name).__name__} → {type(health).__name__}: it must answer names → Health"
                )
            if health.healthy not in {True, False, None}:
                raise DriverError(f"health() answered Health({printable(health.healthy)}) for {printable(name)}")
            # A vendor's library may say 0 for False: it must mean the same to all who look.
            healthy = None if health.healthy is None else bool(health.healthy)
            out[name] = Health(healthy, printable(health.message))
    except DriverError:
        raise
    except Exception as e:
        raise DriverError(f"the answer of health() cannot be read: {describe(e)}") from e
    return out
