"""``dra top``: shows devices, their holders and health, and waiting pods, on any cluster.

It only reads, except for the requests of ``--pool-status``, which it deletes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from dra_devkit.commands.gc_tuning import without_collections
from dra_devkit.commands.progress import Progress
from dra_devkit.commands.style import Style
from dra_devkit.near_names import suggestion
from dra_devkit.scheduling.framework import pod_info
from dra_kubeletplugin.base.text import counted
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.options import refuse
from dra_kubeletplugin.cli.shell.output import TEXT, write
from dra_kubeletplugin.cli.shell.parsing import terminal_columns
from dra_kubeletplugin.errors import QuestionError, SettingsError, clip
from dra_kubeletplugin.kube import ApiConfig, KubeClient
from dra_kubeletplugin.kube.resource import NODES

from ...explanation.explain import explain_pod
from ...files import snapshot_of
from ...reader import with_events_of_waiting
from ...scheduler_view import SchedulerView
from ...snapshot import Snapshot
from ...top.live import LiveOverview
from ...top.overview import overview
from ...top.pools import PoolCounts, count_pools, pool_rows
from ...unevaluated.objects import all_not_evaluated, parts_of_slice
from ...usage.arranging import matching, matching_pods
from ...usage.rows import Overview, PodReason
from ...usage.usage import ObjectCache, UsageCounter
from ..cluster_access import TIMEOUT, config_of, namespace_of, read_cluster
from ..object_files import from_files
from .table import table

_NO_LIMIT = 10_000  # columns
_EXPLAIN_SECONDS = 10.0  # seconds after which no further waiting pod is explained
_ABSENT = (
    "dra top draws its screen with textual, which is not installed: pip install 'dra-tools[top]', "
    "or use the table: dra top --once"
)


def top(args: argparse.Namespace) -> int:
    """Prints the table or runs the live screen. Raises :class:`DraError`."""
    if args.files and args.pool_status:
        raise SettingsError("--pool-status asks the control plane of a cluster and cannot be combined with --file")
    if not args.files:
        refuse(args, {"kubernetes": "--kubernetes"}, "is for --file: a cluster reports its release")
    if args.once or args.files or args.pool_status or args.output != TEXT:
        counts = PoolCounts()
        with Progress() as progress:
            snapshot = _snapshot(args, progress, counts)
            _check_names(snapshot, args)
            found = explained_overview(snapshot, args.node, progress, args.namespace or "")
        if args.pool_status:
            found = replace(
                found, gaps=(*found.gaps, *counts.gaps), pools=tuple(pool_rows(found.devices, counts, args.node))
            )
        is_whole = not (found.gaps or snapshot.unread or all_not_evaluated(snapshot))
        code = Exit.SUCCESS if is_whole else Exit.UNKNOWN
        devices, pods = matching(found.devices, args.filter), matching_pods(found.waiting, args.filter)
        shown = replace(found, devices=tuple(devices), waiting=tuple(pods))
        if args.filter:
            matched = {(d.driver, d.pool) for d in devices}
            shown = replace(shown, pools=tuple(p for p in found.pools if (p.driver, p.pool) in matched))
        if args.output != TEXT:
            write(shown, args.output)
            return code
        whole = bool(args.filter or args.node)
        print("\n".join(table(shown, Style.of(sys.stdout), _columns(), whole=whole)))
        return code
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SettingsError("dra top needs a terminal: add --once for a table, or -o json")
    try:
        import textual  # noqa: F401  an extra of the package
    except ImportError:
        raise SettingsError(_ABSENT) from None
    config = config_of(args)
    asyncio.run(_run_screen(config, namespace_of(args, config), args))
    return Exit.SUCCESS


def _columns() -> int:
    """Returns the width of the table. A pipe without COLUMNS gets whole lines, because programs read them."""
    return terminal_columns() if sys.stdout.isatty() or os.environ.get("COLUMNS") else _NO_LIMIT


def _snapshot(args: argparse.Namespace, progress: Progress, counts: PoolCounts) -> Snapshot:
    """Reads the objects. With ``--pool-status``, adds what the control plane counts to ``counts``."""
    if args.files:
        return snapshot_of(from_files(args.files, args.kubernetes), args.kubernetes)
    config = config_of(args)

    async def read_more(client: KubeClient, snapshot: Snapshot) -> Snapshot:
        if args.pool_status:
            progress("waiting for the control plane to count the pools")
            found = await count_pools(client, (sl["spec"]["driver"] for sl in snapshot.slices))
            counts.found, counts.gaps = found.found, found.gaps
        return await with_events_of_waiting(client, snapshot)

    return read_cluster(config, namespace_of(args, config), progress, then=read_more)


def _check_names(snapshot: Snapshot, args: argparse.Namespace) -> None:
    """Raises :class:`QuestionError` for a namespace or a node without objects, because an empty table would say nothing."""
    if args.namespace:
        snapshot.check_namespace(args.namespace)
    nodes = {str(n["metadata"]["name"]) for n in snapshot.nodes}
    if args.node and args.node not in nodes and snapshot.is_complete(NODES):
        raise QuestionError(f"there is no node {args.node}{suggestion(args.node, nodes)}")


def explained_overview(snapshot: Snapshot, node: str, progress: Callable[[str], None], namespace: str = "") -> Overview:
    counter, parts = UsageCounter(), ObjectCache(parts_of_slice)
    found = overview(snapshot, node, None, counter, namespace, parts)
    view, pods = SchedulerView(snapshot), {str(p["metadata"]["uid"]): p for p in snapshot.pods}
    end = time.monotonic() + _EXPLAIN_SECONDS
    reasons: dict[str, PodReason] = {}
    for pod in found.waiting:
        if time.monotonic() > end:
            break
        progress(f"explaining pods: {len(reasons)} of {len(found.waiting)}")
        why = explain_pod(view, pod_info.read(pods[pod.uid]), changes=False)
        reasons[pod.uid] = PodReason(clip(why.summary), why.reported)
    rest = len(found.waiting) - len(reasons)
    left = counted(rest, "more pod waits", "more pods wait")
    more = f"{left}, shown with Kubernetes' own messages: `dra explain pod/NAME` explains one pod"
    found = overview(snapshot, node, reasons, counter, namespace, parts)
    return replace(found, notes=(*found.notes, *([more] if rest else [])), at=time.time())


async def _run_screen(config: ApiConfig, namespace: str, args: argparse.Namespace) -> None:
    from .screen import Top

    # The screen shows errors, so the log would repeat them.
    logging.getLogger().addHandler(logging.NullHandler())
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(KubeClient(config, TIMEOUT))
        live = LiveOverview(client, args.node, namespace, args.namespace or "")
        with without_collections():
            await stack.enter_async_context(live.running())
        await Top(live, config.server, args.filter).run_async(mouse=True)
