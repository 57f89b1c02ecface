"""Carries out requests to ``dra dev``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, assert_never

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.terminal import indented
from dra_kubeletplugin.base.text import counted, did_you_mean
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube.resource import PODS

from ..informer import server_message
from ..runtime.simulated import SimulatedRuntime
from .drivers import DriverFailed
from .environment import DevEnvironment, EnvironmentRefused
from .hosts import HostError
from .verbs import (
    ALL,
    AnyVerb,
    ApiConflicts,
    ApiDelay,
    ApiOutage,
    ApiThrottling,
    CutConnections,
    DropFields,
    ExitContainer,
    KillDriver,
    PlugFunction,
    PrintLink,
    RebootNode,
    RestartKubelet,
    ServeVersions,
    SetHealth,
    Status,
    Stop,
    UnplugFunction,
    UpgradeDriver,
    VerbResult,
    WriteSysfs,
)

REFUSALS = (EnvironmentRefused, HostError, DriverFailed)
_MAX_SECONDS = 3600.0  # the maximum of a time in a request


async def act(on: DevEnvironment, verb: AnyVerb) -> VerbResult:
    """Carries out a request.

    Raises:
        EnvironmentRefused, HostError, DriverFailed: the request cannot be carried out; see :data:`REFUSALS`.
    """
    match verb:
        case Status():
            return await _status(on)
        case PrintLink():
            if not (link := on.link()):
                raise EnvironmentRefused(
                    "this cluster has no page, because dra-tools is not installed: pip install dra-tools"
                )
            return VerbResult(text=link, data={"url": link})
        case PlugFunction() | UnplugFunction() | WriteSysfs():
            return _hardware(on, verb)
        case SetHealth():
            return await _health(on, verb)
        case RestartKubelet() | RebootNode():
            return await _node(on, verb)
        case KillDriver() | UpgradeDriver():
            return await _driver(on, verb)
        case (
            CutConnections()
            | DropFields()
            | ServeVersions()
            | ApiConflicts()
            | ApiThrottling()
            | ApiDelay()
            | ApiOutage()
        ):
            return await _server(on, verb)
        case ExitContainer():
            return await _end(on, verb)
        case Stop():
            on.stop_requested.set()
            return VerbResult(text="the cluster ends")
        case _:
            assert_never(verb)


async def _status(on: DevEnvironment) -> VerbResult:
    nodes = []
    for node in on.cluster.nodes.values():
        host = on.hosts[node.name]
        registered = {d: len(c) for d, c in node.kubelet.plugins.registered.items() if c}
        nodes.append(
            {
                "name": node.name,
                "kubeletRoot": str(node.kubelet_root),
                "cdiRoot": str(node.cdi_root),
                "host": host.description,
                "sysfs": str(host.sysfs),
                "runtime": node.runtime.version,
                "registered": registered,
            }
        )
    drivers = []
    for p in on.drivers:
        phase, waits = p.state()
        entry: JSON = {
            "driver": p.program.driver,
            "place": p.place,
            "phase": phase.value,
            "waits": list(waits),
            "failedUpgrade": p.failed_upgrade,
            "pid": p.pid,
            "restarts": p.restarts,
            "health": on.overrides(p),
        }
        drivers.append(entry)
    faults = on.cluster.api.injected_faults
    on_purpose: JSON = {
        "outage": faults.down,
        "delay": faults.delay,
        "conflicts": faults.conflicts,
        "throttled": faults.throttle,
        "droppedFields": sorted(faults.dropped),
        "servedVersions": sorted(faults.served) if faults.served is not None else [],
    }
    data = {
        "state": str(on.cluster.state),
        "kubeconfig": str(on.cluster.kubeconfig),
        "server": on.cluster.api.public_url,
        "nodes": nodes,
        "drivers": drivers,
        "faults": {k: v for k, v in on_purpose.items() if v},
    }
    return VerbResult(text=_shown(data), data=data)


def _shown(data: JSON) -> str:
    lines = [f"server      {data['server']}", f"kubeconfig  {data['kubeconfig']}", f"state       {data['state']}"]
    for node in data["nodes"]:
        lines += ["", f"{node['name']}: {node['runtime']}", f"  kubelet root  {node['kubeletRoot']}"]
        lines.append(f"  host          {node['host'] or 'this machine'} at {node['sysfs']}")
        lines += [f"  registered    {driver} ({count})" for driver, count in node["registered"].items()]
    if data["drivers"]:
        lines.append("")
    for entry in data["drivers"]:
        process = f"process {entry['pid']}" if entry["pid"] else "no process"
        lines.append(
            f"{entry['driver']} on {entry['place']}: {entry['phase']}, {process}, {counted(entry['restarts'], 'restart')}"
        )
        lines += [f"  not ready     {indented(cause)}" for cause in entry["waits"]]
        if entry["failedUpgrade"]:
            lines.append(f"  not upgraded  {indented(entry['failedUpgrade'])}")
        lines += [f"  set-health    {device} {_health_word(o)}" for device, o in entry["health"].items()]
    if data["faults"]:
        lines += ["", "faults on purpose: " + ", ".join(f"{k}={v}" for k, v in data["faults"].items())]
    return "\n".join(lines)


def _hardware(on: DevEnvironment, verb: PlugFunction | UnplugFunction | WriteSysfs) -> VerbResult:
    nodes = [node.name for node in on.nodes(verb.node)]
    text: list[str] = []
    data: JSON = {"nodes": nodes}
    for node in nodes:
        host = on.hosts[node]
        match verb:
            case PlugFunction():
                data["address"] = host.plug(verb.function)
                text.append(f"{data['address']} is plugged into {node}")
            case UnplugFunction():
                host.unplug(verb.address)
                data["address"] = verb.address
                text.append(f"{verb.address} is unplugged from {node}")
            case WriteSysfs():
                host.write(verb.path, verb.text)
                data["path"] = verb.path
                text.append(f"{host.sysfs / verb.path} is written")
    return VerbResult(text="\n".join(text), data=data)


def _health_word(override: JSON) -> str:
    word = {True: "healthy", False: "unhealthy", None: "unknown"}[override["healthy"]]
    return f"{word}: {override['message']}" if override["message"] else word


async def _health(on: DevEnvironment, verb: SetHealth) -> VerbResult:
    if verb.effect and verb.health != "unhealthy":
        raise EnvironmentRefused("--effect sets the taint of an unhealthy device: use it with unhealthy only")
    if ALL in {verb.driver, verb.node}:
        raise EnvironmentRefused(f"health is set for one device on one node, so `{ALL}` is not possible")
    (process,) = on.processes(verb.driver, verb.node)
    if not process.program.health:
        raise EnvironmentRefused(f"{process.program.driver} reports no health, because it has no method health()")
    published = await on.devices(process.program.driver, process.place)
    if verb.device not in published:
        hint = did_you_mean(verb.device, published) or f", only {', '.join(published[:20]) or 'none'}"
        raise EnvironmentRefused(f"{process.name} publishes no device {verb.device!r}{hint}")
    if verb.health == "reported":
        on.set_health(process, verb.device, None)
    else:
        healthy = {"healthy": True, "unhealthy": False, "unknown": None}[verb.health]
        on.set_health(process, verb.device, {"healthy": healthy, "message": verb.message, "effect": verb.effect})
    data = {"driver": process.program.driver, "node": process.place, "device": verb.device, "health": verb.health}
    text = (
        f"the override of {verb.device} is removed; the driver's next report decides its health"
        if verb.health == "reported"
        else f"from the driver's next report on, {verb.device} is {verb.health}, whatever the driver reports"
    )
    return VerbResult(text=text, data=data)


async def _node(on: DevEnvironment, verb: RestartKubelet | RebootNode) -> VerbResult:
    nodes = on.nodes(verb.node)
    for node in nodes:
        match verb:
            case RestartKubelet():
                await node.kubelet.stop()
                await asyncio.sleep(_seconds("--down-for", verb.down_for))
                await node.kubelet.restart()
            case RebootNode():
                await on.reboot(node.name)
    done = "its kubelet is back" if isinstance(verb, RestartKubelet) else "it is up again"
    data: dict[str, Any] = {"nodes": [n.name for n in nodes]}
    text = [f"{n.name}: {done}" for n in nodes]
    if isinstance(verb, RebootNode) and (same := [n.name for n in nodes if not on.hosts[n.name].description]):
        data["sameBootId"] = same
        text.append(
            "the node keeps the boot id of this machine, so its drivers saw only a restart: start `dra dev` with --host for a reboot"
        )
    return VerbResult(text="\n".join(text), data=data)


async def _driver(on: DevEnvironment, verb: KillDriver | UpgradeDriver) -> VerbResult:
    processes = on.processes(verb.driver, verb.node)
    for process in processes:
        match verb:
            case KillDriver():
                await process.kill(_seconds("--down-for", verb.down_for))
            case UpgradeDriver():
                await process.upgrade(on.timeout)
    done = f"killed; it will be started again in {verb.down_for:g} s" if isinstance(verb, KillDriver) else "upgraded"
    data = {"drivers": [{"driver": p.program.driver, "place": p.place, "pid": p.pid} for p in processes]}
    return VerbResult(text="\n".join(f"{p.name}: {done}" for p in processes), data=data)


async def _server(
    on: DevEnvironment,
    verb: CutConnections | DropFields | ServeVersions | ApiConflicts | ApiThrottling | ApiDelay | ApiOutage,
) -> VerbResult:
    faults = on.cluster.api.injected_faults
    match verb:
        case CutConnections():
            on.cluster.api.drop_connections()
            return VerbResult(text="all connections to the API server are cut")
        case DropFields():
            _fault(faults.drop, verb.fields)
            text = (
                f"the API server drops {', '.join(verb.fields)}" if verb.fields else "the API server keeps all fields"
            )
        case ServeVersions():
            _fault(faults.serve, verb.versions)
            on.cluster.api.drop_connections()  # ends watches of versions that are no longer served
            text = f"resource.k8s.io is served as {', '.join(verb.versions) or 'all its versions'}"
        case ApiConflicts():
            faults.conflicts = _count(verb.count)
            text = (
                f"the next {verb.count} updates meet a conflict"
                if verb.count != 1
                else "the next update meets a conflict"
            )
        case ApiThrottling():
            faults.throttle = _count(verb.count)
            text = (
                f"the next {verb.count} requests are throttled" if verb.count != 1 else "the next request is throttled"
            )
        case ApiDelay():
            faults.delay = _seconds("SECONDS", verb.seconds)
            text = f"the API server responds after {verb.seconds:g} s"
        case ApiOutage():
            seconds = _seconds("SECONDS", verb.seconds)
            with on.cluster.api_outage():
                await asyncio.sleep(seconds)
            text = f"the API server was unavailable for {seconds:g} s and responds again"
    return VerbResult(text=text)


async def _end(on: DevEnvironment, verb: ExitContainer) -> VerbResult:
    try:
        pod = await on.cluster.client.get(PODS, verb.pod, verb.namespace)
    except ApiError as e:
        raise EnvironmentRefused(server_message(e)) from None
    node = on.cluster.nodes.get(pod["spec"].get("nodeName", ""))
    if node is None:
        raise EnvironmentRefused(f"pod {verb.pod} runs on no node of this cluster")
    if not isinstance(node.runtime, SimulatedRuntime):
        raise EnvironmentRefused(f"containers of {node.name} really run: `kubectl exec {verb.pod} -- kill 1` ends one")
    names = [c["name"] for c in pod["spec"]["containers"]]
    name = verb.container or names[0]
    if not 0 <= verb.exit_code <= 255:
        raise EnvironmentRefused(f"--exit-code {verb.exit_code} is not from 0 to 255")
    try:
        node.runtime.end(pod["metadata"]["uid"], name, verb.exit_code)
    except KeyError:
        raise EnvironmentRefused(
            f"pod {verb.pod} has no started container {name!r}; its containers are {', '.join(names)}"
        ) from None
    return VerbResult(text=f"container {name} of pod {verb.pod} has ended with {verb.exit_code}")


def _fault(make: Callable[[list[str]], None], names: list[str]) -> None:
    try:
        make(names)
    except ValueError as e:
        raise EnvironmentRefused(str(e)) from None


def _seconds(what: str, value: float) -> float:
    if not 0 <= value <= _MAX_SECONDS:
        raise EnvironmentRefused(f"{what} {value:g} must be from 0 to {_MAX_SECONDS:g} seconds")
    return value


def _count(value: int) -> int:
    if not 0 <= value <= 1_000_000:
        raise EnvironmentRefused(f"{value} must be from 0 to 1000000")
    return value
