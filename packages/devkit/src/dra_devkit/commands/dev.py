"""``dra dev``: runs a whole cluster in one process, and drivers in their own processes, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from dra_kubeletplugin.base.flock import FileLock
from dra_kubeletplugin.base.telemetry.logs import configure
from dra_kubeletplugin.base.text import counted
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.exit_handling import print_line, report
from dra_kubeletplugin.cli.shell.open_files import need_files
from dra_kubeletplugin.cli.shell.options import given
from dra_kubeletplugin.cli.shell.signals import SIGNALS
from dra_kubeletplugin.errors import NotReadyError, SettingsError, describe
from dra_kubeletplugin.kube import ApiConfig

from ..localcluster.cluster import LocalCluster, SecureServing, simulated
from ..localcluster.dev import manifests
from ..localcluster.dev.control import ControlServer
from ..localcluster.dev.drivers import DriverFailed
from ..localcluster.dev.environment import DevEnvironment, EnvironmentCallbacks, environment
from ..localcluster.dev.handlers import REFUSALS, act
from ..localcluster.dev.hosts import NodeHost
from ..localcluster.runtime.interface import ContainerError, ContainerRuntime
from ..localcluster.runtime.runc_runtime import factory
from . import gc_tuning
from .dev_plan import DevPlan, planned
from .progress import Progress
from .style import Style

PAGES = "dra.dev_page"
"""The group of entry points of the page that shows the cluster: a class like :class:`dra_tools.page.dev_page.DevPage`."""
_READY = 60.0  # seconds that a driver may take to become ready


def dev(args: argparse.Namespace) -> int:
    """Runs the command. Raises :class:`SettingsError`, :class:`DriverError` and :class:`NotReadyError` for a user's mistakes."""
    plan = planned(args)
    need_files()
    configure(plan.settings.log_format, plan.settings.log_level if "log_level" in given(args) else "warning")
    with _locked(plan.state):
        try:
            return asyncio.run(_run_until_stopped(plan))
        except DriverFailed as e:
            *others, last = map(NotReadyError, e.faults)
            for other in others:
                report(other)
            raise last from None
        except ContainerError as e:
            raise SettingsError(str(e)) from None


@contextlib.contextmanager
def _locked(state: Path | None) -> Iterator[None]:
    """Locks the state folder, because only one `dra dev` may use it. Raises :class:`SettingsError`."""
    if state is None:
        yield
        return
    with contextlib.closing(FileLock(state / "lock")) as lock:
        try:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            is_free = lock.try_acquire()
        except OSError as e:
            raise SettingsError(f"--state-dir {state} cannot be written: {e.strerror or e}") from None
        if not is_free:
            holder = lock.read().decode().strip() or "unknown"
            raise SettingsError(
                f"--state-dir {state} is in use by another `dra dev` (process {holder}): use another folder"
            )
        lock.write(f"{os.getpid()}\n".encode())
        yield


async def _run_until_stopped(plan: DevPlan) -> int:
    stop, started, work = asyncio.Event(), asyncio.Event(), asyncio.current_task()

    def request_stop() -> None:
        stop.set()
        if work is not None and not started.is_set():
            work.cancel()  # do not wait for a driver that does not become ready

    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup sets SIG_IGN
            asyncio.get_running_loop().add_signal_handler(number, request_stop)
    try:
        await _serve(plan, stop, started)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    return Exit.SUCCESS


async def _serve(plan: DevPlan, stop: asyncio.Event, started: asyncio.Event) -> None:
    style = Style.of(sys.stdout)
    hosts: dict[str, NodeHost] = {}
    await _check_unused(plan.settings.http_address)
    async with contextlib.AsyncExitStack() as stack:
        progress = stack.enter_context(Progress())
        environment_options = _environment_options(style, progress)
        if plan.containers:
            progress("unpacking images")
        runtime = await factory(plan.images) if plan.containers else simulated

        def build_runtime(name: str, folder: Path, cdi_dirs: Sequence[Path]) -> ContainerRuntime:
            """Builds a node's host and runtime before its kubelet starts, because the kubelet may at once start pods of an earlier run."""
            given_host = plan.hosts[plan.nodes.index(name)] if plan.hosts else ""
            real = NodeHost.real(plan.settings.sysfs_root, plan.settings.dev_root)
            hosts[name] = NodeHost.build(folder.parent / "host", given_host) if given_host else real
            made = runtime(name, folder, cdi_dirs)
            made.dev = hosts[name].dev
            if plan.containers:
                made.api = cluster.api_access
            return made

        cluster = LocalCluster(
            plan.nodes,
            state=plan.state,
            serving=SecureServing(plan.address, plan.certificate),
            features=plan.features,
            runtimes=build_runtime,
        )
        progress(f"starting the API server and {counted(len(plan.nodes), 'node')}")
        try:
            await stack.enter_async_context(cluster)
        except OSError as e:
            raise SettingsError(f"--api-address {plan.address} cannot be used: {e.strerror or e}") from None
        running = await stack.enter_async_context(
            environment(
                cluster, hosts, plan.programs, plan.controllers, environment_options, timeout=_READY, reload=plan.reload
            )
        )
        gc_tuning.settle()
        control = ControlServer(cluster.state, lambda verb: act(running, verb), REFUSALS)
        await control.start()
        stack.push_async_callback(control.close)
        if plan.apply:
            progress(f"applying {counted(len(plan.apply), 'object')}")
        await manifests.apply(cluster, plan.apply)
        if link := await stack.enter_async_context(_page(cluster.config)):
            running.link = link
        started.set()
        progress.done()
        print_line(await _welcome(running, style), sys.stdout)
        waiting = {asyncio.create_task(stop.wait()), asyncio.create_task(running.stop_requested.wait())}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()


