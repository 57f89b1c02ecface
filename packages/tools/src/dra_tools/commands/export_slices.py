"""``dra simulate --export-slices``: prints the slices of a template node for an autoscaler, and writes nothing to a cluster."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from itertools import chain

import msgspec

from dra_devkit.commands.described_cluster import allocatable, cluster_of, host_kinds
from dra_devkit.commands.progress import Progress
from dra_devkit.generations import key_of
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.base.terminal import on_one_line
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.options import given, refuse
from dra_kubeletplugin.cli.shell.output import TEXT, write
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.errors import QuestionError, SettingsError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.decoding import as_json
from dra_kubeletplugin.kube.paging import read_all
from dra_kubeletplugin.kube.resource import SLICES

from ..reader import served, slices_of_incomplete_pools
from ..simulation.template_slices import template_slices
from .cluster_access import TIMEOUT, config_of


def export_slices(args: argparse.Namespace) -> int:
    flags = {"files": "-f", "fill": "--fill", "allocatable": "--allocatable", "kubernetes": "--kubernetes"}
    refuse(args, flags, "cannot be used with --export-slices")
    with Progress() as progress:
        node, slices, notes = _described(args, progress) if args.hosts else _live(args)
    found = template_slices(slices, node)
    for note in (*notes, *found.notes):
        print(f"note: {on_one_line(note)}", file=sys.stderr)
    if not found.slices:
        raise QuestionError(
            f"node {node} has no slices to export: there is no such node, or no driver published devices of this node"
        )
    listed = {"apiVersion": "v1", "kind": "List", "items": list(found.slices)}
    write(listed, "yaml" if args.output == TEXT else args.output)
    return Exit.UNKNOWN if found.incomplete else Exit.SUCCESS


def _described(args: argparse.Namespace, progress: Progress) -> tuple[str, list[JSON], list[str]]:
    refuse(args, {"node": "--node"}, "selects a node of a cluster: use it without --host")
    kinds = host_kinds(args.hosts)
    if len(kinds) != 1 or kinds[0].count != 1:
        raise SettingsError(
            "--export-slices exports one node, as all nodes of a node group are the same: write --host HOST once, without a number"
        )
    drivers = {target: load_driver(target) for target in args.drivers}
    objects, notes = cluster_of(kinds, drivers, Settings.load(given(args)), allocatable(""), progress)
    (node,) = (o["metadata"]["name"] for o in objects if o["kind"] == "Node")
    return node, [o for o in objects if o["kind"] == "ResourceSlice"], notes


def _live(args: argparse.Namespace) -> tuple[str, list[JSON], list[str]]:
    if not args.node:
        raise SettingsError(
            "--export-slices: add --node with a node of the cluster, or --host and --driver for a described host"
        )
    config = config_of(args)

    async def read() -> list[JSON]:
        async with KubeClient(config, TIMEOUT) as client:
            return await _slices_of_pools(client, args.node)

    return args.node, asyncio.run(read()), []


async def _slices_of_pools(client: KubeClient, node: str) -> list[JSON]:
    """Returns the slices of each pool with a slice of the node. Slices of such a pool may belong to other nodes, or to several."""
    resource = dataclasses.replace(SLICES, version=await served(client))
    head = {"apiVersion": resource.api_version, "kind": "ResourceSlice"}

    def decode(raw: msgspec.Raw) -> JSON:
        return {**head, **as_json(raw)}

    found = await read_all(client, resource, decode, fields=f"spec.nodeName={node}")
    # Only the other slices of a pool show whether it is incomplete or not of one node.
    read_again = await slices_of_incomplete_pools(client, resource, found, decode)
    return [*(sl for sl in found if key_of(sl) not in read_again), *chain.from_iterable(read_again.values())]
