"""``dra top``: shows devices, their holders and health, and waiting pods, on any cluster; it only reads."""

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

from ...analysis.explanation.explain import explain_pod
from ...analysis.files import snapshot_of
from ...analysis.reader import with_events_of_waiting
from ...analysis.scheduler_view import SchedulerView
from ...analysis.snapshot import Snapshot
from ...analysis.top.live import LiveOverview
from ...analysis.top.overview import overview
from ...base.gc_tuning import without_collections
from ...errors import SettingsError, clip
from ...kube import ApiConfig, KubeClient
from ...resourceapi.usage.arranging import matching, matching_pods
from ...resourceapi.usage.rows import Overview
from ...scheduling.framework import pod_info
from ..cluster_access import TIMEOUT, config_of, namespace_of, read_cluster
from ..object_files import from_files
from ..shell.exit_codes import Exit
from ..shell.output import TEXT, write
from ..shell.parsing import terminal_columns
from ..shell.progress import Progress
from ..shell.style import Style
from .table import table

_NO_LIMIT = 10_000  # columns
_EXPLAIN_SECONDS = 10.0  # seconds after which no further waiting pod is explained
_ABSENT = (
    "dra top draws its screen with textual, which is not installed: pip install 'dra-kubeletplugin[top]', "
    "or use the table: dra top --once"
)


def top(args: argparse.Namespace) -> int:
    """Prints the table or runs the live screen. Raises :class:`DraError`."""
    if args.once or args.files or args.output != TEXT:
        with Progress() as progress:
            found = explained_overview(_snapshot(args, progress), args.node, progress)
        devices, pods = matching(found.devices, args.filter), matching_pods(found.waiting, args.filter)
        shown = replace(found, devices=tuple(devices), waiting=tuple(pods))
        if args.output != TEXT:
            write(shown, args.output)
            return Exit.SUCCESS
        whole = bool(args.filter or args.node)
        print("\n".join(table(shown, Style.of(sys.stdout), _columns(), whole=whole)))
        return Exit.SUCCESS
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


def _snapshot(args: argparse.Namespace, progress: Progress) -> Snapshot:
    if args.files:
        return snapshot_of(from_files(args.files))
    config = config_of(args)
    return read_cluster(config, namespace_of(args, config), progress, then=with_events_of_waiting)


def explained_overview(snapshot: Snapshot, node: str, progress: Callable[[str], None]) -> Overview:
    found = overview(snapshot, node)
    view, pods = SchedulerView(snapshot), {str(p["metadata"]["uid"]): p for p in snapshot.pods}
    end = time.monotonic() + _EXPLAIN_SECONDS
    reasons: dict[str, str] = {}
    for pod in found.waiting:
        if time.monotonic() > end:
            break
        progress(f"explaining pods: {len(reasons)} of {len(found.waiting)}")
        reasons[pod.uid] = clip(explain_pod(view, pod_info.read(pods[pod.uid]), changes=False).summary)
    rest = len(found.waiting) - len(reasons)
    more = (
        (f"{rest} more pods wait, shown with Kubernetes' own messages: `dra explain pod/NAME` explains one pod",)
        if rest
        else ()
    )
    waiting = tuple(replace(p, reason=reasons.get(p.uid, "")) for p in found.waiting)
    return replace(found, waiting=waiting, notes=(*found.notes, *more), at=time.time())


async def _run_screen(config: ApiConfig, namespace: str, args: argparse.Namespace) -> None:
    from .screen import Top

    # The screen shows errors, so the log would repeat them.
    logging.getLogger("dra_kubeletplugin").addHandler(logging.NullHandler())
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(KubeClient(config, TIMEOUT))
        live = LiveOverview(client, args.node, namespace)
        with without_collections():
            await stack.enter_async_context(live.running())
        await Top(live, config.server, args.filter).run_async(mouse=True)
