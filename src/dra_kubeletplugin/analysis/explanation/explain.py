"""Explains why a pod or a claim waits and which changes would help, or which devices it has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...base.text import join_names, natural
from ...errors import QuestionError
from ...kube.resource import CLAIMS, PODS
from ...resourceapi.allocation import results_of
from ...resourceapi.quantity import parse as parse_quantity
from ...resourceapi.quantity import text_beside
from ...scheduling.framework import pod_info
from ...scheduling.framework.claim_cache import is_allocated, reserved_for
from ...scheduling.framework.extended import wanted
from ...scheduling.framework.pod_info import PodInfo, is_finished
from ..scheduler_view import SchedulerView, name_of, users_of
from ..snapshot import KINDS, Snapshot
from ..waiting_pods import asks, waiting_pods
from . import cluster_reasons
from .model import NOT_BLOCKING, ClaimState, Explanation, ExplanationState, HeldDevice, Reason, ReasonKind
from .node_feasibility import examine_nodes, extended_resources
from .summary import summarize, undecided

JSON = dict[str, Any]
Progress = Callable[[int, int], None]
_PODS = {"pod", "pods", "po"}
_CLAIMS = {"claim", "claims", "resourceclaim", "resourceclaims"}


def explain(snapshot: Snapshot, what: str, namespace: str = "default") -> Explanation:
    """Explains why ``what`` waits and which changes would help, or which devices it has.

    Args:
        what: ``pod/NAME`` or ``claim/NAME``; a name without a kind means a pod.
        namespace: namespace of the object.

    Raises:
        QuestionError: there is no such object, or the pod asks for no devices.
    """
    kind, name = parse(what)
    view = SchedulerView(snapshot)
    if kind == "pod":
        pod = find(snapshot.pods, "pod", name, namespace, snapshot, PODS.plural)
        return _with_gaps(view, _pod(view, pod))
    claim = find(snapshot.claims, "claim", name, namespace, snapshot, CLAIMS.plural)
    return _with_gaps(view, _claim(view, claim))


def waiting(snapshot: Snapshot, namespace: str = "", progress: Progress = lambda done, of: None) -> list[Explanation]:
    """Explains all pods that wait for devices, oldest first: the pods that `dra top` shows too.

    Changes are not tried; :func:`explain` does that.

    Args:
        namespace: the namespace of the pods; empty for all.
        progress: called with the number of explained pods and the number of all pods.
    """
    view = SchedulerView(snapshot)
    pods = waiting_pods(snapshot, namespace)
    out = []
    for number, pod in enumerate(pods, 1):
        out.append(_with_gaps(view, explain_pod(view, pod, changes=False)))
        progress(number, len(pods))
    return out


def parse(what: str) -> tuple[str, str]:
    """Splits ``what`` into ``pod`` or ``claim`` and the name.

    Raises:
        QuestionError: the text has another form.
    """
    kind, slash, name = what.partition("/")
    if not slash:
        kind, name = "pod", what
    kind = kind.lower().partition(".")[0]
    if not name or "/" in name or kind not in _PODS | _CLAIMS:
        raise QuestionError(f"{what!r} is neither pod/NAME nor claim/NAME")
    return "pod" if kind in _PODS else "claim", name


def find(objects: Iterable[JSON], kind: str, name: str, namespace: str, snapshot: Snapshot, plural: str) -> JSON:
    """Returns the object.

    Raises:
        QuestionError: there is no such object; the text contains similar names.
    """
    other_namespaces, here = [], []
    for obj in objects:
        meta = obj["metadata"]
        if meta["namespace"] == namespace:
            if meta["name"] == name:
                return obj
            here.append(str(meta["name"]))
        elif meta["name"] == name:
            other_namespaces.append(str(meta["namespace"]))
    for unread in snapshot.unread:
        if (KINDS[unread.kind].plural, unread.namespace, unread.name) == (plural, namespace, name):
            raise QuestionError(f"{kind} {namespace}/{name} cannot be read: {unread.why}")
    gap = next((g for g in snapshot.gaps if g.resource == plural and g.read != namespace), None)
    if gap:
        raise QuestionError(f"{kind} {namespace}/{name} cannot be looked up: {gap.why}")
    more = (
        f"; it exists in namespace {', '.join(sorted(other_namespaces)[:3])} (use -n)"
        if other_namespaces
        else cluster_reasons.near(name, here)
    )
    raise QuestionError(f"there is no {kind} {name} in namespace {namespace}{more}")


def objects_of(snapshot: Snapshot, kind: str, name: str, namespace: str) -> Iterator[JSON]:
    """Yields the objects whose selectors decide which devices a pod or a claim gets: its claims, and all classes."""
    names = {name} if kind == "claim" else set()
    for pod in snapshot.pods if kind == "pod" else ():
        if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (namespace, name):
            info = pod_info.read(pod)
            names = {cluster_reasons.claim_name(info, entry) for entry in cluster_reasons.entries(info)}
    yield from snapshot.classes
    for claim in snapshot.claims:
        if claim["metadata"]["namespace"] == namespace and claim["metadata"]["name"] in names:
            yield claim


# --- a pod ----------------------------------------------------------------------------------------


def _pod(view: SchedulerView, obj: JSON) -> Explanation:
    pod = pod_info.read(obj)
    if not asks(pod):
        raise QuestionError(
            f"pod {pod.key} asks for no devices: it has no resourceClaims, and requests no extended resource"
        )
    return explain_pod(view, pod)


def explain_pod(view: SchedulerView, pod: PodInfo, *, changes: bool = True) -> Explanation:
    """Explains a pod like :func:`explain`. The pod does not have to be in the view's snapshot."""
    claims = tuple(_states(view, pod))
    message, since = _cluster_message(view, pod)
    known = Explanation(
        f"pod {pod.key}",
        ExplanationState.WAITS,
        "",
        node=pod.node,
        claims=claims,
        message=message,
        message_time=since,
    )
    phase = str((pod.pod.get("status") or {}).get("phase") or "Pending")
    if is_finished(pod.pod):
        return replace(known, state=ExplanationState.ENDED, summary=f"it has ended: {phase}")
    reasons = tuple(cluster_reasons.reasons(view, pod))
    lost = any(r.kind is ReasonKind.NODE_MISSING for r in reasons)
    if phase == "Running" and not pod.terminating and not lost:
        return replace(known, state=ExplanationState.RUNS, summary=f"it runs on {pod.node}")
    if pod.node:
        return _placed(known, reasons)
    if any(r.kind not in NOT_BLOCKING for r in reasons):
        return replace(known, reasons=reasons, summary=reasons[0].text)
    gap = view.snapshot.gap(CLAIMS)
    if gap and gap.read != pod.namespace and cluster_reasons.entries(pod):
        return undecided(replace(known, reasons=reasons))
    # No change of a node helps while the pod waits for another reason.
    feasibility = examine_nodes(view, pod, changes=changes and not reasons)
    known = replace(
        known, reasons=(*reasons, *feasibility.reasons), groups=feasibility.groups, changes=feasibility.changes
    )
    known = replace(known, notes=feasibility.notes)
    return summarize(known, view.snapshot.gaps)


