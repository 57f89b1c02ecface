"""Tests a namespace that rejects Events: a server also returns 403 for a deleted namespace or an exhausted quota."""

from __future__ import annotations

from typing import Any, cast

from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import ForbiddenError
from dra_kubeletplugin.kube.event_recorder import EventRecorder, claim_subject, node_subject


class Server:
    """Accepts Events in every namespace except ``ending``."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    async def create(self, _: object, obj: dict[str, Any], namespace: str) -> None:
        self.requests.append(namespace)
        if namespace == "ending":
            raise ForbiddenError("events is forbidden: namespace ending is being terminated")


async def test_a_namespace_that_rejects_events_does_not_affect_other_namespaces() -> None:
    server = Server()
    events = EventRecorder(cast(KubeClient, server), "npu.example.com", "n", Metrics())
    ending, other = (claim_subject(ns, "c", f"uid-{ns}") for ns in ("ending", "other"))
    assert not await events.write(ending, "UnprepareFailed", "a")
    assert await events.write(other, "UnprepareFailed", "a")
    assert await events.write(node_subject("n"), "RecordsDamaged", "a")
    assert not await events.write(ending, "UnprepareFailed", "b")
    assert server.requests == ["ending", "other", "default"]
