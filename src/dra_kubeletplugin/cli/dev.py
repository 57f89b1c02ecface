"""``dra dev``: a whole cluster in one process, with drivers in processes of their own, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import re
import signal
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ..driver import Driver, load_driver
from ..errors import SettingsError
from ..local.cluster import LocalCluster
from ..local.dev import manifests
from ..local.dev.acting import REFUSALS, act
from ..local.dev.control import ControlServer
from ..local.dev.drivers import DriverFailed, Program
from ..local.dev.environment import Around, Environment, environment
from ..local.dev.hosts import NodeHost
from ..local.runtime.images import ImageError, parse_option
from ..local.runtime.interface import ContainerError
from ..local.runtime.runc_runtime import factory
from ..observe.log import configure
from ..settings import NODE_ONLY, ControllerSettings, Settings, load
from . import DEV_PLACES, dev_driver
from .options import given
from .style import Style

_READY = 20.0  # seconds until a driver that does not come up is given up
_HEALTH = "1s"  # a laptop's user waits for it
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\s]*):(\d{1,5})")
_MAX_NODES = 100
_MAX_SOCKET = 107  # bytes of a Unix socket's path
_BELOW = len(
    "/node-100/kubelet/plugins_registry/dra-0123456789012345678901-reg.sock"
)  # the longest that a driver needs


@dataclass(frozen=True)
class Plan:
    """What was asked for, checked as far as it can be before anything is started."""

    settings: Settings
    programs: Sequence[Program]
    controllers: Sequence[Program]
    nodes: Sequence[str]
    hosts: Sequence[str]  # of each node, or empty: this machine
    apply: list[manifests.Manifest]
    images: Mapping[str, Path]
    containers: bool
    state: Path | None
    address: str
    certificate: tuple[Path, Path] | None
    reload: bool


def dev(args: argparse.Namespace) -> int:
    """Raises :class:`SettingsError` and :class:`DriverError` for what the user has to correct."""
    plan = planned(args)
    configure(plan.settings.log_format, plan.settings.log_level if "log_level" in given(args) else "warning")
    with _owned(plan.state):
        try:
            return asyncio.run(_stay(plan))
        except (manifests.ManifestError, DriverFailed, ContainerError) as e:
            raise SettingsError(*(e.faults if isinstance(e, manifests.ManifestError) else [str(e)])) from None


def planned(args: argparse.Namespace) -> Plan:
    """Raises :class:`SettingsError` with all that is wrong, and :class:`DriverError`."""
    drivers = {target: load_driver(target) for target in args.drivers}
    options = given(args)
    settings = load(options | {"kubeconfig": ""})
    faults: list[str] = []
    if len(drivers) > 1 and settings.driver_name:
        faults.append("--driver-name is of one driver, and several are given")
    names = [settings.driver_name or d.name for d in drivers.values()]
    faults += [f"two drivers are named {name}" for name in sorted({n for n in names if names.count(n) > 1})]
    nodes = [settings.node_name or "node-1"] if args.nodes == 1 else [f"node-{i + 1}" for i in range(args.nodes)]
    if not 1 <= args.nodes <= _MAX_NODES:
        faults.append(f"--nodes {args.nodes}: from 1 to {_MAX_NODES}")
    elif args.nodes > 1 and settings.node_name:
        faults.append("--node-name is of one node, and --nodes asks for several")
    if args.hosts and len(args.hosts) not in {1, args.nodes}:
        faults.append(f"--host is given {len(args.hosts)} times for {args.nodes} nodes: once for all, or once for each")
    if args.images and not args.containers:
        faults.append("--image is of containers that really run: give --containers too")
    images: dict[str, Path] = {}
    for text in args.images:
        try:
            name, folder = parse_option(text)
            images[name] = folder
        except ImageError as e:
            faults.append(str(e))
    found = _ADDRESS.fullmatch(args.api_address)
    if not found or int(found[2]) > 65535:
        faults.append(f"--api-address {args.api_address!r} is not HOST:PORT")
    state = Path(args.state).absolute() if args.state else None
    if state is not None and (over := len(os.fsencode(state)) + _BELOW - _MAX_SOCKET) > 0:
        faults.append(
            f"--state {state} is {over} bytes too long: sockets are made below it, and their paths hold {_MAX_SOCKET}"
        )
    certificate = _certificate(args, faults)
    to_apply: list[manifests.Manifest] = []
    try:
        to_apply = manifests.read([Path(p) for p in args.apply])
    except manifests.ManifestError as e:
        faults += e.faults
    if faults:
        raise SettingsError(*faults)
    return Plan(
        settings,
        [_program(target, driver, settings, options) for target, driver in drivers.items()],
        [_controller(target, driver, settings, options) for target, driver in drivers.items()]
        if args.controller
        else [],
        nodes,
        args.hosts * args.nodes if len(args.hosts) == 1 else args.hosts,
        to_apply,
        images,
        args.containers,
        state,
        args.api_address,
        certificate,
        not args.no_reload,
    )


def _certificate(args: argparse.Namespace, faults: list[str]) -> tuple[Path, Path] | None:
    if bool(args.api_cert) != bool(args.api_key):
        faults.append("--api-cert and --api-key go together")
        return None
    if not args.api_cert:
        return None
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(args.api_cert, args.api_key)
    except OSError as e:  # ssl.SSLError is one
        faults.append(f"--api-cert {args.api_cert} with --api-key {args.api_key}: {e}")
    return Path(args.api_cert), Path(args.api_key)


def _program(target: str, driver: type[Driver], settings: Settings, options: Mapping[str, str]) -> Program:
    argv = [sys.executable, "-m", dev_driver.__name__, dev_driver.NODE, target]
    flags = _flags(Settings, options, DEV_PLACES | {"node_name"})
    if "health_interval" not in options and "HEALTH_INTERVAL" not in os.environ:
        flags += ["--health-interval", _HEALTH]
    health = driver.health is not Driver.health
    return Program(settings.driver_name or driver.name, [*argv, *flags], _ENV, _files(driver), health)


def _controller(target: str, driver: type[Driver], settings: Settings, options: Mapping[str, str]) -> Program:
    argv = [sys.executable, "-m", dev_driver.__name__, dev_driver.CONTROLLER, target]
    flags = _flags(
        ControllerSettings, options, DEV_PLACES | NODE_ONLY | {"http_address"}
    )  # the address is the plugin's
    return Program(settings.driver_name or driver.name, [*argv, *flags], _ENV, _files(driver))


_ENV = {"PYTHONUNBUFFERED": "1"}


def _flags(kind: type[Settings], options: Mapping[str, str], without: frozenset[str]) -> list[str]:
    """The options as they were given, for a process of the driver."""
    out: list[str] = []
    for f in fields(kind):
        if f.name in options and f.name not in without:
            out += [f.metadata["flag"]] if f.default is False else [f.metadata["flag"], str(options[f.name])]
    return out


def _files(driver: type[Driver]) -> list[Path]:
    """Python files whose change makes the driver start anew: its own, and those beside it."""
    source = getattr(sys.modules.get(driver.__module__), "__file__", None)
    return sorted(Path(source).parent.glob("*.py")) if source else []


@contextlib.contextmanager
def _owned(state: Path | None) -> Iterator[None]:
    """A state folder has one owner at a time. Raises :class:`SettingsError`."""
    if state is None:
        yield
        return
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (state / "lock").open("a+")
    except OSError as e:
        raise SettingsError(f"--state {state} cannot be written: {e.strerror or e}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise SettingsError(
                f"--state {state} belongs to another `dra dev` that runs (process {lock.read().strip() or 'unknown'}): give another folder"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


async def _stay(plan: Plan) -> int:
    stop, started, work = asyncio.Event(), asyncio.Event(), asyncio.current_task()

    def asked() -> None:
        stop.set()
        if work is not None and not started.is_set():
            work.cancel()  # a driver that does not come up is not waited for

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked)
    try:
        await _serve(plan, stop, started)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    return 0


async def _serve(plan: Plan, stop: asyncio.Event, started: asyncio.Event) -> None:
    style = Style.of(sys.stdout)
    around = Around(
        lambda text: print(text, flush=True), lambda place, line: print(f"{style.dim(place)} {line}", file=sys.stderr)
    )
    hosts: dict[str, NodeHost] = {}
    async with contextlib.AsyncExitStack() as stack:
        cluster = LocalCluster(
            plan.nodes, state=plan.state, address=plan.address, certificate=plan.certificate,
            runtimes=await factory(plan.images) if plan.containers else None,
        )  # fmt: skip
        for i, name in enumerate(plan.nodes):
            folder = cluster.state / name / "host"
            given_host = plan.hosts[i] if plan.hosts else ""
            real = NodeHost.real(plan.settings.sysfs_root, plan.settings.dev_root)
            hosts[name] = NodeHost.build(folder, given_host) if given_host else real
        try:
            await stack.enter_async_context(cluster)
        except OSError as e:
            raise SettingsError(f"--api-address {plan.address} cannot be had: {e.strerror or e}") from None
        for name, host in hosts.items():
            cluster.nodes[name].runtime.dev = host.dev
        on = await stack.enter_async_context(
            environment(cluster, hosts, plan.programs, plan.controllers, around, timeout=_READY, reload=plan.reload)
        )
        control = ControlServer(cluster.state, lambda verb: act(on, verb), REFUSALS)
        await control.start()
        stack.push_async_callback(control.close)
        await manifests.apply(cluster, plan.apply)
        started.set()
        print(await _welcome(on, style), flush=True)
        waiting = {asyncio.create_task(stop.wait()), asyncio.create_task(on.asked_to_stop.wait())}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()


async def _welcome(on: Environment, style: Style) -> str:
    cluster = on.cluster
    lines = [f"{style.bold('local cluster')} at {cluster.api.public_url}"]
    for node in cluster.nodes.values():
        lines.append(f"\n{style.bold(node.name)}: kubelet root {node.kubelet_root}, CDI folder {node.cdi_root}")
        for process in on.drivers:
            if process.place == node.name:
                devices = await on.devices(process.program.driver, node.name)
                lines.append(f"  {process.program.driver}: {len(devices)} devices")
        if (host := on.hosts[node.name]).description:
            lines.append(f"  The described host {host.description} is at {host.sysfs}: its files behave like sysfs.")
    lines.append(
        f"\n  export KUBECONFIG={cluster.kubeconfig}\n  kubectl get resourceslices,resourceclaims,pods -o wide\n"
        "  dra dev status                       # from another shell; dra dev --help lists all verbs\n"
    )
    if not on.drivers:
        lines.append(
            "A driver in any language registers in a node's kubelet root: it needs NODE_NAME, KUBECONFIG, and the folders above.\n"
        )
    return "\n".join([*lines, "Ctrl-C ends it."])
