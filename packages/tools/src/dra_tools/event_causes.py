"""Decides whether an Event still states a cause: its age, the objects that it names, and what happened since.

Every command and page that shows an Event as a cause uses :func:`cause_of_wait`. An Event is a report about the past: a kubelet drops
repeated Events of a pod after 25 (client-go, EventCorrelator), so the last Event may name an object that was deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_devkit.event_messages import NamedObject, named_objects, time_of, without_prefixes
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, PODS, TEMPLATES, Resource

from .scheduler_view import SchedulerView

_PREPARE = "FailedPrepareDynamicResources"
# Reasons of the kubelet's Events that follow a successful prepare.
_AFTER_PREPARE = {"FailedCreatePodSandBox", "Pulling", "Pulled", "Created", "Started", "Failed", "BackOff"}
_KINDS: dict[str, Resource] = {
    "claim": CLAIMS,
    "pod": PODS,
    "resourceclaimtemplate": TEMPLATES,
    "deviceclass": CLASSES,
}


@dataclass(frozen=True)
class EventCause:
    """The cause that an Event reports.

    Args:
        text: the cause without the prefixes of its reporter.
        time: when the cluster last reported it, RFC 3339; empty if that is not known.
        doubt: why the cause may no longer hold; empty if no object contradicts it.
    """

    text: str
    time: str = ""
    doubt: str = ""

    @property
    def shown(self) -> str:
        """The cause, after the doubt if there is one, so that a narrow line never shows an outdated cause as the present cause."""
        return f"perhaps outdated, because {self.doubt}: {self.text}" if self.doubt else self.text


def cause_of_wait(view: SchedulerView, pod: PodInfo, reason: str = "") -> EventCause | None:
    """Returns the cause in the newest warning about a pod; None if there is none, or if later objects show that it has passed.

    Args:
        reason: consider Events with this reason only.
    """
    about = [e for e in view.snapshot.events if (e.get("involvedObject") or {}).get("uid") == pod.uid]
    warnings = [e for e in about if e.get("type") == "Warning" and reason in {"", e.get("reason")}]
    if pod.node:
        started = _started(pod.pod)
        warnings = [e for e in warnings if e.get("reason") != "FailedScheduling" and time_of(e) >= started]
        if _is_prepared(pod.pod, about, warnings):
            warnings = [e for e in warnings if e.get("reason") != _PREPARE]
    if not warnings:
        return None
    last = max(warnings, key=time_of)
    message = str(last.get("message") or "")
    return EventCause(without_prefixes(message), time_of(last), next(_doubts(view, pod, message), ""))


def waiting_container(pod: ReadOnlyJSON) -> str:
    """Returns why a container of a placed pod waits, from the pod's status; empty if the kubelet has not reached the containers."""
    status = pod.get("status") or {}
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waits = (each.get("state") or {}).get("waiting") or {}
        if (reason := str(waits.get("reason") or "")) not in {"", "ContainerCreating", "PodInitializing"}:
            message = f": {waits['message']}" if waits.get("message") else ""
            return f"{reason} of container {each.get('name')}{message}"
    return ""


def _started(pod: ReadOnlyJSON) -> str:
    """Returns when the last container of a running or ended pod started; empty for a pod that waits."""
    status = pod.get("status") or {}
    if str(status.get("phase") or "Pending") == "Pending":
        return ""
    states = [s.get("state") or {} for s in status.get("containerStatuses") or []]
    times = [str((s.get("running") or s.get("terminated") or {}).get("startedAt") or "") for s in states]
    return max([*times, str(status.get("startTime") or "")])


def _is_prepared(pod: ReadOnlyJSON, about: Sequence[ReadOnlyJSON], warnings: Sequence[ReadOnlyJSON]) -> bool:
    """Whether the kubelet has passed the preparation of claims since the last Event of a failed prepare."""
    failed = max((time_of(e) for e in warnings if e.get("reason") == _PREPARE), default="")
    ready = [
        c for c in (pod.get("status") or {}).get("conditions") or [] if c.get("type") == "PodReadyToStartContainers"
    ]
    if waiting_container(pod) or any(c.get("status") == "True" for c in ready):
        return True
    return any(e.get("reason") in _AFTER_PREPARE and time_of(e) > failed for e in about)


def _doubts(view: SchedulerView, pod: PodInfo, message: str) -> Iterator[str]:
    """Yields the contradictions between the objects that a message names and the objects that exist."""
    found = list(named_objects(message))
    absent = {(n.kind, n.name) for n in found if n.absent}
    for named in found:
        resource = _KINDS[named.kind]
        namespace = named.namespace or pod.namespace
        if not view.snapshot.is_complete(resource, namespace):
            continue
        objects = view.claims if resource is CLAIMS else view.snapshot.objects[resource.plural]
        exists = any(_is(obj, named, namespace) for obj in objects)
        if named.absent and exists:
            yield f"{named} exists now"
        elif not exists and (named.kind, named.name) not in absent:
            yield f"{named} no longer exists"


def _is(obj: ReadOnlyJSON, named: NamedObject, namespace: str) -> bool:
    meta = obj["metadata"]
    if named.uid and meta["uid"] != named.uid:
        return False
    if not named.name:
        return True
    return bool(meta["name"] == named.name and meta.get("namespace") in {None, namespace})
