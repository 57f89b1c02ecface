"""Selects the cluster, and reads its objects, for all commands that query a cluster."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable

from dra_devkit.commands.gc_tuning import without_collections
from dra_devkit.commands.progress import Progress
from dra_kubeletplugin.base.files import at_home
from dra_kubeletplugin.kube import ApiConfig, KubeClient, load_config

from .. import Snapshot, take
from ..reader import SelectorSource

TIMEOUT = 30.0  # seconds for one page of a list
HOME = "~/.kube/config"


def config_of(args: argparse.Namespace) -> ApiConfig:
    """Returns the configuration of the cluster. Raises :class:`SettingsError`."""
    named = args.kubeconfig or os.environ.get("KUBECONFIG", "")
    if not named and (usual := at_home(HOME)).is_file():
        named = str(usual)
    return load_config(named, args.context)


def namespace_of(args: argparse.Namespace, config: ApiConfig) -> str:
    return args.namespace or config.namespace or "default"


def read_cluster(
    config: ApiConfig,
    namespace: str,
    progress: Progress,
    then: Callable[[KubeClient, Snapshot], Awaitable[Snapshot]] | None = None,
    find_selectors: SelectorSource | None = None,
) -> Snapshot:
    """Reads the cluster's objects. ``then`` may read more with the same client. Raises :class:`DraError`.

    Args:
        find_selectors: see :func:`take`.
    """

    async def read() -> Snapshot:
        async with KubeClient(config, TIMEOUT) as client:
            found = await take(
                client,
                namespace,
                progress=lambda plural, count: progress(f"reading {plural}: {count}"),
                find_selectors=find_selectors,
            )
            return await then(client, found) if then else found

    with without_collections():
        return asyncio.run(read())
