"""``dra explain``: why a pod or a claim waits, on any cluster with any driver; reads only."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from ..cluster import Explanation, Snapshot, State, explain, from_files, take, with_events
from ..cluster.explaining import parse
from ..kube import KubeClient
from .asking import Progress, ask, config_of, encoded
from .explain_text import text
from .style import Style

EXIT = {State.RUNS: 0, State.SCHEDULED: 0, State.FITS: 0, State.WAITS: 1, State.UNKNOWN: 3}


def explain_command(args: argparse.Namespace) -> int:
    parse(args.what)  # a wrong word is told before a cluster is asked
    found = _of_files(args) if args.files else _of_cluster(args)
    if args.output == "text":
        print("\n".join(text(found, Style.of(sys.stdout))))
    else:
        print(encoded(found, args.output), end="")
    return EXIT[found.state]


def _of_files(args: argparse.Namespace) -> Explanation:
    return explain(Snapshot.of(from_files(args.files)), args.what, args.namespace or "default")


def _of_cluster(args: argparse.Namespace) -> Explanation:
    config = config_of(args)
    namespace = args.namespace or config.namespace or "default"
    progress = _Counts(Progress())

    async def question(client: KubeClient) -> Explanation:
        snapshot = await take(client, namespace, progress=progress)
        kind, name = parse(args.what)
        objects = snapshot.pods if kind == "pod" else snapshot.claims
        meta = next((o["metadata"] for o in objects if _is(o["metadata"], namespace, name)), None)
        if meta is not None:
            snapshot = await with_events(client, snapshot, namespace, str(meta["uid"]))
        progress.progress.done()
        return explain(snapshot, args.what, namespace)

    return ask(config, question)


def _is(meta: dict[str, object], namespace: str, name: str) -> bool:
    return meta["namespace"] == namespace and meta["name"] == name


@dataclass
class _Counts:
    """What was read so far."""

    progress: Progress

    def __call__(self, plural: str, count: int) -> None:
        self.progress(f"reading {plural}: {count}")
