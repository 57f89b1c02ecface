"""Keeps the validated devices of this process with their health and taints, and wakes tasks that wait for a change.

:meth:`Inventory.update` processes a result of the driver's ``devices()`` or ``pools()``. The publisher reads :meth:`Inventory.contents`.
Functions that process many devices run in a thread, so that they do not block the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec

from ..base.json_types import ReadOnlyJSON
from ..base.settings import HEALTH_TIMEOUT
from ..base.telemetry.logs import log_sample
from ..base.text import join_names, names_by_reason, natural
from ..base.threads import in_own_thread
from ..driver import Health, Role
from ..errors import DriverError, printable
from ..resourceapi.nodes import Where
from ..resourceapi.pools import Pool
from ..resourceapi.types import Device
from ..resourceapi.validation.slices import MAX_DEVICES_IN_SLICE
from .health_policy import DeviceHealth, HealthDecision, HealthPolicy
from .health_report import checked_report, unknown_names, without_invalid_taints
from .pool_state import DeviceKey, Held, PoolState, Rejection, rendered_pool, updated_pool
from .validation import parse_pools, taint_fault

log = logging.getLogger(__name__)
_NO_CLAIMS: Held = MappingProxyType({})
_NO_EFFECT = HealthPolicy()
_NO_POOL = PoolState("")
_MAX_NOTES = 20
_MAX_NAMES = 50  # in the field `devices` of a log line


class Inventory:
    """The devices of all pools of a role. The publisher, the claim manager and the health stream read it.

    Args:
        pool: name of the default pool, which is the node's name.
        policy: the effects of health reports.
        result_timeout: seconds until the last discovery is too old to prove that a device has vanished.
        clock: a monotonic clock in seconds, to measure the age of reports.
        wall: the time of day in unix seconds, for the times in reports to the kubelet.
        role: the role whose pools the inventory keeps; it ignores pools of the other role.
        slice_size: maximum number of devices in a slice. It is lower if devices may get taints, so that a taint moves no device.

    Raises:
        DriverError: the API server would reject the policy's taint.
    """

    def __init__(
        self,
        pool: str,
        policy: HealthPolicy = _NO_EFFECT,
        result_timeout: float = HEALTH_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        role: Role = Role.NODE,
        slice_size: int = MAX_DEVICES_IN_SLICE,
    ) -> None:
        if policy.taint is not None and (fault := taint_fault(policy.taint)):
            raise DriverError(f"unhealthy_taint of the driver's class: {fault}")
        self.pool = pool
        self.role = role
        self.slice_size = slice_size
        self.health_timeout = policy.timeout
        self.result_timeout = result_timeout
        self.gates_off: frozenset[str] = frozenset()
        """Feature gates that the API server has off. Devices that depend on them are published without some fields, or not at all."""
        self.known = False  # whether the driver has returned its devices at least once
        self.version = 0  # increases with every change of :meth:`contents`
        self.health_version = 0  # increases with every health report, and whenever ``version`` increases
        self.rejected: Mapping[str, str] = {}
        """Pools, devices and counter sets that are not published, by display name, each with the reason."""
        self.place = ""  # the line of the author's method that returns the devices; added to the faults of its result
        self.taken: Mapping[str, str] = {}
        """Pools that this publisher leaves to another publisher, each with the reason. Two publishers must never publish one pool."""
        self._policy = policy
        self._clock = clock
        self._wall = wall
        self._discovered_at = 0.0
        self._states: Mapping[str, PoolState] = {}
        self._logged: Mapping[str, str] = {}  # the devices that were logged as not published
        self._change = asyncio.Lock()  # held by each method that replaces states or gates
        self._reported_at: float | None = None
        self._health_errors: list[str] = []  # in the driver's last report
        self._changed = asyncio.Condition()

    # --- a result of the driver ------------------------------------------------------------------
    async def update(self, pools: object, held: Held | None = _NO_CLAIMS, method: str = "pools") -> bool:
        """Replaces the devices by the driver's result. Returns whether a device, pool or counter set changed.

        An invalid device of the result is kept with its fault, and is not published.

        Args:
            pools: the driver's result, not yet validated.
            held: devices that claims hold. If such a device vanishes, it stays published with a taint. A device that vanished while no
                plugin ran is rebuilt from its :meth:`description`. None if the claims cannot be read: then all vanished devices stay.
            method: the driver's method that returned the result.

        Raises:
            DriverError: the result is not a list of pools with lists of devices, or two pools have one name. The devices do not change.
        """
        self._discovered_at = self._clock()
        result = parse_pools(pools, method)

        def work() -> tuple[dict[str, PoolState], bool]:
            states = self._updated_states(result, held)
            before, after = ([s.discovered() for s in known.values()] for known in (self._states, states))
            return self._rendered(states, self.gates_off), not self.known or after != before

        async with self._change:
            states, changed = await in_own_thread(work)
            self.known = True
            await self._replace(states, published=changed)
        return changed

    def _updated_states(self, result: Mapping[str, Pool], held: Held | None) -> dict[str, PoolState]:
        fresh = {n: p for n, p in result.items() if (p.nodes.where is Where.THIS) is (self.role is Role.NODE)}
        of_pool: dict[str, dict[str, ReadOnlyJSON]] = {}
        for (name, device), described in (held or {}).items():
            of_pool.setdefault(name, {})[device] = described
        states = {}
        # A pool in ``result`` that is not in ``fresh`` belongs to the other role, whose process keeps the vanished devices of the pool.
        for name in [*fresh, *(n for n in {**self._states, **of_pool} if n not in result)]:
            before = self._states.get(name) or PoolState(name)
            state = updated_pool(before, fresh.get(name), self.pool, None if held is None else of_pool.get(name, {}))
            if name in fresh or state.gone:  # a vanished pool stays while claims hold its devices
                states[name] = state
        return states

    def _rendered(self, states: Mapping[str, PoolState], off: frozenset[str]) -> dict[str, PoolState]:
        return {name: rendered_pool(s, self._policy, off, self.pool) for name, s in states.items()}

    async def _replace(self, states: Mapping[str, PoolState], *, published: bool = True) -> None:
        """Replaces the states in one step, and wakes the waiting tasks. ``published`` is whether :meth:`contents` changes."""
        self._states = states
        self._note_rejected()
        await self._notify(published=published)

    def _note_rejected(self) -> None:
        """Updates :attr:`rejected`. Logs each rejection once, and once more when it has ended."""
        out = {}
        for name, state in self._states.items():
            if fault := self.taken.get(name) or state.fault or state.gate_fault:
                out[f"pool {printable(name)}"] = fault
            if name not in self.taken:
                place = f" ({self.place})" if self.place else ""
                out |= {self.shown(name, n): why + place for n, why in state.rejected.items()}
        self.rejected = out
        news = names_by_reason({name: fault for name, fault in out.items() if self._logged.get(name) != fault})
        log_sample(log, logging.ERROR, "not published: %s", news.items(), lambda n: f"{join_names(n[1])}: {n[0]}")
        if published := sorted((n for n in self._logged if n not in out), key=natural):
            log.info("published now, or no longer returned by the driver: %s", join_names(published))
        self._logged = out

    # --- responses of the API server -------------------------------------------------------------

    async def reject(
        self,
        reasons: Mapping[str, str],
        pool: str | None = None,
        sent: Mapping[str, Device] | None = None,
        information: Collection[str] = (),
    ) -> None:
        """Stops publishing devices that the API server rejected, until the driver changes them or :meth:`clear_rejections` is called.

        Args:
            reasons: the reason for each device, by name.
            pool: the pool's name; by default the node's pool.
            sent: the devices as they were sent. If the driver has changed a device since then, the rejection is ignored.
            information: the devices of which the API server rejected only informational taints. They are published without these taints.
        """
        async with self._change:
            state = self._state(pool)
            if state is _NO_POOL:
                return
            entries = ((state.find(name), printable(reason)) for name, reason in reasons.items())
            rejected = {
                entry.name: Rejection(entry.encoded, reason, entry.name in information)
                for entry, reason in entries
                if entry and (sent is None or sent.get(entry.name) == entry.device)
            }
            after = replace(state, server_rejections={**state.server_rejections, **rejected})
            states = {**self._states, state.name: after}
            await self._replace(await in_own_thread(self._rendered, states, self.gates_off))

    async def clear_rejections(self) -> bool:
        """Clears the API server's rejections, so that the devices are sent again. Returns whether there were any."""
        async with self._change:
            if not any(s.server_rejections for s in self._states.values()):
                return False
            states = {n: replace(s, server_rejections={}) for n, s in self._states.items()}
            await self._replace(await in_own_thread(self._rendered, states, self.gates_off))
        return True

    async def set_gates_off(self, off: frozenset[str]) -> None:
        """Sets the gates that the API server has off."""
        async with self._change:
            if off != self.gates_off:
                states = await in_own_thread(self._rendered, self._states, off)
                self.gates_off = off
                await self._replace(states)

    async def set_taken(self, taken: Mapping[str, str]) -> bool:
        """Sets :attr:`taken`. Returns whether it changed."""
        if taken == self.taken:
            return False
        self.taken = dict(taken)
        self._note_rejected()
        await self._notify(published=True)
        return True

    # --- devices --------------------------------------------------------------------------------

    @property
    def pools(self) -> Collection[str]:
        """Names of the present pools, and of vanished pools whose devices claims hold."""
        return self._states.keys()

    def get(self, name: str, pool: str | None = None) -> Device | None:
        """Returns a present device; None if there is no such device."""
        entry = self._state(pool).present.get(name)
        return entry.device if entry else None

    def find(self, name: str, pool: str) -> Device | None:
        """Returns a device that is present, or that vanished while a claim holds it; None if there is no such device."""
        entry = self._state(pool).find(name)
        return entry.device if entry else None

    def draws(self, name: str, pool: str) -> dict[str, Any] | None:
        """Returns the counters that a device consumes: counter set → counter → amount. None if :meth:`find` finds no such device."""
        entry = self._state(pool).find(name)
        return entry.draws() if entry else None

    def counters(self, pool: str, counter_set: str) -> Mapping[str, str] | None:
        """Returns the amounts of a counter set, by counter; None if there is no such set, or it cannot be published."""
        found = self._state(pool).sets.get(counter_set)
        return {n: c["value"] for n, c in found.json["counters"].items()} if found and not found.fault else None

    def description(self, name: str, pool: str) -> msgspec.Raw:
        """Returns a present device as JSON. The record of a claim contains it; see ``held`` of :meth:`update`."""
        return self._state(pool).description(name)

    def _state(self, pool: str | None) -> PoolState:
        """Returns the state of a pool, by default of the node's pool; a state without devices if there is no such pool."""
        return self._states.get(self.pool if pool is None else pool) or _NO_POOL

    @property
    def has_gone(self) -> bool:
        """Whether a device has vanished although a claim still holds it."""
        return any(s.gone for s in self._states.values())

    @property
    def has_faults(self) -> bool:
        """Whether a device is unhealthy, or vanished in use."""
        return self.has_gone or bool(self.unhealthy())

    def __len__(self) -> int:
        return sum(len(s.present) for s in self._states.values())

    def __iter__(self) -> Iterator[Device]:
        return (e.device for s in self._states.values() for e in s.present.values())

    def items(self) -> Iterator[tuple[DeviceKey, Device]]:
        return ((DeviceKey(s.name, n), e.device) for s in self._states.values() for n, e in s.present.items())

    def shown(self, pool: str, name: str) -> str:
        """Returns a device's display name: ``NAME`` in the default pool, ``POOL/NAME`` in others, as in :meth:`Driver.health`."""
        return printable(name if pool == self.pool else f"{pool}/{name}")

    def contents(self) -> list[PoolState]:
        """Returns the pools that should be published. Their ``devices`` are without the devices in :attr:`rejected`."""
        return [s for s in self._states.values() if not (s.fault or s.gate_fault) and s.name not in self.taken]

    def samples(self) -> dict[frozenset[str], ReadOnlyJSON]:
        """Returns one device, with all its fields, for each set of feature gates that devices depend on, even if the gates are off."""
        return {gates: device for s in self._states.values() for gates, device in s.samples.items()}

    def options(self) -> ReadOnlyJSON:
        """Returns the options that pools set for all their devices, also those of gates that are off. A later pool overrides others."""
        return {name: value for s in self._states.values() if not s.fault for name, value in s.options.items()}

    def gate_notes(self) -> list[str]:
        """Returns a sentence for each set of fields that some devices are published without. It names one of these devices."""
        found: dict[tuple[str, str], list[str]] = {}
        for state in self.contents():
            for name, (fields, gates) in state.removed_fields.items():
                key = ", ".join(map(printable, fields)), ", ".join(sorted(gates))
                found.setdefault(key, []).append(self.shown(state.name, name))
        return [
            f"{join_names(names, 1)} published without {fields}: the API server's feature gate is off ({gates})"
            for (fields, gates), names in found.items()
        ]

    # --- health ---------------------------------------------------------------------------------

    def healthy(self, name: str, pool: str | None = None) -> bool:
        """Returns False if the device is unhealthy after the driver's reports. A device with unknown health counts as healthy here."""
        return not self.unhealthy_reason(name, pool)

    def unhealthy_reason(self, name: str, pool: str | None = None) -> str:
        """Returns the driver's text for an unhealthy device; empty for any other device."""
        decision = self._state(pool).health.get(name)
        return decision.reason if decision else ""

    def unhealthy(self) -> dict[DeviceKey, str]:
        """Returns the unhealthy devices with the driver's texts."""
        return {DeviceKey(s.name, n): d.reason for s in self._states.values() for n, d in s.health.items() if d.fault}

    def _reported(self, decision: HealthDecision | None) -> DeviceHealth:
        """Returns the present health of a present device; unknown if the last report has expired."""
        if decision is None:
            return DeviceHealth(None, "the driver has not reported its health yet", timeout=self.health_timeout)
        timeout = self._timeout(decision)
        if self._clock() - decision.at > timeout:
            return self._measured_at(
                None, f"the driver's last report is older than {timeout:g} s", decision.at, timeout
            )
        return self._measured_at(decision.health.healthy, decision.health.message, decision.at, timeout)

    def _measured_at(self, healthy: bool | None, message: str, at: float, timeout: float) -> DeviceHealth:
        """Converts ``at`` to the time of day. It uses the age, so that the time is right even if the system clock was set since."""
        return DeviceHealth(healthy, message, self._wall() - (self._clock() - at), timeout)

    def _timeout(self, decision: HealthDecision) -> float:
        return self.health_timeout if decision.last_report.timeout is None else decision.last_report.timeout

    def expires_in(self) -> float | None:
        """Returns the seconds until the next report expires; None if no report is valid."""
        now = self._clock()
        remaining = [d.at + self._timeout(d) - now for s in self._states.values() for d in s.health.values()]
        return min((seconds for seconds in remaining if seconds >= 0), default=None)

    def health(self) -> Iterator[tuple[DeviceKey, DeviceHealth]]:
        """Yields every device with its health, also devices that vanished in use."""
        for state in self._states.values():
            for name in state.present:
                yield DeviceKey(state.name, name), self._reported(state.health.get(name))
            for name in state.gone:
                message = "the device vanished while a claim uses it"
                health = self._measured_at(False, message, self._discovered_at, self.result_timeout)
                yield DeviceKey(state.name, name), health

    def health_age(self) -> float | None:
        """Returns the age of the driver's last report in seconds; None before the first report."""
        return None if self._reported_at is None else max(0.0, self._clock() - self._reported_at)

    @property
    def health_notes(self) -> list[str]:
        """A sentence for each error in the driver's last health report; if there are many, the last sentence counts the rest."""
        more = len(self._health_errors) - _MAX_NOTES
        rest = [f"health() returned {more} more invalid entries"] if more > 0 else []
        return self._health_errors[:_MAX_NOTES] + rest

    def health_counts(self) -> dict[str, int]:
        """Returns the numbers of ``healthy``, ``unhealthy`` and ``unknown`` devices."""
        counts = Counter(health.healthy for _, health in self.health())
        return {"healthy": counts[True], "unhealthy": counts[False], "unknown": counts[None]}

    async def set_health(self, report: object, at: float) -> None:
        """Processes a result of ``health()``. Ignores unknown names. A device that the report does not contain counts as healthy.

        Args:
            report: the driver's result, not yet validated.
            at: time of measurement by the inventory's clock, for entries that do not contain their own time.

        Raises:
            DriverError: the report is not a mapping of names to :class:`Health`. Nothing changes.
        """
        if isinstance(report, dict):
            report = dict(report)  # the driver may change its dict while a thread reads the report
        async with self._change:
            states, changed = await in_own_thread(self._decide, report, at)
            self._reported_at = at
            await self._replace(states, published=changed)

    def _decide(self, report: object, at: float) -> tuple[dict[str, PoolState], bool]:
        """Returns the states with the health after a report, and whether published taints or reasons change. Logs changes and errors."""
        reports, errors = without_invalid_taints(checked_report(report))
        healthy, now = Health(True), self._clock()
        states, changed, failed, recovered = {}, False, dict[str, str](), dict[str, str]()
        for state in self._states.values():
            decisions = {}
            for name in state.present:
                health = reports.get(f"{state.name}/{name}") or reports.get(name) or healthy
                before, when = state.health.get(name), self._measured(health, at)
                after = before.after(health, when, self._policy) if before else HealthDecision.first(health, when)
                decisions[name] = after = after.with_informational_taints(before, now)
                changed = changed or after.published != (before.published if before else (None, (), ""))
                was_faulty = before is not None and before.fault is not None
                if after.fault and not was_faulty:
                    failed[self.shown(state.name, name)] = printable(after.fault.message or "no reason given")
                elif was_faulty and not after.fault:
                    recovered[self.shown(state.name, name)] = ""
            states[state.name] = replace(state, health=decisions)
        if self.known:  # before the driver returns its first devices, every name would be unknown
            errors += unknown_names(reports.keys(), {n for s in states.values() for n in (*s.present, *s.gone)})
        new_errors = [e for e in errors if e not in self._health_errors]
        log_sample(log, logging.ERROR, "the health report has an error: %s", new_errors)
        self._health_errors = errors
        _log_devices(logging.WARNING, "devices are unhealthy: %s", failed)
        _log_devices(logging.INFO, "devices are healthy again: %s", recovered)
        return self._rendered(states, self.gates_off) if changed else states, changed

    def _measured(self, health: Health, at: float) -> float:
        """Returns the time of measurement by the inventory's clock. A time in the future counts as now; otherwise it would never expire."""
        return at if health.measured is None else self._clock() - max(0.0, self._wall() - health.measured)

    # --- notifications --------------------------------------------------------------------------

    async def _notify(self, *, published: bool) -> None:
        self.version += published  # before the wait for the lock, so that readers see the change at once
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


def _log_devices(level: int, message: str, reasons: Mapping[str, str]) -> None:
    """Logs devices, with one line for all devices with the same reason, such as the partitions of a card."""
    log_sample(
        log,
        level,
        message,
        list(names_by_reason(reasons).items()),
        lambda group: join_names(group[1]) + (f": {group[0]}" if group[0] else ""),
        lambda group: {"devices": group[1][:_MAX_NAMES]},
    )
