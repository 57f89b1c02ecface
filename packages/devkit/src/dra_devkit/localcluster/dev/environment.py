"""The environment of ``dra dev``: a local cluster with described hosts, drivers and a control socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import did_you_mean

from ..child_reaper import Guard
from ..cluster import LocalCluster, LocalNode
from ..node_reboot import kill_processes
from .drivers import STOP, DriverFailed, DriverProcess, DriverProgram, ProcessPhase, changed_since
from .hosts import NodeHost
from .verbs import ALL

T = TypeVar("T")
NAMESPACE = "default"  # namespace of controllers
_RELOAD = 0.5  # seconds between two checks of the drivers' files


class EnvironmentRefused(Exception):
    """A request cannot be carried out. The text contains the reason and the possible values."""


@dataclass(frozen=True)
class EnvironmentCallbacks:
    """The functions that the environment calls with its output.

    Args:
        output: called with each line about the cluster.
        log: called with a driver's name and place, and a line of its output.
        ready: called with the number of drivers that are ready, and the number of all drivers.
    """

    output: Callable[[str], None]
    log: Callable[[str, str], None]
    ready: Callable[[int, int], None] = field(default=lambda done, of: None)


@dataclass
class DevEnvironment:
    """The running environment; create it with :func:`environment`."""

    cluster: LocalCluster
    hosts: Mapping[str, NodeHost]
    drivers: list[DriverProcess]
    callbacks: EnvironmentCallbacks
    timeout: float
    health: Path
    guard: Guard
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)
    link: Callable[[], str] = field(default=lambda: "")
    """Returns a new link to the page that shows the cluster. The link works in one browser. It is empty if there is no page."""

    # --- selection ----------------------------------------------------------------------------------------

    def node(self, name: str) -> LocalNode:
        """Returns a node by name; an empty name selects the only node.

        Raises:
            EnvironmentRefused: there is no such node, or the name is empty and there are several.
        """
        return self.cluster.nodes[_select("node", name, self.cluster.nodes)]

    def nodes(self, name: str) -> list[LocalNode]:
        return list(self.cluster.nodes.values()) if name == ALL else [self.node(name)]

    def host(self, name: str) -> NodeHost:
        return self.hosts[self.node(name).name]

    def processes(self, driver: str, node: str) -> list[DriverProcess]:
        """Returns the processes that ``dra dev`` started for a driver on a node. :data:`ALL` selects every driver or node.

        Raises:
            EnvironmentRefused: no process matches.
        """
        if not self.drivers:
            raise EnvironmentRefused("`dra dev` started no driver; stop and start your own driver yourself")
        found = self.drivers
        if driver != ALL:
            name = _select("driver", driver, {p.program.driver for p in self.drivers})
            found = [p for p in found if p.program.driver == name]
        if node != ALL:
            place = _select("node", node, {p.place for p in found})
            found = [p for p in found if p.place == place]
        return found

    # --- actions ------------------------------------------------------------------------------------------

    def set_health(self, process: DriverProcess, device: str, override: JSON | None) -> None:
        """Overrides the health of a device from the driver's next report on. None removes the override."""
        file, known = self._health_file(process), self.overrides(process)
        if override is None:
            known.pop(device, None)
        else:
            known[device] = override
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(known))
        temporary.rename(file)

    def overrides(self, process: DriverProcess) -> dict[str, JSON]:
        """Returns the health overrides by device name.

        They include overrides that an earlier `dra dev` with the same state folder wrote.
        """
        try:
            found: dict[str, JSON] = msgspec.json.decode(self._health_file(process).read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def _health_file(self, process: DriverProcess) -> Path:
        return self.health / f"{process.place}-{process.program.driver}.json"

    async def devices(self, driver: str, node: str) -> list[str]:
        """Returns the names of devices that the driver publishes for the node."""
        resource = await self.cluster.client.dra("resourceslices")
        slices = await self.cluster.client.list(resource, fields=f"spec.driver={driver},spec.nodeName={node}")
        return [d["name"] for s in slices["items"] for d in s["spec"].get("devices") or []]

    async def reboot(self, name: str) -> None:
        """Reboots a node: kills its drivers, their processes, and the node's containers; then starts the kubelet and the drivers."""
        node = self.node(name)
        own = [p for p in self.drivers if p.place == node.name]
        for process in own:
            try:
                await process.kill(float("inf"))
            except DriverFailed:  # the process does not run; stop() prevents its restart
                await process.stop()
        kill_processes({"NODE_NAME": node.name, **self.guard.mark})
        host = self.hosts[node.name]
        await self.cluster.reboot(node.name, host.sysfs if host.description else None)
        for process in own:
            await process.start(self.timeout)


def _select(what: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not name and len(names) == 1:
        return names[0]
    if name in names:
        return name
    listed = ", ".join(names)
    if not name:
        raise EnvironmentRefused(f"which {what}? Give --{what} with one of {listed}, or {ALL}")
    raise EnvironmentRefused(f"no {what} {name!r}{did_you_mean(name, names) or f', only {listed}'}")


@contextlib.asynccontextmanager
async def environment(
    cluster: LocalCluster,
    hosts: Mapping[str, NodeHost],
    programs: Sequence[DriverProgram],
    controllers: Sequence[DriverProgram],
    callbacks: EnvironmentCallbacks,
    *,
    timeout: float,
    reload: bool = True,
) -> AsyncIterator[DevEnvironment]:
    """Starts drivers on each node of a running cluster, and their controllers. All processes are ready when the context begins.

    An ended process is restarted.

    Args:
        timeout: seconds until a driver must be ready.
        reload: whether a driver is upgraded when its files change.

    Raises:
        DriverFailed: at least one driver did not become ready. The text contains the fault of each such driver.
    """
    health = cluster.state / "health"
    health.mkdir(exist_ok=True)
    made = DevEnvironment(cluster, hosts, [], callbacks, timeout, health, await Guard.start(STOP))
    made.drivers += [_on_node(made, program, node) for program in programs for node in cluster.nodes.values()]
    made.drivers += [_controller(made, program) for program in controllers]
    tasks: set[asyncio.Task[None]] = set()
    count = itertools.count(1)

    failed: dict[str, DriverFailed] = {}

    async def start(process: DriverProcess) -> None:
        try:
            # All drivers start at the same time and share the CPUs, so the timeout is one second longer for each driver.
            await process.start(timeout + len(made.drivers))
        except DriverFailed as e:
            failed[process.name] = e
        else:
            callbacks.ready(next(count), len(made.drivers))

    try:
        callbacks.ready(0, len(made.drivers))
        async with asyncio.TaskGroup() as starting:
            for process in made.drivers:
                starting.create_task(start(process))
        if failed:
            raise DriverFailed(*(str(failed[p.name]) for p in made.drivers if p.name in failed))
        tasks |= {asyncio.create_task(p.keep_running(timeout), name=p.name) for p in made.drivers}
        if reload:
            tasks |= {asyncio.create_task(_reload(made, p), name=f"reload {p.name}") for p in made.drivers}
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(p.close() for p in made.drivers))
        await made.guard.close()


def _on_node(made: DevEnvironment, program: DriverProgram, node: LocalNode) -> DriverProcess:
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
        program, node.name, env, made.health, lambda line: made.callbacks.log(f"{node.name} {program.driver}", line)
    )


def _controller(made: DevEnvironment, program: DriverProgram) -> DriverProcess:
    env = {**made.cluster.access, "POD_NAMESPACE": NAMESPACE, "SYSFS_ROOT": "/nonexistent", **made.guard.mark}
    place = "controller"
    return DriverProcess(
        program, place, env, made.health, lambda line: made.callbacks.log(f"{place} {program.driver}", line)
    )


async def _reload(made: DevEnvironment, process: DriverProcess) -> None:
    """Upgrades the process each time its files change. Never returns."""
    before = changed_since(process.program.files, {})
    while True:
        await asyncio.sleep(_RELOAD)
        if not (changed := changed_since(process.program.files, before)):
            continue
        before |= changed
        names = ", ".join(sorted(p.name for p in changed))
        made.callbacks.output(f"{names} changed: {process.name} is replaced")
        try:
            await process.upgrade(made.timeout)
            made.callbacks.output(f"{process.name} is ready again")
        except DriverFailed as e:
            stays = (
                "the previous process continues"
                if process.phase is ProcessPhase.READY
                else "it is started again after a pause, and when a file changes"
            )
            made.callbacks.output(f"{e}\n{stays}")
