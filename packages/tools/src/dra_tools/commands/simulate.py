"""``dra simulate``: reports whether and where pods would fit, on a cluster or on described hosts; it writes nothing."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence

from dra_devkit.commands.described_cluster import allocatable, cluster_of, host_kinds
from dra_devkit.commands.progress import Progress
from dra_devkit.commands.style import Style, wrapped
from dra_devkit.kubernetes_releases import nearest
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.base.text import counted, join_names, natural
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.options import given, refuse
from dra_kubeletplugin.cli.shell.output import columns, put
from dra_kubeletplugin.driver import Driver, load_driver, make
from dra_kubeletplugin.driver.config import objects as opaque
from dra_kubeletplugin.errors import DraError, SettingsError, printable
from dra_kubeletplugin.kube import KubeClient

from .. import Fit, Simulation, Snapshot, simulate
from ..reader import objects_with_selectors, server_version, with_quotas
from .cluster_access import TIMEOUT, config_of, namespace_of, read_cluster
from .explain_text import text
from .object_files import read_files, validated

_NODES = 3


def simulate_command(args: argparse.Namespace) -> int:
    _check(args)
    if args.export_slices:
        from .export_slices import export_slices

        return export_slices(args)
    return _simulated(args)


def _check(args: argparse.Namespace) -> None:
    if bool(args.hosts) != bool(args.drivers):
        raise SettingsError(
            "use --host and --driver together: --host names the described hosts, --driver the driver that publishes their devices"
        )
    if args.hosts and (args.kubeconfig or args.context):
        raise SettingsError("use either --host and --driver, or --kubeconfig and --context, not both")
    if not args.hosts:
        refuse(args, {"allocatable": "--allocatable"}, "is for described hosts: add --host and --driver")
        refuse(args, {"kubernetes": "--kubernetes"}, "is for described hosts: a cluster reports its release")
    if not args.export_slices:
        refuse(args, {"node": "--node"}, "is for --export-slices")
        if not args.files:
            raise SettingsError("-f FILE is missing: name the manifests whose pods to place")


def _simulated(args: argparse.Namespace) -> int:
    found_files = read_files(args.files)
    try:
        release = args.kubernetes if args.hosts else _server_release(args)
    except DraError:
        validated(found_files, new=True)  # mistakes in files are reported also without a cluster
        raise
    manifests = validated(found_files, release, new=True)
    with Progress() as progress:
        snapshot, namespace, notes = (
            _described(args, progress, manifests) if args.hosts else _live(args, progress, manifests)
        )
        found = simulate(
            snapshot,
            manifests,
            namespace=namespace,
            fill=args.fill,
            progress=lambda done, of: progress(f"placing pods: {done} of {of}"),
        )
    found = dataclasses.replace(found, notes=(*found.notes, *notes))
    put(found, args.output, lambda found: shown(found, Style.of(sys.stdout)))
    return Exit.UNKNOWN if not found.known else Exit.SUCCESS if found.fits else Exit.NEGATIVE


def _described(
    args: argparse.Namespace, progress: Progress, manifests: Sequence[ReadOnlyJSON]
) -> tuple[Snapshot, str, tuple[str, ...]]:
    free = allocatable(args.allocatable or "")
    settings, hosts = Settings.load(given(args)), host_kinds(args.hosts)
    drivers = {target: load_driver(target) for target in args.drivers}
    objects, unpublished = cluster_of(hosts, drivers, settings, free, progress)
    refused = _refused(drivers.values(), settings.driver_name, [*objects, *manifests])
    notes = list(dict.fromkeys((*unpublished, *refused)))
    if steps := join_names(sorted({step for d in drivers.values() for step in _steps_with_states(d)})):
        notes.append(
            f"shared steps are not simulated ({steps}): if devices do not show the state of their card, a pod can be placed on a card "
            "in another state, where it does not start"
        )
    if not args.allocatable:
        notes.append("cpu and memory of the nodes are unlimited: set them with --allocatable cpu=64,memory=512Gi")
    snapshot = dataclasses.replace(Snapshot.of(objects), version=args.kubernetes)
    return snapshot, args.namespace or "default", tuple(notes)


def _steps_with_states(driver: type[Driver]) -> Iterator[str]:
    """Yields the shared steps of a driver for which two claims of a card can need different states, because they have arguments."""
    for name in dir(driver):
        if (
            name.startswith("setup_") and len(inspect.signature(getattr(driver, name)).parameters) > 2
        ):  # self and the key
            yield name.removeprefix("setup_")


def _refused(drivers: Iterable[type[Driver]], name: str, objects: Sequence[ReadOnlyJSON]) -> Iterator[str]:
    """Yields a sentence for each object whose parameters a driver would reject at prepare, after the scheduler allocated devices."""
    readers = [opaque.ConfigReader.of(make(d), name) for d in drivers]
    for obj in objects:
        for fault in opaque.config_faults(obj, readers):
            which = f"{obj['kind']} {obj['metadata'].get('name') or obj['metadata'].get('generateName')}"
            yield printable(f"{which}: {fault}: a pod that uses it would be scheduled, but fail at prepare")


def _server_release(args: argparse.Namespace) -> str:
    """Returns the known release that is nearest to the cluster's, so that the manifests are judged by its gates."""

    async def read() -> str:
        async with KubeClient(config_of(args), TIMEOUT) as client:
            return await server_version(client)

    version = asyncio.run(read())
    return nearest(version) if version else ""


