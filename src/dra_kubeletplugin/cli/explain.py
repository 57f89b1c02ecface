"""``dra explain``: explains why a pod or a claim waits, on any cluster with any driver; it only reads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis import Explanation, ExplanationState, Snapshot, explain, waiting, with_events
from ..analysis.explanation.explain import objects_of, parse
from ..analysis.files import snapshot_of
from ..analysis.reader import objects_with_selectors, with_events_of_waiting
from ..base.terminal import on_one_line
from ..base.text import counted, natural
from ..kube import KubeClient
from .cluster_access import config_of, namespace_of, read_cluster
from .explain_text import text
from .object_files import from_files
from .shell.exit_codes import Exit
from .shell.options import refuse
from .shell.output import columns, put
from .shell.progress import Progress
from .shell.style import Style

JSON = Mapping[str, Any]


@dataclass(frozen=True)
class Waiting:
    """All pods that wait for devices."""

    waiting: tuple[Explanation, ...]


EXIT = {
    ExplanationState.RUNS: Exit.SUCCESS,
    ExplanationState.ENDED: Exit.SUCCESS,
    ExplanationState.SCHEDULED: Exit.SUCCESS,
    ExplanationState.FITS: Exit.SUCCESS,
    ExplanationState.WAITS: Exit.NEGATIVE,
    ExplanationState.UNKNOWN: Exit.UNKNOWN,
}


def explain_command(args: argparse.Namespace) -> int:
    if args.what is not None:
        parse(args.what)  # report a wrong argument before the cluster is read
    if args.files:
        refuse(
            args,
            {"kubeconfig": "--kubeconfig", "context": "--context"},
            "is for a cluster and cannot be combined with --file",
        )
    with Progress() as progress:
        snapshot, namespace = _of_files(args) if args.files else _of_cluster(args, progress)
        if args.what is None:
            return _all(args, snapshot, progress)
        progress(f"explaining {args.what} on {counted(len(snapshot.nodes), 'node')}")
        found = explain(snapshot, args.what, namespace)
    put(found, args.output, lambda shown: text(shown, Style.of(sys.stdout)))
    return EXIT[found.state]


def _all(args: argparse.Namespace, snapshot: Snapshot, progress: Progress) -> int:
    found = waiting(snapshot, args.namespace or "", lambda done, of: progress(f"explaining pods: {done} of {of}"))
    progress.done()
    notes = [f"note: {on_one_line(gap.why)}" for gap in snapshot.gaps]
    found.sort(key=lambda e: natural(e.subject))
    put(Waiting(tuple(found)), args.output, lambda shown: [*_listed(shown.waiting), *notes])
    return max((EXIT[e.state] for e in found), default=Exit.SUCCESS)


def _listed(found: Sequence[Explanation]) -> Iterator[str]:
    if not found:
        yield "no pod waits for devices"
        return
    rows = [("POD", "STATE", "WHY"), *((e.subject.removeprefix("pod "), str(e.state), e.summary) for e in found)]
    yield from columns(rows)


def _of_files(args: argparse.Namespace) -> tuple[Snapshot, str]:
    return snapshot_of(from_files(args.files)), args.namespace or "default"


def _of_cluster(args: argparse.Namespace, progress: Progress) -> tuple[Snapshot, str]:
    """Reads the cluster, and the events of the object on the command line or of waiting pods. Returns also the namespace."""
    config = config_of(args)
    namespace = namespace_of(args, config)

    async def read_events(client: KubeClient, snapshot: Snapshot) -> Snapshot:
        if not args.what:
            return await with_events_of_waiting(client, snapshot)
        kind, name = parse(args.what)
        for obj in snapshot.pods if kind == "pod" else snapshot.claims:
            meta = obj["metadata"]
            if (meta["namespace"], meta["name"]) == (namespace, name):
                return await with_events(client, snapshot, namespace, str(meta["uid"]))
        return snapshot

    def find_selectors(snapshot: Snapshot) -> Iterable[JSON]:
        return objects_of(snapshot, *parse(args.what), namespace) if args.what else objects_with_selectors(snapshot)

    return read_cluster(config, namespace, progress, then=read_events, find_selectors=find_selectors), namespace
