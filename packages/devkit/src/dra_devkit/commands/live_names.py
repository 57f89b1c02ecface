"""``dra completion KIND``: prints names of objects in the cluster, for the scripts of ``dra completion SHELL``.

The cluster of a verb of ``dra dev`` is the running ``dra dev`` that the verb would change.

A tab must not wait for a slow cluster, and must print nothing but names: a failure is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from dra_kubeletplugin.kube import ApiConfig, KubeClient, Resource, load_config
from dra_kubeletplugin.kube.resource import NAMESPACES, NODES, PODS

TIMEOUT = "DRA_COMPLETION_TIMEOUT"
"""The environment variable with the maximum number of seconds."""
_TIMEOUT = 0.15  # the start of the command takes as long, and a tab at most 0.3 s
_MOST = 500  # names of one kind
# The scripts contain these names unquoted, and bash expands the words of `compgen -W`, also `$(...)`.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def print_names(kind: str, line: str) -> None:
    """Prints the names that can complete the last word of the line, one in each line.

    Args:
        kind: a name in ``LIVE_NAMES``; ``objects`` are pods and claims, ``devices`` and ``drivers`` those of all slices.
        line: the command line up to the cursor. Its options select the cluster and the namespace.
    """
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))  # neither a name server nor an exec plugin may delay the end
    with contextlib.suppress(Exception):
        signal.setitimer(signal.ITIMER_REAL, float(os.environ.get(TIMEOUT, _TIMEOUT)))
        words = shlex.split(line)
        last = "" if line.endswith(" ") else words[-1]
        found = asyncio.run(_names(kind, words, last, _config(words)))
        print("\n".join(name for name in found if name.startswith(last)))
    signal.setitimer(signal.ITIMER_REAL, 0)


def _config(words: Sequence[str]) -> ApiConfig:
    if words[1:2] == ["dev"]:
        from .dev_client import state_folder  # imported here, because it takes time that other completions do not have

        return load_config(str(state_folder(_value(words, "--state-dir")) / "kubeconfig"))
    kubeconfig = _value(words, "--kubeconfig") or os.environ.get("KUBECONFIG", "")
    if not kubeconfig and (usual := Path("~/.kube/config").expanduser()).is_file():
        kubeconfig = str(usual)
    return load_config(kubeconfig, _value(words, "--context"))


async def _names(kind: str, words: Sequence[str], last: str, config: ApiConfig) -> list[str]:
    async with KubeClient(config) as client:
        if kind in ("nodes", "namespaces"):
            return await _list(client, NODES if kind == "nodes" else NAMESPACES)
        if kind in ("devices", "drivers"):
            return await _published(client, kind, _value(words, "--node"), _value(words, "--driver"))
        namespace = _value(words, "-n", "--namespace") or config.namespace or "default"
        if kind == "pods":
            return await _list(client, PODS, namespace)
        claims = await client.dra("resourceclaims")
        pods, claimed = await asyncio.gather(_list(client, PODS, namespace), _list(client, claims, namespace))
        bare = pods if last else []  # at an empty word, each pod is listed once
        return [*bare, *(f"pod/{name}" for name in pods), *(f"claim/{name}" for name in claimed)]


async def _published(client: KubeClient, kind: str, node: str, driver: str) -> list[str]:
    """Returns the names of devices, or of drivers, in the slices of a node and of a driver; an empty name selects all."""
    slices = await client.list(await client.dra("resourceslices"), limit=_MOST)
    specs = [s["spec"] for s in slices["items"]]
    if kind == "devices":
        chosen = [s for s in specs if node in ("", s.get("nodeName")) and driver in ("", s["driver"])]
        names = {d["name"] for s in chosen for d in s.get("devices") or ()}
    else:
        names = {s["driver"] for s in specs}
    return sorted(filter(_NAME.fullmatch, names))


async def _list(client: KubeClient, resource: Resource, namespace: str = "") -> list[str]:
    found = await client.list(resource, namespace, limit=_MOST)
    names: Iterable[str] = (item["metadata"]["name"] for item in found["items"])
    return [name for name in names if _NAME.fullmatch(name)]


def _value(words: Sequence[str], *flags: str) -> str:
    """Returns the value of an option on the command line; empty if it is not there."""
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in flags and equals:
            return value
        if word in flags and i + 1 < len(words):
            return words[i + 1]
    return ""
