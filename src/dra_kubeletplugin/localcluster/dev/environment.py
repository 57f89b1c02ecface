"""A local cluster with everything around it that `dra dev` promises: described hosts, drivers, a control socket."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..child_reaper import Guard
from ..cluster import LocalCluster, Node
from .drivers import STOP, DriverFailed, DriverProcess, DriverProgram, ProcessPhase, changed_since
from .hosts import NodeHost
from .verbs import ALL

T = TypeVar("T")
JSON = dict[str, Any]
NAMESPACE = "default"  # of controllers
_RELOAD = 0.5  # seconds between looks at the drivers' files


class EnvironmentRefused(Exception):
    """What a verb asks cannot be done; the text says what could."""


@dataclass(frozen=True)
class EnvironmentOptions:
    """Who is told what.

    ``say`` gets lines about the cluster, ``log`` those of a driver with its place in front, ``ready`` how many drivers are, and of
    how many.
    """

    say: Callable[[str], None]
    log: Callable[[str, str], None]
    ready: Callable[[int, int], None] = field(default=lambda done, of: None)


@dataclass
class DevEnvironment:
    """What runs; made by :func:`environment`."""

    cluster: LocalCluster
    hosts: Mapping[str, NodeHost]
    drivers: list[DriverProcess]
    around: EnvironmentOptions
    timeout: float
    health: Path
    guard: Guard
    asked_to_stop: asyncio.Event = field(default_factory=asyncio.Event)
    link: Callable[[], str] = field(default=lambda: "")
    """Makes a link to the page that shows the cluster, good for one browser; empty where there is no page."""
    _told: dict[str, dict[str, JSON]] = field(default_factory=dict)

    # --- who is meant -------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        """Raises :class:`EnvironmentRefused` where it is not there, or not said."""
        return self.cluster.nodes[_chosen("node", name, self.cluster.nodes)]

    def nodes(self, name: str) -> list[Node]:
        return list(self.cluster.nodes.values()) if name == ALL else [self.node(name)]

    def host(self, name: str) -> NodeHost:
        return self.hosts[self.node(name).name]

    def processes(self, driver: str, node: str) -> list[DriverProcess]:
        """Raises :class:`EnvironmentRefused` where none of those that we started is meant."""
        if not self.drivers:
            raise EnvironmentRefused(
                "`dra dev` started no driver; one that you started yourself is yours to kill and start"
            )
        found = self.drivers
        if driver != ALL:
            name = _chosen("driver", driver, {p.program.driver for p in self.drivers})
            found = [p for p in found if p.program.driver == name]
        if node != ALL:
            place = _chosen("node", node, {p.place for p in found})
            found = [p for p in found if p.place == place]
        return found

    # --- what happens to it -------------------------------------------------------------------------------

    def set_health(self, process: DriverProcess, device: str, told: JSON | None) -> None:
        """From the driver's next report on; None: what it says itself."""
        file = self.health / f"{process.place}-{process.program.driver}.json"
        known = self._told.setdefault(file.name, {})
        if told is None:
            known.pop(device, None)
        else:
            known[device] = told
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(known))
        temporary.rename(file)

    async def devices(self, driver: str, node: str) -> list[str]:
        """What the driver publishes for the node."""
        resource = await self.cluster.client.dra("resourceslices")
        slices = await self.cluster.client.list(resource, fields=f"spec.driver={driver},spec.nodeName={node}")
        return [d["name"] for s in slices["items"] for d in s["spec"].get("devices") or []]

    async def reboot(self, name: str) -> None:
        """Drivers are killed, containers end, CDI files go, kubelet and drivers come back."""
        node = self.node(name)
        own = [p for p in self.drivers if p.place == node.name]
        for process in own:
            try:
                await process.kill(float("inf"))
            except DriverFailed:  # it is down already, and to stay so
                await process.stop()
        host = self.hosts[node.name]
        await self.cluster.reboot(node.name, host.sysfs if host.description else None)
        for process in own:
            await process.start(self.timeout)


