"""``dra explain``: explains why a pod or a claim waits, on any cluster with any driver; it only reads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dra_devkit.commands.progress import Progress
from dra_devkit.commands.style import Style
from dra_devkit.event_messages import ago
from dra_devkit.scheduling.framework import pod_info
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.terminal import on_one_line
from dra_kubeletplugin.base.text import counted, natural
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.options import refuse
from dra_kubeletplugin.cli.shell.output import columns, put
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import PODS

from .. import Explanation, ExplanationState, Snapshot, explain, waiting, with_events
from ..explanation.explain import named, objects_of, parse
from ..files import snapshot_of
from ..reader import objects_with_selectors, with_events_of_waiting, with_quotas
from ..waiting_pods import waiting_pods, waits_for_claims
from .cluster_access import config_of, namespace_of, read_cluster
from .explain_text import text
from .object_files import from_files


@dataclass(frozen=True)
class Waiting:
    """All pods that wait for devices."""

    waiting: tuple[Explanation, ...]


def _exit(found: Explanation) -> Exit:
    match found.state:
        case ExplanationState.WAITS:
            return Exit.NEGATIVE
        case ExplanationState.UNKNOWN:
            return Exit.UNKNOWN
    return Exit.SUCCESS


def explain_command(args: argparse.Namespace) -> int:
    if args.what is not None:
        parse(args.what)  # report a wrong argument before the cluster is read
    if args.files:
        of_cluster = {"kubeconfig": "--kubeconfig", "context": "--context"}
        refuse(args, of_cluster, "is for a cluster and cannot be combined with --file")
    else:
        refuse(args, {"kubernetes": "--kubernetes"}, "is for --file: a cluster reports its release")
    with Progress() as progress:
        if args.files:
            objects = from_files(args.files, args.kubernetes)
            snapshot, namespace = snapshot_of(objects, args.kubernetes), args.namespace or "default"
        else:
            snapshot, namespace = _of_cluster(args, progress)
        if args.what is None:
            return _all(args, snapshot, progress)
        progress(f"explaining {args.what} on {counted(len(snapshot.nodes), 'node')}")
        found = explain(snapshot, args.what, namespace)
    put(found, args.output, lambda shown: text(shown, Style.of(sys.stdout)))
    return _exit(found)


def _all(args: argparse.Namespace, snapshot: Snapshot, progress: Progress) -> int:
    if args.namespace:
        snapshot.check_namespace(args.namespace)
    found = waiting(snapshot, args.namespace or "", lambda done, of: progress(f"explaining pods: {done} of {of}"))
    progress.done()
    parts = [str(part) for part in dict.fromkeys(part for e in found for part in e.unevaluated)]
    remarks = [*(gap.why for gap in snapshot.gaps), *snapshot.remarks]
    notes = [*map(on_one_line, parts), *(f"note: {on_one_line(text)}" for text in remarks)]
    found.sort(key=lambda e: natural(e.subject))
    put(Waiting(tuple(found)), args.output, lambda shown: [*_listed(shown.waiting), *notes])
    code = max(map(_exit, found), default=Exit.SUCCESS)
    is_whole = snapshot.is_complete(PODS, args.namespace or "") and (found or not snapshot.unread)
    return code if is_whole or code is not Exit.SUCCESS else Exit.UNKNOWN


def _listed(found: Sequence[Explanation]) -> Iterator[str]:
    if not found:
        yield "no pod waits for devices"
        return
    rows = ((e.subject.removeprefix("pod "), str(e.state), e.summary + ago(e.reported)) for e in found)
    yield from columns([("POD", "STATE", "WHY"), *rows])


def _of_cluster(args: argparse.Namespace, progress: Progress) -> tuple[Snapshot, str]:
    """Reads the cluster, and the events of the object on the command line or of waiting pods. Returns also the namespace."""
    config = config_of(args)
    namespace = namespace_of(args, config)

    async def read_events(client: KubeClient, snapshot: Snapshot) -> Snapshot:
        if not args.what:
            found = await with_events_of_waiting(client, snapshot)
            pods = filter(waits_for_claims, waiting_pods(snapshot, args.namespace or ""))
            return await with_quotas(client, found, (p.namespace for p in pods))
        kind, name = parse(args.what)
        if (obj := named(snapshot, kind, name, namespace)) is None:
            return snapshot
        found = await with_events(client, snapshot, namespace, str(obj["metadata"]["uid"]))
        wants_claims = kind == "pod" and waits_for_claims(pod_info.read(obj))
        return await with_quotas(client, found, [namespace] if wants_claims else [])

    def find_selectors(snapshot: Snapshot) -> Iterable[ReadOnlyJSON] | None:
        if not args.what:
            return objects_with_selectors(snapshot)
        kind, name = parse(args.what)
        obj = named(snapshot, kind, name, namespace)
        if obj is not None and obj["spec"].get("nodeName"):
            return None  # any attribute can identify the card whose state keeps the pod waiting (other_cards.py)
        return objects_of(snapshot, kind, name, namespace)

    return read_cluster(config, namespace, progress, then=read_events, find_selectors=find_selectors), namespace
