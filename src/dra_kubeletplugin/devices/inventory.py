"""Keeps the validated devices of this process with their health and taints, and wakes tasks that wait for a change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

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
from .health_policy import DeviceHealth, HealthDecision, HealthPolicy, checked_report
from .health_report_errors import RejectedReports
from .pool_state import GONE, DeviceEntry, DeviceKey, Held, PoolContent, PoolState, checked, updated_pool
from .rejection_log import RejectedDevicesLog
from .validation import decoded, parse_pools, taint_fault

__all__ = ["GONE", "DeviceHealth", "DeviceKey", "Held", "Inventory", "PoolContent"]
log = logging.getLogger(__name__)
JSON = Mapping[str, Any]
_NO_CLAIMS: Held = MappingProxyType({})
_NO_EFFECT = HealthPolicy()
_BATCH = 256  # devices whose health is processed before other tasks on the event loop run


class Inventory:
    """The devices of all pools of a role. The publisher, the claim manager and the health stream read it.

    Args:
        pool: name of the default pool, which is the node's name.
        policy: the effects of reports of bad health.
        look_timeout: seconds until the result of the last discovery expires.
        clock: a monotonic clock in seconds; the age of reports is measured with it.
        wall: the time of day in unix seconds, as the kubelet sees it.
        role: the role whose pools these are; pools of the other role are skipped.
        full: maximum number of devices in a slice. Pass a lower one if devices may get taints later: a taint must not move a device to
            another slice.

    Raises:
        DriverError: the API server would reject the policy's taint.
    """

    def __init__(
        self,
        pool: str,
        policy: HealthPolicy = _NO_EFFECT,
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
        self.health_timeout = policy.timeout
        self.look_timeout = look_timeout
        self.gates_off: frozenset[Gate] = frozenset()
        """Feature gates that the API server has off: devices that depend on them are published without some fields, or not at all."""
        self.known = False  # whether the driver ever returned its devices. Before, a missing device may still appear
        self.version = 0  # increases with every change of :meth:`contents`
        self.health_version = 0  # increases with every health report and every change of the devices
        self._rejected_log = RejectedDevicesLog()
        self.rejected: Mapping[str, str] = {}
        """Pools, devices and counter sets that are not published, by display name, each with the reason."""
        self.rejected_reports = RejectedReports()  # errors in the driver's last health report
        self.depends_on_gates = False
        """Whether the driver is called again when gates turn out to be off. If so, rejected devices are logged only after that call."""
        self.update_pending = False  # gates were found off, and the driver's new result is still to come
        self.taken: Mapping[str, str] = {}
        """Pools that another publisher publishes, each with the reason. Two publishers must never publish one pool."""
        self._policy = policy
        self._clock = clock
        self._wall = wall
        self._looked_at = 0.0
        self._states: dict[str, PoolState] = {}
        self._decisions: dict[DeviceKey, HealthDecision] = {}
        self._reported_at: float | None = None
        self._changed = asyncio.Condition()

    # --- devices --------------------------------------------------------------------------------

    @property
    def pools(self) -> Collection[str]:
        """Names of the pools that exist now."""
        return self._states.keys()

    def get(self, name: str, pool: str | None = None) -> Device | None:
        """Returns a present device, else None."""
        state = self._states.get(self.pool if pool is None else pool)
        entry = state.entries.get(name) if state else None
        return entry.device if entry else None

    def find(self, name: str, pool: str) -> Device | None:
        """Returns a device that is present, or that vanished while a claim holds it; else None."""
        state = self._states.get(pool)
        entry = state.find(name) if state else None
        return entry.device if entry else None

    def draws(self, name: str, pool: str) -> dict[str, Any] | None:
        """Returns the counters that a device consumes: counter set → counter → amount. None if :meth:`find` finds no such device."""
        state = self._states.get(pool)
        entry = state.find(name) if state else None
        return entry.validated.draws() if entry else None

    def counters(self, pool: str, counter_set: str) -> Mapping[str, str] | None:
        """Returns counter → amount of a counter set; None if there is no such set, or it cannot be published."""
        state = self._states.get(pool)
        found = state.sets.get(counter_set) if state else None
        return {n: c["value"] for n, c in found.json["counters"].items()} if found and not found.fault else None

    def description(self, name: str, pool: str) -> msgspec.Raw:
        """Returns a present device as JSON, for the record of a claim that holds it; see ``used`` of :meth:`update`."""
        return self._states[pool].description(name)

    @property
    def has_gone(self) -> bool:
        """Whether a device has vanished although a claim still holds it."""
        return any(s.gone for s in self._states.values())

    @property
    def has_faults(self) -> bool:
        """Whether a device is unhealthy, or vanished in use."""
        return self.has_gone or any(d.fault for d in self._decisions.values())

    def __len__(self) -> int:
        return sum(len(s.entries) for s in self._states.values())

    def __iter__(self) -> Iterator[Device]:
        return (e.device for s in self._states.values() for e in s.entries.values())

    def items(self) -> Iterator[tuple[DeviceKey, Device]]:
        return ((DeviceKey(s.name, n), e.device) for s in self._states.values() for n, e in s.entries.items())

    def shown(self, pool: str, name: str) -> str:
        """Returns a device's display name, which :meth:`Driver.health` uses too."""
        return printable(name if pool == self.pool else f"{pool}/{name}")

    def contents(self) -> list[PoolContent]:
        """Returns the pools as they should be in slices, without devices that the API server would reject (:attr:`rejected`)."""
        states = (s for s in self._states.values() if s.name not in self.taken)
        found = (s.content(self._taints(s), self.gates_off) for s in states)
        return [content for content in found if content]

    def _taints(self, state: PoolState) -> dict[str, JSON]:
        """Returns the taints for bad health, by device."""
        made: dict[Taint | None, JSON | None] = {}  # thousands of devices may have the same taint
        out = {}
        for key, decision in self._decisions.items():
            if decision.fault is None or key.pool != state.name:
                continue
            given = decision.fault.taint
            if given not in made:
                made[given] = self._taint(decision)
            if (taint := made[given]) is not None:
                out[key.device] = taint
        return out

    def _taint(self, decision: HealthDecision | None) -> JSON | None:
        return self._policy.taint_for(decision.fault) if decision and decision.fault else None

    def samples(self) -> dict[str, Mapping[frozenset[Gate], JSON]]:
        """Returns one device of each kind, by pool and by the feature gates that it depends on, ignoring the gates that are off."""
        found = {s.name: s.samples(self._taints(s)) for s in self._states.values() if not s.fault}
        return {pool: samples for pool, samples in found.items() if samples}

    def options(self) -> JSON:
        """Returns the options that pools set for all their devices, ignoring the gates that are off. The last pool wins."""
        return {name: value for s in self._states.values() if not s.fault for name, value in s.options.items()}

    def published(self, pool: str | None = None) -> list[JSON]:
        """Returns the devices of one pool as new objects."""
        found = (c for c in self.contents() if c.name == (self.pool if pool is None else pool))
        return [decoded(p.encoded) for c in found for p in c.devices]

    async def update(self, pools: object, used: Held | None = _NO_CLAIMS, method: str = "pools") -> bool:
        """Replaces the devices by the driver's result. Returns True if something changed.

        A device or counter set that the API server would reject is left out; the others are published.

        Args:
            pools: the driver's result, not yet validated.
            used: devices that claims hold, by pool and name. If they vanish, they stay published with a taint. Pass None if they are
                unknown now: then all vanished devices stay. The values are results of :meth:`description`, or empty; they describe
                devices that vanished while no plugin ran.
            method: the driver's method that returned the result.

        Raises:
            DriverError: the result is not a list of pools, or contains a name twice; then nothing changes.
        """
        self._looked_at = self._clock()
        result = parse_pools(pools, method, self.pool)
        fresh = {p.name: p for p in result if (p.nodes.where is Where.THIS) is (self.role is Role.NODE)}
        # Two publishers must never publish one pool, so the other role also handles the vanished devices of its pools.
        others = {p.name for p in result} - fresh.keys()
        held: dict[str, dict[str, JSON]] = {}
        for (name, device), described in (used or {}).items():
            held.setdefault(name, {})[device] = described
        states = {}
        for name, pool in fresh.items():
            of_pool = None if used is None else held.get(name, {})
            states[name] = await updated_pool(self._states.get(name) or PoolState(name), pool, of_pool)
        for name in [*self._states, *(n for n in held if n not in self._states)]:
            if name not in fresh and name not in others:  # the pool vanished; its devices in use stay
                before = self._states.get(name) or PoolState(name)
                rest = await updated_pool(before, before.emptied(), None if used is None else held.get(name, {}))
                if rest.gone:
                    states[name] = rest
        changed = (
            not self.known
            or list(states) != list(self._states)
            or any(not s.same(self._states[n]) for n, s in states.items())
        )
        await self._warm(states, self.gates_off)
        # While other tasks ran, the API server may have rejected devices, or rejections were cleared.
        for name, state in states.items():
            if (present := self._states.get(name)) is not None and present.refused != state.refused:
                states[name] = checked(replace(state, refused=present.refused))
        self.known = True
        self._states = states
        self._decisions = {k: d for k, d in self._decisions.items() if self._entry(k)}
        awaited, self.update_pending = self.update_pending, False
        self._leave_out()
        if changed or awaited:
            await self._notify(published=True)
        return changed

    async def refuse(self, reasons: Mapping[str, str], pool: str | None = None) -> None:
        """Marks devices, by name, as rejected by the API server: they are left out until the driver describes them differently."""
        state = self._states.get(self.pool if pool is None else pool)
        if state is None:
            return
        refused = dict(state.refused)
        for name, reason in reasons.items():
            if entry := state.find(name):
                refused[name] = (entry.validated.shape, printable(reason))
        self._states[state.name] = checked(replace(state, refused=refused))
        self._leave_out()
        await self._notify(published=True)

    async def clear_rejections(self) -> bool:
        """Clears the API server's rejections, so that the devices are tried again. Returns True if there were any."""
        if not any(s.refused for s in self._states.values()):
            return False
        self._states = {n: checked(replace(s, refused={})) for n, s in self._states.items()}
        self._leave_out()
        await self._notify(published=True)
        return True

    async def set_gates_off(self, off: frozenset[Gate]) -> None:
        """Sets the gates that the API server has off."""
        if off != self.gates_off:
            await self._warm(self._states, off)
            self.gates_off = off
            self.update_pending = self.depends_on_gates
            self._leave_out()
            await self._notify(published=True)

    async def set_taken(self, taken: Mapping[str, str]) -> bool:
        """Sets the pools that another publisher publishes, each with the reason. Returns True if they changed."""
        if taken == self.taken:
            return False
        self.taken = dict(taken)
        self._leave_out()
        await self._notify(published=True)
        return True

    def _leave_out(self) -> None:
        out = {}
        for state in self._states.values():
            if state.name in self.taken:
                out[f"pool {printable(state.name)}"] = self.taken[state.name]
                continue
            faults = dict(state.rejected)
            if self.gates_off and not state.fault:
                faults |= state.withheld(self._taints(state), self.gates_off)
            for name, fault in faults.items():
                out[self.shown(state.name, name) if name else f"pool {printable(state.name)}"] = fault
        self.rejected = out
        if not self.update_pending:
            self._rejected_log.log(out)

    def gate_notes(self) -> list[str]:
        """Returns a sentence for each set of fields that devices are published without, with an example device."""
        found: dict[tuple[str, ...], list[str]] = {}
        for state in self._states.values() if self.gates_off else ():
            for name, fields in state.published_without(self._taints(state), self.gates_off).items():
                found.setdefault(fields, []).append(self.shown(state.name, name))
        gates = ", ".join(sorted(g.value for g in self.gates_off))
        return [
            f"{join_names(names, 1)} published without {', '.join(map(printable, fields))}: the API server's feature gate is off ({gates})"
            for fields, names in found.items()
        ]

    async def _warm(self, states: Mapping[str, PoolState], off: frozenset[Gate]) -> None:
        """Encodes devices in advance, and lets other tasks run in between: thousands at once would block the event loop."""
        for state in list(states.values()):
            await asyncio.sleep(0)
            if not state.fault:
                await state.warm(self._taints(state), off)

    def _entry(self, key: DeviceKey) -> DeviceEntry | None:
        state = self._states.get(key.pool)
        return state.entries.get(key.device) if state else None

    def _keys(self) -> Iterator[DeviceKey]:
        return (DeviceKey(s.name, n) for s in self._states.values() for n in s.entries)

    # --- health ---------------------------------------------------------------------------------

    def healthy(self, name: str, pool: str | None = None) -> bool:
        """Returns False if the driver's reports make a device unhealthy. A device with unknown health counts as healthy here."""
        return self._fault(name, pool) is None

    def unhealthy_reason(self, name: str, pool: str | None = None) -> str:
        """Returns the driver's message for an unhealthy device."""
        fault = self._fault(name, pool)
        return (fault.message if fault else "") or "no reason given"

    def _fault(self, name: str, pool: str | None) -> Health | None:
        decision = self._decisions.get(DeviceKey(self.pool if pool is None else pool, name))
        return decision.fault if decision else None

    def health_of(self, key: DeviceKey) -> DeviceHealth:
        """Returns a device's health now; unknown if the last report has expired."""
        state = self._states.get(key.pool)
        if state and key.device in state.gone:
            return self._known(False, "the device vanished while a claim uses it", self._looked_at, self.look_timeout)
        decision = self._decisions.get(key)
        if decision is None:
            return DeviceHealth(None, "the driver has not reported its health yet", timeout=self.health_timeout)
        timeout = self._timeout(decision)
        if self._clock() - decision.at > timeout:
            return self._known(None, f"the driver's last report is older than {timeout:g} s", decision.at, timeout)
        return self._known(decision.health.healthy, decision.health.message, decision.at, timeout)

    def _known(self, healthy: bool | None, message: str, at: float, timeout: float) -> DeviceHealth:
        """Computes the time of measurement from the report's age, so that it is right even if the system clock was set meanwhile."""
        return DeviceHealth(healthy, message, self._wall() - (self._clock() - at), timeout)

    def _timeout(self, decision: HealthDecision) -> float:
        return self.health_timeout if decision.last_report.timeout is None else decision.last_report.timeout

    def expires_in(self) -> float | None:
        """Returns the seconds until the next report expires; None if no report is valid."""
        now = self._clock()
        remaining = [d.at + self._timeout(d) - now for d in self._decisions.values()]
        return min((seconds for seconds in remaining if seconds >= 0), default=None)

    def health(self) -> Iterator[tuple[DeviceKey, DeviceHealth]]:
        """Yields every device with its health, also devices that vanished in use."""
        for state in self._states.values():
            for name in [*state.entries, *state.gone]:
                key = DeviceKey(state.name, name)
                yield key, self.health_of(key)

    def health_age(self) -> float | None:
        """Returns the age of the driver's last report in seconds; None before the first."""
        return None if self._reported_at is None else max(0.0, self._clock() - self._reported_at)

    def health_counts(self) -> dict[str, int]:
        """Returns how many devices are ``healthy``, ``unhealthy`` and ``unknown`` now."""
        out = {"healthy": 0, "unhealthy": 0, "unknown": 0}
        for _, health in self.health():
            out["unknown" if health.healthy is None else "healthy" if health.healthy else "unhealthy"] += 1
        return out

    async def set_health(self, report: object, at: float) -> None:
        """Processes a result of ``health()``. Names of unknown devices are ignored; devices that it does not name count as healthy.

        Args:
            report: the driver's result, not yet validated.
            at: time of measurement by the inventory's clock, for entries that do not contain their own time.

        Raises:
            DriverError: the report is not a mapping of names to :class:`Health`; then nothing changes.
        """
        reports = self.rejected_reports.taintable(await checked_report(report))
        found = {}
        for i, key in enumerate(list(self._keys())):
            health = reports.get(f"{key.pool}/{key.device}") or reports.get(key.device) or Health(True)
            before, when = self._decisions.get(key), self._measured(health, at)
            found[key] = before.after(health, when, self._policy) if before else HealthDecision.first(health, when)
            if i % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)
        if self.known:  # before the driver's first devices, every name would be unknown
            self.rejected_reports.log_unknown_names(
                reports.keys(), {n for s in self._states.values() for n in (*s.entries, *s.gone)}
            )
        await asyncio.sleep(0)  # other tasks run meanwhile and may remove devices
        fresh = {k: d for k, d in found.items() if self._entry(k)}
        failed, recovered = list[tuple[DeviceKey, Health]](), list[DeviceKey]()
        taint_changed = False
        for key, now in fresh.items():
            was = self._decisions.get(key)
            if now.fault and not (was and was.fault):
                failed.append((key, now.fault))
            elif was and was.fault and not now.fault:
                recovered.append(key)
            taint_changed = taint_changed or self._taint(was) != self._taint(now)
        log_sample(
            log, logging.WARNING, "device is unhealthy: %s", failed,
            lambda f: printable(f[1].message or "no reason given"), lambda f: f[0]._asdict(),
        )  # fmt: skip
        log_sample(log, logging.INFO, "device is healthy again", recovered, None, lambda key: key._asdict())
        self._decisions, self._reported_at = fresh, at
        if taint_changed:
            await self._warm(self._states, self.gates_off)
        if taint_changed and self.gates_off:
            self._leave_out()
        await self._notify(published=taint_changed)

    def _measured(self, health: Health, at: float) -> float:
        """Treats a measurement in the future as one of now; otherwise the report would never expire."""
        return at if health.measured is None else self._clock() - max(0.0, self._wall() - health.measured)

    # --- notifications --------------------------------------------------------------------------

    async def _notify(self, *, published: bool) -> None:
        self.version += published  # at once, not only when the lock is free
        self.health_version += 1
        async with self._changed:
            self._changed.notify_all()

    async def changed(self, seen: int) -> int:
        """Waits until the version differs from ``seen``, and returns it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version != seen)
            return self.version

    async def health_changed(self, seen: int) -> int:
        """Waits until the health version differs from ``seen``, and returns it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.health_version != seen)
            return self.health_version
