"""Selects the cluster, and runs a query with a client, for all commands that query a cluster."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..base.files import at_home
from ..kube import ApiConfig, KubeClient, load_config

T = TypeVar("T")
_TIMEOUT = 30.0  # seconds for one page of a list
HOME = "~/.kube/config"


def config_of(args: argparse.Namespace) -> ApiConfig:
    """Returns the configuration of the cluster. Raises :class:`SettingsError`."""
    named = args.kubeconfig or os.environ.get("KUBECONFIG", "")
    if not named and (usual := at_home(HOME)).is_file():
        named = str(usual)
    return load_config(named, args.context)


def ask(config: ApiConfig, question: Callable[[KubeClient], Awaitable[T]]) -> T:
    """Runs a query against a cluster. Raises :class:`DraError`."""

    async def query_cluster() -> T:
        async with KubeClient(config, _TIMEOUT) as client:
            return await question(client)

    return asyncio.run(query_cluster())
