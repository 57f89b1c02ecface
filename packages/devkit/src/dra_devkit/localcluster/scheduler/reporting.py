"""Reports the results of scheduling cycles in pods: the condition PodScheduled, the nominated node and events. Evicts preempted pods."""

from __future__ import annotations

import logging

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import PODS
from dra_kubeletplugin.resourceapi.defaulting import now

from ...scheduling.framework.pod_info import PodInfo
from ...scheduling.framework.preemption import Victims
from ..event_recorder import EventRecorder
from .claimbinder import STRATEGIC

log = logging.getLogger(__name__)


class Reporter:
    def __init__(self, client: KubeClient, events: EventRecorder) -> None:
        self.client = client
        self.events = events

    async def failed(self, pod: PodInfo, reason: str, message: str, nominated: str | None) -> None:
        """Reports that a pod could not be scheduled.

        Args:
            nominated: the node that the pod may get after a preemption; None to keep the present nominated node.
        """
        self.events.event(pod.pod, "Pod", "Warning", "FailedScheduling", message)
        before = next((c for c in _conditions(pod) if c.get("type") == "PodScheduled"), {})
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        status: JSON = {}
        if any(before.get(k) != v for k, v in condition.items()):
            same = before.get("status") == "False" and before.get("lastTransitionTime")
            status["conditions"] = [{**condition, "lastTransitionTime": same or now()}]
        if nominated is not None and nominated != pod.nominated:
            status["nominatedNodeName"] = nominated
        if status:
            await self._patch(pod, status)

    async def nominate(self, pod: PodInfo, node: str) -> None:
        if pod.nominated != node:
            await self._patch(pod, {"nominatedNodeName": node})

    async def evict(self, preemptor: PodInfo, victims: Victims) -> None:
        """Deletes the preempted pods. Before that, adds a condition with the reason to each."""
        for pod in victims.pods:
            if pod.terminating:
                continue
            condition = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "PreemptionByScheduler",
                "message": "default-scheduler: preempting to accommodate a higher priority pod",
                "lastTransitionTime": now(),
            }
            await self._patch(pod, {"conditions": [condition]})
            try:
                await self.client.delete(PODS, pod.name, pod.namespace, uid=pod.uid)
            except ApiError as e:
                log.debug("scheduler: cannot preempt pod: %s", e, extra={"pod": pod.key})
                continue
            text = f"Preempted by pod {preemptor.uid} on node {victims.node}"
            self.events.event(pod.pod, "Pod", "Normal", "Preempted", text)

    async def _patch(self, pod: PodInfo, status: JSON) -> None:
        body = {"metadata": {"uid": pod.uid}, "status": status}
        try:
            path = PODS.path(pod.namespace, pod.name, "status")
            await self.client.call("PATCH", path, body, content_type=STRATEGIC)
        except ApiError as e:
            # The pod was deleted, or the next attempt to schedule it writes the status again.
            log.debug("scheduler: cannot write the pod's status: %s", e, extra={"pod": pod.key})


def _conditions(pod: PodInfo) -> list[JSON]:
    return list((pod.pod.get("status") or {}).get("conditions") or [])