def _live(
    args: argparse.Namespace, progress: Progress, manifests: Sequence[ReadOnlyJSON]
) -> tuple[Snapshot, str, tuple[str, ...]]:
    config = config_of(args)
    namespace = namespace_of(args, config)

    def find_selectors(snapshot: Snapshot) -> Iterable[ReadOnlyJSON]:
        return (*objects_with_selectors(snapshot), *manifests)

    async def read_quotas(client: KubeClient, snapshot: Snapshot) -> Snapshot:
        return await with_quotas(client, snapshot, (m["metadata"].get("namespace") or namespace for m in manifests))

    return read_cluster(config, namespace, progress, read_quotas, find_selectors), namespace, ()


def shown(found: Simulation, style: Style) -> Iterator[str]:
    head, *rows = columns([("WORKLOAD", "PODS", "PLACED", "MORE", "NODES"), *map(_row, found.workloads)])
    yield head
    yield from (row if fit.fits else style.red(row) for row, fit in zip(rows, found.workloads, strict=True))
    kinds = (("held", found.held), ("blocked", found.blocked), ("unavailable", found.unavailable))
    rest = "".join(f", {number} {kind}" for kind, number in kinds if number)
    yield f"{counted(found.nodes, 'node')}; {counted(found.devices, 'device')}; afterwards {found.free} free{rest}"
    for fit in found.workloads:
        if fit.stopped is not None:
            yield from ("", *text(dataclasses.replace(fit.stopped, unevaluated=()), style))
    for fit in found.workloads:
        if fit.no_more is not None:
            yield from wrapped(f"no further pod of {fit.workload} fits: {fit.no_more.summary}", 0)
    summaries = [fit.stopped.summary for fit in found.workloads if fit.stopped is not None]
    for part in map(str, found.unevaluated):
        if not any(part in summary for summary in summaries):
            yield from wrapped(part, 0)
    for note in (*found.notes, *(g.why for g in found.gaps)):
        yield f"note: {note}"


def _row(fit: Fit) -> tuple[str, str, str, str, str]:
    more = "" if fit.more is None else f"{fit.more} or more" if fit.limited else str(fit.more)
    most = sorted(fit.nodes.items(), key=lambda item: (-item[1], natural(item[0])))
    nodes = join_names([f"{name} ({n})" if n > 1 else name for name, n in most], _NODES)
    return fit.workload, str(fit.pods), str(len(fit.placed)), more, nodes