def _placed(known: Explanation, reasons: tuple[Reason, ...]) -> Explanation:
    """Explains a pod that has a node and does not run there yet."""
    if reasons:
        return replace(known, reasons=reasons, summary=reasons[0].text)
    if known.message:
        why = Reason(
            ReasonKind.KUBELET,
            f"the kubelet of {known.node}: {known.message}",
            "repair the cause that the message names; see also the driver's log on the node",
        )
        return replace(known, reasons=(why,), summary=why.text)
    return replace(
        known,
        state=ExplanationState.SCHEDULED,
        summary=f"it is scheduled to {known.node}, and its containers have not started yet",
    )


def _cluster_message(view: SchedulerView, pod: PodInfo) -> tuple[str, str]:
    """Returns the message of the scheduler or the kubelet on why the pod waits, and its time; both empty if there is none.

    Ignores messages from before the last start of a container, because they are about an earlier state.
    """
    about = [e for e in view.snapshot.events if (e.get("involvedObject") or {}).get("uid") == pod.uid]
    warnings = [e for e in about if e.get("type") == "Warning"]
    if pod.node:
        started = _started(pod.pod)
        warnings = [e for e in warnings if e.get("reason") != "FailedScheduling" and _time(e) >= started]
    else:
        for condition in (pod.pod.get("status") or {}).get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return str(condition.get("message") or condition.get("reason") or ""), ""
    last = max(warnings, key=_time, default={})
    return str(last.get("message") or ""), _time(last)


def _time(event: Mapping[str, Any]) -> str:
    """Returns when an event was last seen, in seconds and UTC, so that texts compare like times."""
    series = event.get("series") or {}
    time = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or ""
    return re.sub(r"\.[0-9]+Z$", "Z", str(time))


def _started(pod: JSON) -> str:
    """Returns when the last container of a running or ended pod started; empty for a pod that waits."""
    status = pod.get("status") or {}
    if str(status.get("phase") or "Pending") == "Pending":
        return ""
    states = [s.get("state") or {} for s in status.get("containerStatuses") or []]
    times = [str((s.get("running") or s.get("terminated") or {}).get("startedAt") or "") for s in states]
    return max([*times, str(status.get("startTime") or "")])


