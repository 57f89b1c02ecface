"""Reads the symptoms of docs/troubleshooting.md, and collects the output of a cluster with these symptoms."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import AsyncApi, ClaimSpec, DriverNode, Request, pods
from dra_kubeletplugin.cli import main

PAGE = Path(__file__).parents[2] / "docs/troubleshooting.md"
_SYMPTOM = re.compile(r"^### (.+?)$(.*?)(?=^##|\Z)", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"^```text.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PLACE = re.compile(r"<[a-z' ]+>")
PREPARE = "FailedPrepareDynamicResources"
Producer = Callable[[], Awaitable[list[str]]]
PRODUCERS: dict[str, Producer] = {}
"""Maps each heading of the page to a function that causes the symptom and returns the observed text."""


def produces(heading: str) -> Callable[[Producer], Producer]:
    """Registers the function that causes the symptom below ``heading``."""

    def register(produce: Producer) -> Producer:
        assert heading not in PRODUCERS
        PRODUCERS[heading] = produce
        return produce

    return register


def symptoms() -> dict[str, list[str]]:
    """Returns the lines in the text blocks below each heading."""
    page = PAGE.read_text()
    return {
        head: [line for block in _BLOCK.findall(text) for line in block.splitlines()]
        for head, text in _SYMPTOM.findall(page)
    }


def missing_lines(promised: Iterable[str], seen: Iterable[str]) -> list[str]:
    """Returns the lines of the page that do not occur in ``seen``. ``<words>`` match any text, and ``...`` at the end matches the rest."""
    lines = [line.strip() for text in seen for line in text.splitlines()]

    def pattern(line: str) -> str:
        parts = [re.escape(p) for p in _PLACE.split(line.strip().removesuffix("..."))]
        return ".+?".join(parts) + (".*" if line.endswith("...") else "")

    return [line for line in promised if not any(re.fullmatch(pattern(line), found) for found in lines)]


async def explanation(cluster: LocalCluster, subject: str = "pod/pod") -> str:
    """Returns the output of ``dra explain``."""
    return await command_output(cluster, "explain", subject)


async def command_output(cluster: LocalCluster, command: str, *words: str) -> str:
    """Returns the output of an operator's command."""
    return await output_of(command, *words, "--kubeconfig", str(cluster.kubeconfig))


async def output_of(*words: str) -> str:
    """Returns the output of a command of ``dra``."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        await asyncio.to_thread(main, [*words])
    return out.getvalue()


async def event_message(cluster: LocalCluster, name: str, reason: str, words: str = "") -> list[str]:
    """Waits for an event with the reason, whose message contains ``words``.

    Returns all events of the object as `kubectl describe` shows them.
    """
    api = AsyncApi(cluster)

    async def matching_events() -> list[str]:
        found = await api.events(name)
        return (
            [f"{e.type} {e.reason} from {e.source}: {e.message}" for e in found]
            if any(e.reason == reason and words in e.message for e in found)
            else []
        )

    found: list[str] = await cluster.wait(f"event {reason} of {name}", matching_events, timeout=40)
    return found


async def apply_pod(node: DriverNode[Any], name: str = "pod") -> None:
    """Applies a pod as ``node.apply_pod`` does, but also while the plugin does not run."""
    await node.api.apply(pods.template("t", ClaimSpec(Request())), pods.pod(name, templates=["t"]))


async def wait_for_readiness_line(node: DriverNode[Any], words: str) -> list[str]:
    """Waits until a line of /readyz contains ``words``. Returns all lines."""

    async def matching() -> list[str]:
        lines = [*await node.plugin.not_ready(), *(f"note: {n}" for n in await node.plugin.notes())]
        return lines if any(words in line for line in lines) else []

    found: list[str] = await node.cluster.wait(words, matching)
    return found


async def wait_for_prepare_event(node: DriverNode[Any], words: str, pod: str = "pod") -> list[str]:
    """Waits until an event of the kubelet contains ``words``. Returns the pod's events."""

    async def matching() -> list[str]:
        found = await event_message(node.cluster, pod, PREPARE)
        return found if any(words in line for line in found) else []

    seen: list[str] = await node.cluster.wait(f"an event with {words}", matching, timeout=40)
    return seen


async def claims_command(node: DriverNode[Any], *words: str) -> str:
    """Returns the output of ``dra claims`` on the node."""
    settings = node.plugin.settings
    roots = ("--kubelet-root", str(settings.kubelet_root), "--cdi-root", str(settings.cdi_root))
    return await output_of("claims", *words, *roots, "--driver-name", settings.driver_name)