def _chosen(what: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not name and len(names) == 1:
        return names[0]
    if name in names:
        return name
    listed = ", ".join(names)
    if not name:
        raise EnvironmentRefused(f"which {what}? Give --{what} with one of {listed}, or {ALL}")
    near = difflib.get_close_matches(name, names, 1)
    raise EnvironmentRefused(f"no {what} {name!r}, only {listed}{f': did you mean {near[0]}?' if near else ''}")


@contextlib.asynccontextmanager
async def environment(
    cluster: LocalCluster,
    hosts: Mapping[str, NodeHost],
    programs: Sequence[DriverProgram],
    controllers: Sequence[DriverProgram],
    around: EnvironmentOptions,
    *,
    timeout: float,
    reload: bool = True,
) -> AsyncIterator[DevEnvironment]:
    """Starts the drivers on every node of a running cluster, and their controllers; inside, all are ready, and kept so.

    Raises :class:`DriverFailed` with the faults of all that do not get there.
    """
    health = cluster.state / "health"
    health.mkdir(exist_ok=True)
    made = DevEnvironment(cluster, hosts, [], around, timeout, health, await Guard.start(STOP))
    made.drivers += [_on_node(made, program, node) for program in programs for node in cluster.nodes.values()]
    made.drivers += [_controller(made, program) for program in controllers]
    tasks: set[asyncio.Task[None]] = set()
    count = itertools.count(1)

    failed: dict[str, DriverFailed] = {}

    async def start(process: DriverProcess) -> None:
        try:
            await process.start(timeout + len(made.drivers))  # each takes its time of the machine
        except DriverFailed as e:
            failed[process.name] = e
        else:
            around.ready(next(count), len(made.drivers))

    try:
        around.ready(0, len(made.drivers))
        async with asyncio.TaskGroup() as starting:
            for process in made.drivers:
                starting.create_task(start(process))
        if failed:
            raise DriverFailed(*(str(failed[p.name]) for p in made.drivers if p.name in failed))
        tasks |= {asyncio.create_task(p.keep(timeout), name=p.name) for p in made.drivers}
        if reload:
            tasks |= {asyncio.create_task(_reload(made, p), name=f"reload {p.name}") for p in made.drivers}
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(p.close() for p in made.drivers))
        await made.guard.close()


def _on_node(made: DevEnvironment, program: DriverProgram, node: Node) -> DriverProcess:
    host = made.hosts[node.name]
    env = {
        "NODE_NAME": node.name,
        "KUBELET_ROOT": str(node.kubelet_root),
        "CDI_ROOT": str(node.cdi_root),
        **made.cluster.access,
        "SYSFS_ROOT": str(host.sysfs),
        "LOCAL_CLUSTER": "1",
        "DRA_DEV_HEALTH": str(made.health / f"{node.name}-{program.driver}.json"),
        **made.guard.mark,
    }
    return DriverProcess(
        program, node.name, env, made.health, lambda line: made.around.log(f"{node.name} {program.driver}", line)
    )


def _controller(made: DevEnvironment, program: DriverProgram) -> DriverProcess:
    env = {**made.cluster.access, "POD_NAMESPACE": NAMESPACE, "SYSFS_ROOT": "/nonexistent", **made.guard.mark}
    place = "controller"
    return DriverProcess(
        program, place, env, made.health, lambda line: made.around.log(f"{place} {program.driver}", line)
    )


async def _reload(made: DevEnvironment, process: DriverProcess) -> None:
    """Replaces the process whenever its files change, as an upgrade does. Never returns."""
    before = changed_since(process.program.files, {})
    while True:
        await asyncio.sleep(_RELOAD)
        if not (changed := changed_since(process.program.files, before)):
            continue
        before |= changed
        names = ", ".join(sorted(p.name for p in changed))
        made.around.say(f"{names} changed: {process.name} is replaced")
        try:
            await process.upgrade(made.timeout)
            made.around.say(f"{process.name} is ready again")
        except DriverFailed as e:
            stays = (
                "the one before goes on"
                if process.phase is ProcessPhase.READY
                else "it is tried again when the file changes"
            )
            made.around.say(f"{e}\n{stays}")


__all__ = ["DevEnvironment", "EnvironmentOptions", "EnvironmentRefused", "environment"]