def _states(view: SchedulerView, pod: PodInfo) -> Iterator[ClaimState]:
    for entry in cluster_reasons.entries(pod):
        name = cluster_reasons.claim_name(pod, entry)
        claim = view.cache.claims.get(pod.namespace, name)
        yield _state(view, str(entry["name"]), name, str(entry.get("resourceClaimTemplateName") or ""), claim)
    if wanted(pod, view.cache.extended, view.cache.classes):
        claim = view.cache.claims.extended_of(pod.uid)
        name = str(claim["metadata"]["name"]) if claim else ""
        state = _state(view, "extended resources", name, "", claim)
        status = (pod.pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
        resources = extended_resources(status.get("requestMappings") or [])
        devices = (
            replace(d, resource=r, container=c) for d in state.devices for r, c in [resources.get(d.request, ("", ""))]
        )
        yield replace(state, devices=tuple(devices))


def _state(view: SchedulerView, entry: str, name: str, template: str, claim: JSON | None) -> ClaimState:
    if claim is None:
        return ClaimState(entry, name, template, False, (), ())
    return ClaimState(entry, name, template, is_allocated(claim), tuple(_devices(view, claim)), tuple(users_of(claim)))


def _devices(view: SchedulerView, claim: JSON) -> Iterator[HeldDevice]:
    for r in results_of(claim):
        here = [
            s
            for s in view.slices.by_pool.get((r["driver"], r["pool"]), ())
            if any(d["name"] == r["device"] for d in s["spec"].get("devices") or [])
        ]
        newest = max(here, key=lambda s: int(s["spec"]["pool"].get("generation", 0)), default=None)
        detail = [f"share {r['shareID'][:8]}"] if r.get("shareID") else []
        detail += _consumed(r, newest)
        detail += ["admin access"] if r.get("adminAccess") else []
        detail += [] if newest else ["it is no longer in a slice"]
        node = str((newest or {"spec": {}})["spec"].get("nodeName") or "")
        name = str(newest["metadata"]["name"]) if newest else ""
        yield HeldDevice(r["request"], r["driver"], r["pool"], r["device"], node, name, ", ".join(detail))


def _consumed(result: JSON, sl: JSON | None) -> list[str]:
    """Returns the amounts that a share has, such as ``bandwidth 4G of 10G``."""
    devices = (sl or {"spec": {}})["spec"].get("devices") or []
    capacity = next((d.get("capacity") or {} for d in devices if d["name"] == result["device"]), {})
    out = []
    for name, amount in (result.get("consumedCapacity") or {}).items():
        short, shown = name.rpartition("/")[2], str(amount)
        if name in capacity:
            has = parse_quantity(capacity[name]["value"])
            shown = f"{text_beside(parse_quantity(shown), has)} of {has}"
        out.append(f"{short} {shown}")
    return out


# --- a claim --------------------------------------------------------------------------------------


def _claim(view: SchedulerView, claim: JSON) -> Explanation:
    """Explains a claim. If it is not allocated, examines a pod that has only this claim."""
    namespace, name = str(claim["metadata"]["namespace"]), str(claim["metadata"]["name"])
    state = _state(view, name, name, "", claim)
    known = Explanation(f"claim {namespace}/{name}", ExplanationState.WAITS, "", claims=(state,))
    if is_allocated(claim):
        nodes = sorted({d.node for d in state.devices} - {""}, key=natural)
        users = join_names(users_of(claim)) or "no pod"
        where = f" on {', '.join(nodes)}" if nodes else ""
        text = f"it is allocated{where} and reserved for {users}"
        pod = pod_info.read(_pod_with(claim))
        bad = tuple(
            r for r in cluster_reasons.reasons(view, pod) if r.kind in {ReasonKind.BINDING, ReasonKind.CLAIM_DELETED}
        )
        known = replace(known, node=nodes[0] if len(nodes) == 1 else "", reasons=bad)
        return replace(
            known, state=ExplanationState.WAITS if bad else ExplanationState.RUNS, summary=bad[0].text if bad else text
        )
    waiting = [p for p in view.snapshot.pods if not is_finished(p) and _names(p, name, namespace)]
    notes = (
        (f"pods that name it: {join_names([name_of(p) for p in waiting])}",)
        if waiting
        else ("no pod names it: a claim is allocated when a pod that names it is scheduled",)
    )
    pod = pod_info.read(_pod_with(claim))
    reasons = tuple(cluster_reasons.reasons(view, pod))
    known = replace(known, reasons=reasons, notes=notes)
    if reasons:
        return replace(known, summary=reasons[0].text)
    feasibility = examine_nodes(view, pod)
    known = replace(known, reasons=feasibility.reasons, groups=feasibility.groups, changes=feasibility.changes)
    return summarize(known, view.snapshot.gaps)


def _names(pod: JSON, claim: str, namespace: str) -> bool:
    if pod["metadata"]["namespace"] != namespace:
        return False
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    return any(e.get("resourceClaimName") == claim for e in [*(pod["spec"].get("resourceClaims") or []), *made])


def _pod_with(claim: JSON) -> JSON:
    """Returns a pod with this claim and no other requirements, so that only the claim decides which nodes fit.

    If the claim is reserved, the pod has the first consumer's UID.
    """
    meta = {"name": claim["metadata"]["name"], "namespace": claim["metadata"]["namespace"], "uid": "stand-in"}
    reserved = reserved_for(claim)
    meta["uid"] = str(reserved[0]["uid"]) if reserved else meta["uid"]
    entry = {"name": "claim", "resourceClaimName": claim["metadata"]["name"]}
    spec = {"containers": [{"name": "stand-in"}], "tolerations": [{"operator": "Exists"}], "resourceClaims": [entry]}
    return {"metadata": meta, "spec": spec}


def _with_gaps(view: SchedulerView, found: Explanation) -> Explanation:
    return replace(found, gaps=view.snapshot.gaps, notes=(*found.notes, *map(str, view.snapshot.unread)))
