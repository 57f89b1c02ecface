"""Finds reasons why a pod cannot run on any node: in the pod's fields, its claims, and their templates and classes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from dra_devkit import quotas
from dra_devkit.near_names import similar_names
from dra_devkit.scheduling.allocator.search import MAX_RESULTS
from dra_devkit.scheduling.framework import pod_groups, pod_info
from dra_devkit.scheduling.framework.binding import Readiness, state_of
from dra_devkit.scheduling.framework.claim_cache import is_allocated, reserved_for
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, TEMPLATES
from dra_kubeletplugin.resourceapi.allocation import results_of

from ..event_causes import cause_of_wait
from ..scheduler_view import SchedulerView, group_owner, name_of, named_requests, users_of
from ..waiting_pods import claim_name, claims_made, entries
from .model import Reason, ReasonKind

ADMIN_LABEL = "resource.kubernetes.io/admin-access"
MAX_USERS = 256  # maximum number of pods that a claim can be reserved for, a limit of the API


def reasons(view: SchedulerView, pod: PodInfo) -> list[Reason]:
    """Returns the reasons in the order in which the scheduler finds them."""
    return [*_of_pod(view, pod), *_of_claims(view, pod)]


def _of_pod(view: SchedulerView, pod: PodInfo) -> Iterator[Reason]:
    if pod.terminating:
        yield _deletion(view, pod)
    if gates := pod.spec.get("schedulingGates"):
        names = ", ".join(str(g["name"]) for g in gates)
        yield Reason(
            ReasonKind.GATED, f"the pod has scheduling gates: {names}", "the component that set them must remove them"
        )
    name = str(pod.spec.get("schedulerName") or pod_info.DEFAULT_SCHEDULER)
    if name != pod_info.DEFAULT_SCHEDULER and not pod.node:
        text = f"the pod names the scheduler {name}, but no visible pod was scheduled by it"
        change = f"start a scheduler named {name}, or create the pod without schedulerName"
        if _is_served(view, pod, name):
            text = f"the scheduler {name} has not placed the pod, and it decides by its own rules"
            change = f"see the events of the pod and the log of the scheduler {name}"
        yield Reason(ReasonKind.SCHEDULER_NAME, text, change)
    if pod.node:
        if view.snapshot.nodes and view.snapshot.is_complete(NODES) and not _has_node(view, pod):
            text = f"the pod was placed on {pod.node}, which does not exist: it is not known whether the pod runs"
            change = "Kubernetes deletes the pod soon after its node; its owner creates another pod"
            yield Reason(ReasonKind.NODE_MISSING, text, change)
        for claim in claims_of(view, pod):
            if not is_allocated(claim):
                text = (
                    f"the pod was created with nodeName {pod.node}, so no scheduler looks at it, "
                    f"and claim {name_of(claim)} is never allocated"
                )
                yield Reason(
                    ReasonKind.NODE_GIVEN,
                    text,
                    "create the pod without nodeName, and use a nodeSelector to choose the node",
                )


def _has_node(view: SchedulerView, pod: PodInfo) -> bool:
    return any(n["metadata"]["name"] == pod.node for n in view.snapshot.nodes)


def depends_on_unread_objects(view: SchedulerView, pod: PodInfo) -> bool:
    """Returns whether a claim of the pod, or the node that the pod has, may be among the objects that were not read."""
    if pod.node and not _has_node(view, pod) and not view.snapshot.is_complete(NODES):
        return True
    if view.snapshot.is_complete(CLAIMS, pod.namespace):
        return False
    made = claims_made(pod)
    needed = (claim_name(pod, e) for e in entries(pod) if claim_name(pod, e) or e["name"] not in made)
    return any(view.cache.claims.get(pod.namespace, name) is None for name in needed)


def _deletion(view: SchedulerView, pod: PodInfo) -> Reason:
    """Explains a pod that is being deleted. A kubelet writes no event while it waits for a driver to unprepare claims."""
    drivers = sorted({str(r["driver"]) for claim in claims_of(view, pod) for r in results_of(claim)})
    if not drivers or not _has_ended(pod):
        return Reason(
            ReasonKind.DELETED,
            "the pod is being deleted",
            "nothing to do: the pod is removed after its containers and finalizers end",
        )
    names = " and ".join(drivers)
    text = f"the pod is being deleted, and its containers have ended, but {names} has not unprepared its claims yet"
    change = f"see whether the plugin of {names} runs on {pod.node}, and what it logs about the claims"
    return Reason(ReasonKind.DELETED, text, change)


def _has_ended(pod: PodInfo) -> bool:
    statuses = (pod.pod.get("status") or {}).get("containerStatuses") or []
    return bool(pod.node and statuses) and all("terminated" in (s.get("state") or {}) for s in statuses)


def _is_served(view: SchedulerView, pod: PodInfo, name: str) -> bool:
    for other in view.snapshot.pods:
        spec = other["spec"]
        if spec.get("schedulerName") == name and spec.get("nodeName") and other["metadata"]["uid"] != pod.uid:
            return True
    return any(
        name in {e.get("reportingComponent"), (e.get("source") or {}).get("component")} for e in view.snapshot.events
    )


# --- claims ---------------------------------------------------------------------------------------


def claims_of(view: SchedulerView, pod: PodInfo) -> list[dict[str, Any]]:
    """Returns the existing claims of the pod, each once."""
    found = {}
    for entry in entries(pod):
        claim = view.cache.claims.get(pod.namespace, claim_name(pod, entry))
        if claim is not None:
            found[claim["metadata"]["uid"]] = claim
    return list(found.values())


def open_claims(view: SchedulerView, pod: PodInfo) -> list[dict[str, Any]]:
    """Returns the existing claims of the pod that are not allocated."""
    return [c for c in claims_of(view, pod) if not is_allocated(c)]


def open_claims_and_classes(view: SchedulerView, pod: PodInfo) -> list[ReadOnlyJSON]:
    """Returns the claims of :func:`open_claims`, and the DeviceClasses of their requests."""
    claims = open_claims(view, pod)
    names = dict.fromkeys(str(one["deviceClassName"]) for c in claims for _, one in named_requests(c["spec"]))
    return [*claims, *(view.cache.classes[name] for name in names if name in view.cache.classes)]


def _of_claims(view: SchedulerView, pod: PodInfo) -> Iterator[Reason]:
    made = claims_made(pod)
    for entry in entries(pod):
        name = claim_name(pod, entry)
        if not name:
            if entry["name"] not in made and (reason := _not_made(view, pod, entry)):
                yield reason
            continue
        claim = view.cache.claims.get(pod.namespace, name)
        if claim is None:
            if view.snapshot.is_complete(CLAIMS, pod.namespace):
                yield _missing(view, pod, name, generated=not entry.get("resourceClaimName"))
        elif claim["metadata"].get("deletionTimestamp"):
            users = ", ".join(users_of(claim)) or "finalizers"
            change = f"it is removed when {users} release it; then the pod needs an existing claim"
            yield Reason(ReasonKind.CLAIM_DELETED, f"claim {name_of(claim)} is being deleted", change)
        elif not entry.get("resourceClaimName") and not pod_groups.made_for(claim, pod.pod):
            yield _made_for_other(pod, claim)
    names = [str(e["resourceClaimName"]) for e in entries(pod) if e.get("resourceClaimName")]
    for name in sorted({n for n in names if names.count(n) > 1}):
        text = f"the pod names claim {name} more than once, but the claim can be reserved for a pod only once"
        yield Reason(
            ReasonKind.RESERVATION, text, f"use one entry in resourceClaims for {name}; containers may share it"
        )
    for claim in claims_of(view, pod):
        yield from (_of_allocated if is_allocated(claim) else _of_open)(view, pod, claim)


def _made_for_other(pod: PodInfo, claim: dict[str, Any]) -> Reason:
    name = str(claim["metadata"]["name"])
    text = f"claim {name_of(claim)} was not made for this pod"
    if not (group := group_owner(claim)):
        return Reason(ReasonKind.CLAIM_OF_OTHER, text, f"delete claim {name} or the pod, so that a new claim is made")
    text = f"claim {name_of(claim)} was made for PodGroup {pod.namespace}/{group}, and the pod is not in this group"
    change = f"create the pod with schedulingGroup.podGroupName {group}, or with a claim of its own; pods of the group use claim {name}"
    return Reason(ReasonKind.CLAIM_OF_OTHER, text, change)


def _missing(view: SchedulerView, pod: PodInfo, name: str, *, generated: bool) -> Reason:
    if generated:
        text = f"claim {pod.namespace}/{name}, which was made for the pod, no longer exists"
        return Reason(ReasonKind.CLAIM_MISSING, text, "delete the pod: its owner creates another pod with a new claim")
    there = [c["metadata"]["name"] for c in view.claims if c["metadata"]["namespace"] == pod.namespace]
    text = f"claim {pod.namespace}/{name} does not exist"
    return Reason(ReasonKind.CLAIM_MISSING, text, f"make claim {name} in namespace {pod.namespace}{near(name, there)}")


def _not_made(view: SchedulerView, pod: PodInfo, entry: ReadOnlyJSON) -> Reason | None:
    """Explains why the claim controller has not created a claim from its template; None if the claim may be among unread claims."""
    name = str(entry.get("resourceClaimTemplateName"))
    here = [t for t in view.snapshot.templates if t["metadata"]["namespace"] == pod.namespace]
    template = next((t for t in here if t["metadata"]["name"] == name), None)
    refused = cause_of_wait(view, pod, "FailedResourceClaimCreation")
    if template is None and view.snapshot.is_complete(TEMPLATES, pod.namespace):
        there = [t["metadata"]["name"] for t in here]
        text = f"ResourceClaimTemplate {pod.namespace}/{name} does not exist"
        return Reason(
            ReasonKind.TEMPLATE_MISSING,
            text,
            f"make ResourceClaimTemplate {name} in namespace {pod.namespace}{near(name, there)}",
        )
    if template is not None and not _may_be_admin(view, pod, template["spec"]["spec"]):
        return _unlabelled(pod, f"template {name}")
    if template is not None:
        claim = {"metadata": {"namespace": pod.namespace}, "spec": template["spec"]["spec"]}
        what = f"the claim from template {name}"
        if over := next(quota_reasons(view, quotas.CLAIMS, claim, what), None):
            return over
        of_quotas = (q["metadata"] for q in view.snapshot.quotas)
        quota_names = [str(meta["name"]) for meta in of_quotas if meta["namespace"] == pod.namespace]
        if refused and any(f"exceeded quota: {quota}," in refused.text for quota in quota_names):
            refused = replace(refused, doubt="the quota has room now")
    if refused:
        return Reason(
            ReasonKind.CLAIM_NOT_CREATED,
            f"{refused.shown}, so no claim was made from template {name}",
            "repair the cause that the message names",
            time=refused.time,
        )
    if not view.snapshot.is_complete(CLAIMS, pod.namespace):
        return None
    text = f"no claim has been made from template {name} yet"
    change = "the claim controller (kube-controller-manager) creates it: see whether it runs"
    if pod.group:
        group = view.group_of(pod)
        if pod_groups.shares(group, entry):
            text = f"no claim has been made from template {name} for PodGroup {pod.namespace}/{pod.group} yet"
        elif group is None:
            text += f", and PodGroup {pod.namespace}/{pod.group}, which may share a claim with the pod, is not known"
    return Reason(ReasonKind.CLAIM_NOT_CREATED, text, change)


def quota_reasons(view: SchedulerView, kind: str, obj: ReadOnlyJSON, what: str) -> Iterator[Reason]:
    """Yields a reason for each quota that refuses a new object: its use, and the command that raises it.

    Args:
        kind: the name of the object's kind in quotas.
        what: words for the object, such as ``the pod``.
    """
    for quota, over in view.quotas.exceeded(kind, obj):
        meta = quota["metadata"]
        amounts = "; ".join(f"{e.resource}: {e.wanted} wanted, {e.used} of {e.hard} used" for e in over)
        patch = json.dumps({"spec": {"hard": {e.resource: str(e.used + e.wanted) for e in over}}})
        yield Reason(
            ReasonKind.QUOTA,
            f"ResourceQuota {name_of(quota)} refuses {what} ({amounts})",
            f"delete pods and claims of namespace {meta['namespace']} that are no longer needed, or raise the quota",
            command=f"kubectl -n {meta['namespace']} patch resourcequota {meta['name']} -p {shlex.quote(patch)}",
        )


# --- one claim ------------------------------------------------------------------------------------


def _of_allocated(view: SchedulerView, pod: PodInfo, claim: dict[str, Any]) -> Iterator[Reason]:
    name, reserved = name_of(claim), reserved_for(claim)
    is_reserved = any(pod_groups.is_for(r, pod.pod) for r in reserved)
    if not is_reserved and len(reserved) >= MAX_USERS:
        text = f"claim {name} is reserved for {len(reserved)} pods, and a claim has at most {MAX_USERS}"
        yield Reason(ReasonKind.RESERVATION, text, "one of these pods has to end, or the pod needs another claim")
    if not is_reserved and not claim["status"]["allocation"].get("allocationTimestamp"):
        text = f"claim {name} was allocated without allocationTimestamp, not by a scheduler, so it cannot be reserved for the pod"
        yield Reason(
            ReasonKind.BY_HAND, text, f"make claim {name} again, or write its allocation with an allocationTimestamp"
        )
    if not any(r.get("bindingConditions") for r in results_of(claim)):
        return
    state = state_of(claim) if view.snapshot.live else state_of(claim, float("inf"))
    if state.readiness is Readiness.READY:
        return
    drivers = ", ".join(sorted({str(r["driver"]) for r in results_of(claim) if r.get("bindingConditions")}))
    if state.must_deallocate:
        text = f"claim {name}: {state.reason}"
        change = f"see the log of the controller of {drivers}; the scheduler releases the devices and tries again"
    else:
        text = f"claim {name} waits for binding conditions: {', '.join(_not_true(claim))}"
        limit = f", within {state.remaining:.0f} s" if state.remaining and state.remaining != float("inf") else ""
        change = f"the controller of {drivers} has to set them in the claim's status{limit}"
    yield Reason(ReasonKind.BINDING, text, change)


def _not_true(claim: ReadOnlyJSON) -> list[str]:
    """Returns binding conditions that are not true, with their devices."""

    def device(d: ReadOnlyJSON) -> str:
        return f"{d['driver']}/{d['pool']}/{d['device']}"

    true = {
        (device(d), c["type"])
        for d in claim["status"].get("devices") or []
        for c in d.get("conditions") or []
        if c.get("status") == "True"
    }
    wanted = ((device(r), c) for r in results_of(claim) for c in r.get("bindingConditions") or [])
    return [f"{condition} of {where}" for where, condition in wanted if (where, condition) not in true]


def _of_open(view: SchedulerView, pod: PodInfo, claim: dict[str, Any]) -> Iterator[Reason]:
    for name, one in named_requests(claim["spec"]):
        wanted = str(one["deviceClassName"])
        if wanted not in view.cache.classes:
            text = f"claim {name_of(claim)}, request {name}: DeviceClass {wanted} does not exist"
            yield Reason(ReasonKind.CLASS_MISSING, text, f"make DeviceClass {wanted}{near(wanted, view.cache.classes)}")
    if not _may_be_admin(view, pod, claim["spec"]):
        yield _unlabelled(pod, f"claim {claim['metadata']['name']}")
    least = 0
    for request in (claim["spec"].get("devices") or {}).get("requests") or []:
        options = [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or []
        counts = (0 if o.get("allocationMode") == "All" else int(o.get("count") or 1) for o in options)
        least += min(counts, default=0)
    if least > MAX_RESULTS:
        text = f"claim {name_of(claim)} asks for {least} devices, and a claim gets at most {MAX_RESULTS}"
        yield Reason(ReasonKind.TOO_MANY, text, "use several claims")


def _may_be_admin(view: SchedulerView, pod: PodInfo, spec: ReadOnlyJSON) -> bool:
    """Returns whether the namespace has the label for admin access, or the spec does not need it."""
    # None if namespaces may not be read, or if the files do not contain this namespace
    labels = view.namespaces.get(pod.namespace)
    return (
        labels is None
        or labels.get(ADMIN_LABEL) == "true"
        or not any(o.get("adminAccess") for _, o in named_requests(spec))
    )


def _unlabelled(pod: PodInfo, what: str) -> Reason:
    text = f"{what} asks for admin access, and namespace {pod.namespace} does not have the label {ADMIN_LABEL}=true"
    command = f"kubectl label namespace {pod.namespace} {ADMIN_LABEL}=true"
    return Reason(ReasonKind.ADMIN_LABEL, text, "an administrator has to label the namespace", command=command)


def near(name: str, there: Iterable[str]) -> str:
    """Returns a hint such as ``; similar name: a-b``: up to three similar names, else all names if they are at most three."""
    known = sorted(set(there))
    if similar := similar_names(name, known, 3):
        return f"; similar {'names' if len(similar) > 1 else 'name'}: {', '.join(similar)}"
    only = "there is only" if len(known) == 1 else "there are only"
    return f"; {only} {', '.join(known)}" if 0 < len(known) <= 3 else ""
