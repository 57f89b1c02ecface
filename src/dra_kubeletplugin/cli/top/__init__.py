"""``dra top``: shows devices, their holders and health, and waiting pods, on any cluster; it only reads."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from dataclasses import replace

from ...analysis.explanation.explain import explain_pod
from ...analysis.scheduler_view import SchedulerView
from ...analysis.top.arranging import matching, matching_pods
from ...analysis.top.live import LiveOverview
from ...analysis.top.overview import overview
from ...errors import SettingsError, clip
from ...kube import ApiConfig, KubeClient
from ...resourceapi.usage.rows import Overview
from ...scheduling.framework import pod_info
from ..cluster_access import TIMEOUT, config_of, namespace_of, read_cluster
from ..shell.exit_codes import Exit
from ..shell.output import TEXT, put
from ..shell.progress import Progress
from ..shell.style import Style
from .table import table

_EXPLAIN_SECONDS = 10.0  # seconds after which no further waiting pod is explained
_ABSENT = (
    "dra top draws its screen with textual, which is not installed: pip install 'dra-kubeletplugin[top]', "
    "or use the table: dra top --once"
)


def top(args: argparse.Namespace) -> int:
    """Prints the table or runs the live screen. Raises :class:`DraError`."""
    config = config_of(args)
    namespace = namespace_of(args, config)
    if args.once or args.output != TEXT:
        with Progress() as progress:
            found = _read_overview(config, namespace, args.node, progress)
        devices, pods = matching(found.devices, args.filter), matching_pods(found.waiting, args.filter)
        shown = replace(found, devices=tuple(devices), waiting=tuple(pods))
        put(shown, args.output, lambda shown: table(shown, Style.of(sys.stdout)))
        return Exit.SUCCESS
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SettingsError("dra top needs a terminal: add --once for a table, or -o json")
    try:
        import textual  # noqa: F401  an extra of the package
    except ImportError:
        raise SettingsError(_ABSENT) from None
    asyncio.run(_run_screen(config, namespace, args))
    return Exit.SUCCESS


def _read_overview(config: ApiConfig, namespace: str, node: str, progress: Progress) -> Overview:
    snapshot = read_cluster(config, namespace, progress)
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
        (f"{rest} more pods wait, shown with Kubernetes' own messages: `dra explain pod/NAME` explains one of them",)
        if rest
        else ()
    )
    waiting = tuple(replace(p, reason=reasons.get(p.uid, "")) for p in found.waiting)
    return replace(found, waiting=waiting, notes=(*found.notes, *more), at=time.time())


async def _run_screen(config: ApiConfig, namespace: str, args: argparse.Namespace) -> None:
    from .screen import Top

    # The screen shows faults instead of the log.
    logging.getLogger("dra_kubeletplugin").addHandler(logging.NullHandler())
    async with KubeClient(config, TIMEOUT) as client:
        live = LiveOverview(client, args.node, namespace)
        async with live.running():
            screen = Top(live, config.server, args.filter)
            await screen.run_async(mouse=True)
