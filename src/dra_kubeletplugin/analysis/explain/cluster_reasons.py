"""What keeps a pod from every node, whichever it is: the pod's own fields, its claims, their templates and classes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...kube.resource import CLAIMS, TEMPLATES
from ...scheduling.allocator.search import MAX_RESULTS
from ...scheduling.framework import pod_info
from ...scheduling.framework.binding import Readiness, state_of
from ...scheduling.framework.claim_cache import is_allocated, reserved_for, results_of
from ...scheduling.framework.pod_info import PodInfo
from ..scheduler_view import SchedulerView, asked, name_of, users_of
from .model import Reason, ReasonKind

JSON = Mapping[str, Any]
ADMIN_LABEL = "resource.kubernetes.io/admin-access"
MOST_USERS = 256  # of a claim, as the API has it


def reasons(scene: SchedulerView, pod: PodInfo) -> list[Reason]:
    """In the order in which the scheduler meets them."""
    return [*_of_pod(scene, pod), *_of_claims(scene, pod)]


def _of_pod(scene: SchedulerView, pod: PodInfo) -> Iterator[Reason]:
    if pod.terminating:
        yield _of_its_end(scene, pod)
    if gates := pod.spec.get("schedulingGates"):
        names = ", ".join(str(g["name"]) for g in gates)
        yield Reason(
            ReasonKind.GATED, f"the pod has scheduling gates: {names}", "whoever set them has to take them away"
        )
    name = str(pod.spec.get("schedulerName") or pod_info.DEFAULT_SCHEDULER)
    if name != pod_info.DEFAULT_SCHEDULER and not _is_served(scene, pod, name):
        text = f"the pod names the scheduler {name}, and nothing that can be seen was ever scheduled by it"
        yield Reason(
            ReasonKind.SCHEDULER_NAME, text, f"start a scheduler named {name}, or make the pod without schedulerName"
        )
    if pod.node:
        if scene.snapshot.nodes and not any(n["metadata"]["name"] == pod.node for n in scene.snapshot.nodes):
            text = f"the pod was placed on {pod.node}, and there is no such node: nobody knows whether it runs"
            change = "the pod is deleted a little after its node; what owns it makes another"
            yield Reason(ReasonKind.NODE_GONE, text, change)
        for claim in _claims(scene, pod):
            if not is_allocated(claim):
                text = (
                    f"the pod was made with nodeName {pod.node}, so no scheduler looks at it, "
                    f"and claim {name_of(claim)} is never allocated"
                )
                yield Reason(
                    ReasonKind.NODE_GIVEN,
                    text,
                    "make the pod without nodeName: a nodeSelector leads it to the node too",
                )


def _of_its_end(scene: SchedulerView, pod: PodInfo) -> Reason:
    """A kubelet says nothing where nobody unprepares the claims of a pod whose containers have ended."""
    drivers = sorted({str(r["driver"]) for claim in _claims(scene, pod) for r in results_of(claim)})
    if not drivers or not _has_ended(pod):
        return Reason(
            ReasonKind.DELETED, "the pod is being deleted", "nothing: it goes once its containers and finalizers have"
        )
    names = " and ".join(drivers)
    text = f"the pod is being deleted, and its containers have ended: its claims are not unprepared by {names} yet"
    change = f"see whether the plugin of {names} runs on {pod.node}, and what it tells of the claims"
    return Reason(ReasonKind.DELETED, text, change)


def _has_ended(pod: PodInfo) -> bool:
    statuses = (pod.pod.get("status") or {}).get("containerStatuses") or []
    return bool(pod.node and statuses) and all("terminated" in (s.get("state") or {}) for s in statuses)


def _is_served(scene: SchedulerView, pod: PodInfo, name: str) -> bool:
    for other in scene.snapshot.pods:
        spec = other["spec"]
        if spec.get("schedulerName") == name and spec.get("nodeName") and other["metadata"]["uid"] != pod.uid:
            return True
    return any(
        name in {e.get("reportingComponent"), (e.get("source") or {}).get("component")} for e in scene.snapshot.events
    )


# --- claims ---------------------------------------------------------------------------------------


def _claims(scene: SchedulerView, pod: PodInfo) -> list[dict[str, Any]]:
    """Those of the pod that are there, each once."""
    found = {}
    for entry in entries(pod):
        claim = scene.cache.claims.get(pod.namespace, claim_name(pod, entry))
        if claim is not None:
            found[claim["metadata"]["uid"]] = claim
    return list(found.values())


def entries(pod: PodInfo) -> list[dict[str, Any]]:
    return list(pod.spec.get("resourceClaims") or [])


def claim_name(pod: PodInfo, entry: JSON) -> str:
    """Of an entry of the pod: as it says, or as was made for it; empty where none was."""
    if entry.get("resourceClaimName"):
        return str(entry["resourceClaimName"])
    made = (pod.pod.get("status") or {}).get("resourceClaimStatuses") or []
    return next((str(s.get("resourceClaimName") or "") for s in made if s["name"] == entry["name"]), "")


def _of_claims(scene: SchedulerView, pod: PodInfo) -> Iterator[Reason]:
    made = {s["name"] for s in (pod.pod.get("status") or {}).get("resourceClaimStatuses") or []}
    for entry in entries(pod):
        name = claim_name(pod, entry)
        if not name:
            if entry["name"] not in made:
                yield _not_made(scene, pod, entry)
            continue
        claim = scene.cache.claims.get(pod.namespace, name)
        if claim is None:
            gap = scene.snapshot.gap(CLAIMS)
            if gap is None or gap.read == pod.namespace:
                yield _missing(scene, pod, name, generated=not entry.get("resourceClaimName"))
        elif claim["metadata"].get("deletionTimestamp"):
            users = ", ".join(users_of(claim)) or "finalizers"
            change = f"it goes once {users} let go of it; then the pod needs a claim that is there"
            yield Reason(ReasonKind.CLAIM_DELETED, f"claim {name_of(claim)} is being deleted", change)
        elif not entry.get("resourceClaimName") and not _owned(claim, pod):
            change = f"delete claim {name} or the pod, so that another is made"
            yield Reason(ReasonKind.CLAIM_OF_OTHER, f"claim {name_of(claim)} was not made for this pod", change)
    names = [str(e["resourceClaimName"]) for e in entries(pod) if e.get("resourceClaimName")]
    for name in sorted({n for n in names if names.count(n) > 1}):
        text = f"the pod names claim {name} more than once, and can be reserved for it only once"
        yield Reason(ReasonKind.RESERVATION, text, f"one entry in resourceClaims for {name}; containers may share it")
    for claim in _claims(scene, pod):
        yield from (_of_allocated if is_allocated(claim) else _of_open)(scene, pod, claim)


def _owned(claim: JSON, pod: PodInfo) -> bool:
    return any(o.get("controller") and o["uid"] == pod.uid for o in claim["metadata"].get("ownerReferences") or [])


def _missing(scene: SchedulerView, pod: PodInfo, name: str, *, generated: bool) -> Reason:
    if generated:
        text = f"claim {pod.namespace}/{name}, which was made for the pod, is not there any more"
        return Reason(ReasonKind.CLAIM_MISSING, text, "delete the pod: what owns it makes another, with a new claim")
    there = [c["metadata"]["name"] for c in scene.claims if c["metadata"]["namespace"] == pod.namespace]
    text = f"claim {pod.namespace}/{name} does not exist"
    return Reason(ReasonKind.CLAIM_MISSING, text, f"make claim {name} in namespace {pod.namespace}{near(name, there)}")


def _not_made(scene: SchedulerView, pod: PodInfo, entry: JSON) -> Reason:
    """The claim controller has not made a claim from its template."""
    name = str(entry.get("resourceClaimTemplateName"))
    here = [t for t in scene.snapshot.templates if t["metadata"]["namespace"] == pod.namespace]
    template = next((t for t in here if t["metadata"]["name"] == name), None)
    refused = next((r for r in reversed(_events(scene, pod, "FailedResourceClaimCreation"))), "")
    if template is None and not scene.snapshot.gap(TEMPLATES):
        there = [t["metadata"]["name"] for t in here]
        text = f"ResourceClaimTemplate {pod.namespace}/{name} does not exist"
        return Reason(ReasonKind.TEMPLATE_MISSING, text, f"make it in namespace {pod.namespace}{near(name, there)}")
    if template is not None and not _may_be_admin(scene, pod, template["spec"]["spec"]):
        return _unlabelled(pod, f"template {name}")
    if refused:
        return Reason(
            ReasonKind.CLAIM_NOT_MADE, f"no claim was made from template {name}: {refused}", "what the message names"
        )
    text = f"no claim has been made from template {name} yet"
    return Reason(
        ReasonKind.CLAIM_NOT_MADE, text, "the claim controller (kube-controller-manager) makes it: see whether it runs"
    )


def _events(scene: SchedulerView, pod: PodInfo, reason: str) -> list[str]:
    """What was said of the pod, oldest first."""
    about = [e for e in scene.snapshot.events if (e.get("involvedObject") or {}).get("uid") == pod.uid]
    said = sorted((_when(e), str(e.get("message") or "")) for e in about if e.get("reason") == reason)
    return [message for _, message in said]


def _when(event: JSON) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


# --- one claim ------------------------------------------------------------------------------------


def _of_allocated(scene: SchedulerView, pod: PodInfo, claim: dict[str, Any]) -> Iterator[Reason]:
    name, reserved = name_of(claim), reserved_for(claim)
    mine = any(r.get("uid") == pod.uid for r in reserved)
    if not mine and len(reserved) >= MOST_USERS:
        text = f"claim {name} is reserved for {len(reserved)} pods, and a claim has at most {MOST_USERS}"
        yield Reason(ReasonKind.RESERVATION, text, "one of them has to end, or the pod needs another claim")
    if not mine and not claim["status"]["allocation"].get("allocationTimestamp"):
        text = f"claim {name} was allocated without allocationTimestamp, not by a scheduler: reserving it is refused"
        yield Reason(
            ReasonKind.BY_HAND, text, f"make claim {name} again, or write its allocation with an allocationTimestamp"
        )
    if not any(r.get("bindingConditions") for r in results_of(claim)):
        return
    state = state_of(claim) if scene.snapshot.live else state_of(claim, float("inf"))
    if state.readiness is Readiness.READY:
        return
    drivers = ", ".join(sorted({str(r["driver"]) for r in results_of(claim) if r.get("bindingConditions")}))
    if state.over:
        text = f"claim {name}: {state.reason}"
        change = (
            f"see what the controller of {drivers} says of it; the scheduler gives the devices back, and tries again"
        )
    else:
        text = f"claim {name} waits for binding conditions: {', '.join(_not_true(claim))}"
        limit = f", within {state.left:.0f} s" if state.left and state.left != float("inf") else ""
        change = f"the controller of {drivers} has to set them in the claim's status{limit}"
    yield Reason(ReasonKind.BINDING, text, change)


def _not_true(claim: JSON) -> list[str]:
    """Binding conditions that are not true, with their devices."""

    def device(d: JSON) -> str:
        return f"{d['driver']}/{d['pool']}/{d['device']}"

    true = {
        (device(d), c["type"])
        for d in claim["status"].get("devices") or []
        for c in d.get("conditions") or []
        if c.get("status") == "True"
    }
    wanted = ((device(r), c) for r in results_of(claim) for c in r.get("bindingConditions") or [])
    return [f"{condition} of {where}" for where, condition in wanted if (where, condition) not in true]


def _of_open(scene: SchedulerView, pod: PodInfo, claim: dict[str, Any]) -> Iterator[Reason]:
    for name, one in asked(claim["spec"]):
        wanted = str(one["deviceClassName"])
        if wanted not in scene.cache.classes:
            text = f"claim {name_of(claim)}, request {name}: DeviceClass {wanted} does not exist"
            yield Reason(
                ReasonKind.CLASS_MISSING, text, f"make DeviceClass {wanted}{near(wanted, scene.cache.classes)}"
            )
    if not _may_be_admin(scene, pod, claim["spec"]):
        yield _unlabelled(pod, f"claim {claim['metadata']['name']}")
    least = sum(
        min(int(o.get("count") or 1) if o.get("allocationMode") != "All" else 0 for o in _options(r))
        for r in (claim["spec"].get("devices") or {}).get("requests") or []
    )
    if least > MAX_RESULTS:
        text = f"claim {name_of(claim)} asks for {least} devices, and a claim gets at most {MAX_RESULTS}"
        yield Reason(ReasonKind.TOO_MANY, text, "several claims")


def _options(request: JSON) -> list[JSON]:
    return [request["exactly"]] if request.get("exactly") else list(request.get("firstAvailable") or [{"count": 0}])


def _may_be_admin(scene: SchedulerView, pod: PodInfo, spec: JSON) -> bool:
    """Whether what is asked for needs no label of the namespace, or it is there."""
    labels = scene.namespaces.get(pod.namespace)  # None where it may not be read, or is not in the files
    return labels is None or labels.get(ADMIN_LABEL) == "true" or not any(o.get("adminAccess") for _, o in asked(spec))


def _unlabelled(pod: PodInfo, what: str) -> Reason:
    text = f"{what} asks for admin access, and namespace {pod.namespace} has not the label {ADMIN_LABEL}=true"
    return Reason(ReasonKind.ADMIN_LABEL, text, f"kubectl label namespace {pod.namespace} {ADMIN_LABEL}=true")


def near(name: str, there: Iterable[str]) -> str:
    """``; there is a-b`` for names like it; else those that there are, where they are few; else nothing."""
    known = sorted(set(there))
    found = difflib.get_close_matches(name, known, 3) or (known if len(known) <= 3 else [])
    return f"; there is {', '.join(found)}" if found else ""


__all__ = ["claim_name", "entries", "near", "reasons"]
