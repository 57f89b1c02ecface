"""``dra explain``: why a pod or a claim waits, on any cluster with any driver; reads only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from ..cluster import Explanation, Snapshot, State, explain, from_files, take, waiting, with_events
from ..cluster.explaining import parse
from ..kube import KubeClient
from .asking import Progress, ask, columns, config_of, encoded
from .explain_text import text
from .style import Style

EXIT = {State.RUNS: 0, State.ENDED: 0, State.SCHEDULED: 0, State.FITS: 0, State.WAITS: 1, State.UNKNOWN: 3}


def explain_command(args: argparse.Namespace) -> int:
    if args.what is not None:
        parse(args.what)  # a wrong word is told before a cluster is asked
    progress = Progress()
    try:
        snapshot, namespace = _of_files(args) if args.files else _of_cluster(args, progress)
        if args.what is None:
            return _all(args, snapshot, progress)
        found = explain(snapshot, args.what, namespace)
    finally:
        progress.done()
    if args.output == "text":
        print("\n".join(text(found, Style.of(sys.stdout))))
    else:
        print(encoded(found, args.output), end="")
    return EXIT[found.state]


def _all(args: argparse.Namespace, snapshot: Snapshot, progress: Progress) -> int:
    found = waiting(snapshot, args.namespace or "", lambda done, of: progress(f"looking at pods: {done} of {of}"))
    progress.done()
    if args.output == "text":
        print("\n".join(_listed(found)))
        for gap in snapshot.gaps:
            print(f"note: {gap.why}")
    else:
        print(encoded(found, args.output), end="")
    return max((EXIT[e.state] for e in found), default=0)


def _listed(found: Sequence[Explanation]) -> Iterator[str]:
    if not found:
        yield "no pod waits for devices"
        return
    rows = [("POD", "STATE", "WHY"), *((e.subject.removeprefix("pod "), str(e.state), e.summary) for e in found)]
    yield from columns(rows)


def _of_files(args: argparse.Namespace) -> tuple[Snapshot, str]:
    return Snapshot.of(from_files(args.files)), args.namespace or "default"


def _of_cluster(args: argparse.Namespace, progress: Progress) -> tuple[Snapshot, str]:
    """The cluster, with events of what is asked for, and the namespace that is meant."""
    config = config_of(args)
    namespace = args.namespace or config.namespace or "default"

    async def question(client: KubeClient) -> Snapshot:
        snapshot = await take(client, namespace, progress=lambda plural, count: progress(f"reading {plural}: {count}"))
        kind, name = parse(args.what) if args.what else ("", "")
        for obj in snapshot.pods if kind == "pod" else snapshot.claims if kind else ():
            meta = obj["metadata"]
            if (meta["namespace"], meta["name"]) == (namespace, name):
                return await with_events(client, snapshot, namespace, str(meta["uid"]))
        return snapshot

    return ask(config, question), namespace