@contextlib.asynccontextmanager
async def _page(config: ApiConfig) -> AsyncIterator[Callable[[], str] | None]:
    """Serves the page that another package provides. Yields the function that returns a new link; None without such a package."""
    provider = min(importlib.metadata.entry_points(group=PAGES), key=lambda e: e.name, default=None)
    try:
        page_class = provider.load() if provider else None
    except Exception as e:  # a broken package must not end the cluster
        print_line(f"dra: the page of {provider} cannot be loaded: {describe(e)}")
        page_class = None
    if page_class is None:
        yield None
        return
    async with page_class(config).serving() as page:
        yield page.link


async def _check_unused(address: str) -> None:
    """Checks the address of the plugin. The plugin itself shares it with its next instance, so also with another `dra dev`.

    Raises :class:`SettingsError` if a program already uses the address.
    """
    if not address:
        return
    host, _, port = address.rpartition(":")
    try:
        server = await asyncio.start_server(lambda _, writer: writer.close(), host.strip("[]") or None, int(port))
    except (OSError, UnicodeError) as e:  # UnicodeError if the host name is invalid
        raise SettingsError(f"--http-address (HTTP_ADDRESS) {address}: {describe(e)}") from None
    server.close()


def _environment_options(style: Style, progress: Progress) -> EnvironmentCallbacks:
    def output(text: str) -> None:
        progress.done()
        print_line(text, sys.stdout)

    def log(place: str, line: str) -> None:
        progress.done()
        print_line(f"{style.dim(place)} {line}")

    return EnvironmentCallbacks(output, log, lambda done, of: progress(f"starting drivers: {done} of {of} are ready"))


def _no_devices_hint(host: NodeHost) -> str:
    if not host.description:
        return "The driver finds no devices on this machine; --host runs it on a described host."
    return (
        f"The driver finds no devices on the described host {host.description}: add a function with `dra dev plug-function`, "
        "or use another --host."
    )


async def _welcome(running: DevEnvironment, style: Style) -> str:
    cluster = running.cluster
    lines = [f"{style.bold('local cluster')} as Kubernetes {cluster.features.version} at {cluster.api.public_url}"]
    # The names of drivers with a controller: their devices may belong to no node.
    controlled = {p.program.driver for p in running.drivers if p.place not in cluster.nodes}
    for node in cluster.nodes.values():
        lines.append(f"\n{style.bold(node.name)}: kubelet root {node.kubelet_root}, CDI folder {node.cdi_root}")
        for process in running.drivers:
            if process.place == node.name:
                devices = await running.devices(process.program.driver, node.name)
                lines.append(f"  {process.program.driver}: {counted(len(devices), 'device')}")
                lines += [f"    {style.red(note)}" for note in process.notes]
                if not devices and not process.notes and process.program.driver not in controlled:
                    lines.append(f"    {_no_devices_hint(running.hosts[node.name])}")
        if (host := running.hosts[node.name]).description:
            lines.append(
                f"  The described host {host.description} is at {host.sysfs}; `dra dev write-sysfs PATH TEXT` changes its files."
            )
    lines.append(
        f"\n  export KUBECONFIG={cluster.kubeconfig}\n  kubectl get resourceslices,resourceclaims,pods -o wide"
    )
    if link := running.link():
        lines.append(
            f"  {link}\n                                       # what `dra top` shows, in a browser; the link works once"
        )
    lines.append("  dra dev status                       # from another shell; dra dev --help lists all verbs\n")
    if not running.drivers:
        lines.append(
            "A driver in any language registers in a node's kubelet root: it needs NODE_NAME, KUBECONFIG, and the folders above.\n"
        )
    return "\n".join([*lines, "Ctrl-C stops the cluster."])
