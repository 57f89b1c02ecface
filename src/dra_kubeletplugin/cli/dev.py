"""``dra dev``: a whole cluster in one process, with a driver in it, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ..driver import Driver, Role, load_driver, make
from ..errors import SettingsError
from ..host import Host
from ..local.cluster import LocalCluster, Node
from ..local.kubelet import Timers
from ..observe.log import configure
from ..plugin import Plugin
from ..settings import NODE_ONLY, ControllerSettings, Settings
from .inspect import host_root
from .options import given
from .run import settings_for
from .style import Style

_READY = 20.0  # seconds until a driver that does not come up is given up


@dataclass(frozen=True)
class Session:
    cluster: LocalCluster
    plugin: Plugin


def node_settings(settings: Settings, cluster: LocalCluster, node: Node, sysfs: Path) -> Settings:
    """A plugin's settings for a node of the local cluster."""
    return dataclasses.replace(
        settings,
        node_name=node.name,
        kubelet_root=node.kubelet_root,
        cdi_root=node.cdi_root,
        kubeconfig=str(cluster.kubeconfig),
        sysfs_root=sysfs,
        local_cluster=True,
    )


@contextlib.asynccontextmanager
async def session(
    driver: type[Driver],
    settings: Settings,
    *,
    sysfs: Path,
    state: Path | None = None,
    address: str = "127.0.0.1:0",
    certificate: tuple[Path, Path] | None = None,
    cdi_root: Path | None = None,
    apply: Sequence[Path] = (),
    timers: Timers | None = None,
    controller: bool = False,
) -> AsyncIterator[Session]:
    """A running local cluster with one node and the driver on it, registered and published; its ``controller`` too."""
    name = settings.node_name or "node-1"
    async with LocalCluster(
        (name,), state=state, address=address, certificate=certificate, cdi_root=cdi_root, timers=timers
    ) as cluster:
        cluster.node.runtime.dev = Host(sysfs, settings.dev_root).dev
        ready = node_settings(settings, cluster, cluster.node, sysfs)
        plugin = Plugin(make(driver), ready)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(plugin.running())
            await plugin.ready(_READY)
            if controller:
                await _control(stack, driver, ready)
            for path in apply:
                await cluster.apply_file(path)
            yield Session(cluster, plugin)


async def _control(stack: contextlib.AsyncExitStack, driver: type[Driver], settings: Settings) -> None:
    """Starts the driver's controller, on the cluster of ``settings``; returns once it leads and has published."""
    from ..controller import Controller  # most drivers have none

    shared = {f.name: getattr(settings, f.name) for f in fields(Settings) if f.name not in NODE_ONLY}
    shared |= {"http_address": "", "sysfs_root": settings.sysfs_root}  # the address is the plugin's
    running = Controller(make(driver, Role.CONTROLLER), ControllerSettings(**shared, namespace="default"))
    await stack.enter_async_context(running.running())
    await running.ready(_READY)


def dev(args: argparse.Namespace) -> int:
    driver = load_driver(args.driver)
    options = given(args)
    options.pop("kubeconfig", None)
    settings = dataclasses.replace(settings_for(driver, options), kubeconfig="")
    configure(settings.log_format, settings.log_level if "log_level" in options else "info")
    for path in args.apply:
        if not Path(path).is_file():
            raise SettingsError(f"--apply {path} is not a file")
    if bool(args.api_cert) != bool(args.api_key):
        raise SettingsError("--api-cert and --api-key go together")
    with host_root(args.host, settings.sysfs_root) as sysfs:
        return asyncio.run(_stay(args, driver, settings, sysfs))


async def _stay(args: argparse.Namespace, driver: type[Driver], settings: Settings, sysfs: Path) -> int:
    stop, started, work = asyncio.Event(), asyncio.Event(), asyncio.current_task()

    def asked() -> None:
        stop.set()
        if work is not None and not started.is_set():
            work.cancel()  # a driver that does not come up is not waited for

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked)
    with contextlib.suppress(asyncio.CancelledError):
        await _serve(args, driver, settings, sysfs, stop, started)
    return 0


async def _serve(
    args: argparse.Namespace,
    driver: type[Driver],
    settings: Settings,
    sysfs: Path,
    stop: asyncio.Event,
    started: asyncio.Event,
) -> None:
    style = Style.of(sys.stdout)
    state = Path(args.state).absolute() if args.state else None
    cdi = settings.cdi_root if "cdi_root" in given(args) else None
    certificate = (Path(args.api_cert), Path(args.api_key)) if args.api_cert else None
    async with session(
        driver,
        settings,
        sysfs=sysfs,
        state=state,
        address=args.api_address,
        certificate=certificate,
        cdi_root=cdi,
        apply=[Path(p) for p in args.apply],
        controller=args.controller,
    ) as s:
        started.set()
        slices = len(s.cluster.slices())
        print(
            f"{style.bold('local cluster')} at {s.cluster.api.public_url}, driver {settings.driver_name} with", end=" "
        )
        print(f"{len(s.plugin.inventory)} devices in {slices} slices on {s.cluster.node.name}")
        print(
            f"\n  export KUBECONFIG={s.cluster.kubeconfig}\n  kubectl get resourceslices,resourceclaims,pods -o wide\n"
        )
        if args.host:
            print(f"The described host {args.host} is at {s.plugin.host.sysfs}: its files behave like sysfs.\n")
        print("Ctrl-C ends it.", flush=True)
        await stop.wait()
