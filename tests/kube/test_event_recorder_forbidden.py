"""Events of a namespace that takes none: one that is being deleted, or whose quota is used up, answers 403 too."""

from __future__ import annotations

from typing import Any, cast

from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import ForbiddenError
from dra_kubeletplugin.kube.event_recorder import EventRecorder, claim_subject, node_subject


class Server:
    """Takes Events of every namespace but ``ending``."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def create(self, _: object, obj: dict[str, Any], namespace: str) -> None:
        self.asked.append(namespace)
        if namespace == "ending":
            raise ForbiddenError("events is forbidden: namespace ending is being terminated")


async def test_a_namespace_that_takes_no_events_silences_no_other() -> None:
    server = Server()
    events = EventRecorder(cast(KubeClient, server), "npu.example.com", "n", Metrics())
    ending, other = (claim_subject(ns, "c", f"uid-{ns}") for ns in ("ending", "other"))
    assert not await events.write(ending, "UnprepareFailed", "a")
    assert await events.write(other, "UnprepareFailed", "a")
    assert await events.write(node_subject("n"), "RecordsSetAside", "a")
    assert not await events.write(ending, "UnprepareFailed", "b")
    assert server.asked == ["ending", "other", "default"]
