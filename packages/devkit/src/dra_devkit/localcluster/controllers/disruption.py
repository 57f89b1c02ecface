"""Deletes pods for other controllers, and writes the reason into their condition DisruptionTarget (KEP-3329)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.resource import PODS
from dra_kubeletplugin.resourceapi.defaulting import now

from ...scheduling.framework.pod_info import is_finished
from .workloads import condition


@dataclass(frozen=True)
class Cause:
    """The reason and the message of the condition DisruptionTarget."""

    reason: str
    message: str


async def evict(client: KubeClient, pod: JSON, cause: Cause) -> None:
    """Deletes a pod with its grace period. Ignores a pod that no longer exists; raises ``ApiError`` for other failures."""
    await _mark_and_delete(client, pod, {"conditions": _with(pod, cause)}, None)


async def remove(client: KubeClient, pod: JSON, cause: Cause | None = None) -> None:
    """Marks a pod as failed and deletes it at once, because no kubelet will stop it. Raises like :func:`evict`."""
    status = {"phase": "Failed"} | ({"conditions": _with(pod, cause)} if cause else {})
    await _mark_and_delete(client, pod, {} if is_finished(pod) else status, 0)


def _with(pod: JSON, cause: Cause) -> list[JSON]:
    kind = "DisruptionTarget"
    others = [c for c in (pod.get("status") or {}).get("conditions") or [] if c.get("type") != kind]
    return [*others, condition(pod, kind, "True", cause.reason, cause.message, now())]


async def _mark_and_delete(client: KubeClient, pod: JSON, status: JSON, grace: int | None) -> None:
    meta = pod["metadata"]
    with contextlib.suppress(NotFoundError):
        if status:
            body = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}, "status": status}
            await client.patch(PODS, meta["name"], body, meta["namespace"], "status")
        await client.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"], grace=grace)
