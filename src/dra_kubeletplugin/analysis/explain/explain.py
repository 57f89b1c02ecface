"""``explain``: why a pod or a claim waits and what would have to change, or what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from ...base.text import join_names
from ...errors import QuestionError
from ...kube.resource import CLAIMS, PODS
from ...scheduling.framework import pod_info
from ...scheduling.framework.claim_cache import is_allocated, reserved_for, results_of
from ...scheduling.framework.extended import wanted
from ...scheduling.framework.pod_info import PodInfo, is_extended
from ..scheduler_view import SchedulerView, is_finished, name_of, users_of
from ..snapshot import KINDS, Snapshot
from . import cluster_reasons
from .model import ClaimState, Explanation, ExplanationState, HeldDevice, Reason, ReasonKind
from .node_feasibility import examine_nodes
from .summary import summarize, undecided

JSON = dict[str, Any]
Progress = Callable[[int, int], None]
_PODS = {"pod", "pods", "po"}
_CLAIMS = {"claim", "claims", "resourceclaim", "resourceclaims"}
_GOES_ON = {ReasonKind.GATED, ReasonKind.SCHEDULER_NAME}  # nodes are worth a look all the same


def explain(snapshot: Snapshot, what: str, namespace: str = "default") -> Explanation:
    """Why ``what`` waits and what would have to change; or which devices it has.

    Args:
        what: ``pod/NAME`` or ``claim/NAME``; a name alone is a pod's.
        namespace: where it is.

    Raises :class:`QuestionError` where there is no such object, or a pod asks for no devices.
    """
    kind, name = parse(what)
    scene = SchedulerView(snapshot)
    if kind == "pod":
        pod = find(snapshot.pods, "pod", name, namespace, snapshot, PODS.plural)
        return _finished(scene, _pod(scene, pod))
    claim = find(snapshot.claims, "claim", name, namespace, snapshot, CLAIMS.plural)
    return _finished(scene, _claim(scene, claim))


def waiting(snapshot: Snapshot, namespace: str = "", progress: Progress = lambda done, of: None) -> list[Explanation]:
    """All pods that ask for devices and have no node, each explained; of all namespaces, where none is named.

    What would be enough is not tried: :func:`explain` says it. ``progress`` hears how many were explained, and of how many.
    """
    scene = SchedulerView(snapshot)
    asking = []
    for obj in snapshot.pods:
        if is_finished(obj) or obj["spec"].get("nodeName") or namespace not in {"", obj["metadata"]["namespace"]}:
            continue
        pod = pod_info.read(obj)
        if asks(pod):
            asking.append(pod)
    out = []
    for number, pod in enumerate(asking, 1):
        out.append(_finished(scene, explain_pod(scene, pod, changes=False)))
        progress(number, len(asking))
    return out


def asks(pod: PodInfo) -> bool:
    """Whether a pod asks for devices, or for what could be one."""
    return bool(cluster_reasons.entries(pod)) or any(map(is_extended, pod.requests))


def parse(what: str) -> tuple[str, str]:
    """``pod`` or ``claim``, and the name. Raises :class:`QuestionError`."""
    kind, slash, name = what.partition("/")
    if not slash:
        kind, name = "pod", what
    kind = kind.lower().partition(".")[0]
    if not name or "/" in name or kind not in _PODS | _CLAIMS:
        raise QuestionError(f"{what!r} is neither pod/NAME nor claim/NAME")
    return "pod" if kind in _PODS else "claim", name


def find(objects: Iterable[JSON], kind: str, name: str, namespace: str, snapshot: Snapshot, plural: str) -> JSON:
    """The object. Raises :class:`QuestionError` with names like it."""
    elsewhere, here = [], []
    for obj in objects:
        meta = obj["metadata"]
        if meta["namespace"] == namespace:
            if meta["name"] == name:
                return obj
            here.append(str(meta["name"]))
        elif meta["name"] == name:
            elsewhere.append(str(meta["namespace"]))
    for odd in snapshot.unread:
        if (KINDS[odd.kind].plural, odd.namespace, odd.name) == (plural, namespace, name):
            raise QuestionError(f"{kind} {namespace}/{name} cannot be read: {odd.why}")
    gap = next((g for g in snapshot.gaps if g.resource == plural and g.read != namespace), None)
    if gap:
        raise QuestionError(f"{kind} {namespace}/{name} cannot be looked for: {gap.why}")
    more = (
        f"; there is one in namespace {', '.join(sorted(elsewhere)[:3])} (-n)"
        if elsewhere
        else cluster_reasons.near(name, here)
    )
    raise QuestionError(f"there is no {kind} {name} in namespace {namespace}{more}")


# --- a pod ----------------------------------------------------------------------------------------


def _pod(scene: SchedulerView, obj: JSON) -> Explanation:
    pod = pod_info.read(obj)
    if not asks(pod):
        raise QuestionError(
            f"pod {pod.key} asks for no devices: it has no resourceClaims, and requests no extended resource"
        )
    return explain_pod(scene, pod)


def explain_pod(scene: SchedulerView, pod: PodInfo, *, changes: bool = True) -> Explanation:
    """As :func:`explain`, of a pod that need not be among the scene's."""
    claims = tuple(_states(scene, pod))
    known = Explanation(
        f"pod {pod.key}", ExplanationState.WAITS, "", node=pod.node, claims=claims, said=_said(scene, pod)
    )
    phase = str((pod.pod.get("status") or {}).get("phase") or "Pending")
    if is_finished(pod.pod):
        return replace(known, state=ExplanationState.ENDED, summary=f"it has ended: {phase}")
    reasons = tuple(cluster_reasons.reasons(scene, pod))
    lost = any(r.kind is ReasonKind.NODE_GONE for r in reasons)
    if phase == "Running" and not pod.terminating and not lost:
        return replace(known, state=ExplanationState.RUNS, summary=f"it runs on {pod.node}")
    if pod.node:
        return _placed(known, reasons)
    if any(r.kind not in _GOES_ON for r in reasons):
        return replace(known, reasons=reasons, summary=reasons[0].text)
    gap = scene.snapshot.gap(CLAIMS)
    if gap and gap.read != pod.namespace and cluster_reasons.entries(pod):
        return undecided(replace(known, reasons=reasons))
    verdict = examine_nodes(scene, pod, changes=changes)
    known = replace(known, reasons=(*reasons, *verdict.reasons), groups=verdict.groups, changes=verdict.changes)
    known = replace(known, notes=verdict.notes)
    return summarize(known, scene.snapshot.gaps)


def _placed(known: Explanation, reasons: tuple[Reason, ...]) -> Explanation:
    """It has a node and does not run there yet."""
    if reasons:
        return replace(known, reasons=reasons, summary=reasons[0].text)
    if known.said:
        why = Reason(
            ReasonKind.KUBELET,
            f"the kubelet of {known.node}: {known.said}",
            "what the message names: see the driver's log on the node",
        )
        return replace(known, reasons=(why,), summary=why.text)
    return replace(
        known,
        state=ExplanationState.SCHEDULED,
        summary=f"it is scheduled to {known.node}, and its containers have not started yet",
    )


def _said(scene: SchedulerView, pod: PodInfo) -> str:
    """What Kubernetes says of why the pod waits; empty where it says nothing."""
    about = [e for e in scene.snapshot.events if (e.get("involvedObject") or {}).get("uid") == pod.uid]
    warnings = [e for e in about if e.get("type") == "Warning"]
    if pod.node:
        warnings = [e for e in warnings if e.get("reason") != "FailedScheduling"]
    else:
        for condition in (pod.pod.get("status") or {}).get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return str(condition.get("message") or condition.get("reason") or "")
    last = max(warnings or [{}], key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
    return str(last.get("message") or "")


def _states(scene: SchedulerView, pod: PodInfo) -> Iterator[ClaimState]:
    for entry in cluster_reasons.entries(pod):
        name = cluster_reasons.claim_name(pod, entry)
        claim = scene.cache.claims.get(pod.namespace, name)
        yield _state(scene, str(entry["name"]), name, str(entry.get("resourceClaimTemplateName") or ""), claim)
    if wanted(pod, scene.cache.extended, scene.cache.classes):
        claim = scene.cache.claims.extended_of(pod.uid)
        name = str(claim["metadata"]["name"]) if claim else ""
        yield _state(scene, "extended resources", name, "", claim)


def _state(scene: SchedulerView, entry: str, name: str, template: str, claim: JSON | None) -> ClaimState:
    if claim is None:
        return ClaimState(entry, name, template, False, (), ())
    return ClaimState(entry, name, template, is_allocated(claim), tuple(_devices(scene, claim)), tuple(users_of(claim)))


def _devices(scene: SchedulerView, claim: JSON) -> Iterator[HeldDevice]:
    for r in results_of(claim):
        here = [
            s
            for s in scene.slices.by_pool.get((r["driver"], r["pool"]), ())
            if any(d["name"] == r["device"] for d in s["spec"].get("devices") or [])
        ]
        newest = max(here, key=lambda s: int(s["spec"]["pool"].get("generation", 0)), default=None)
        detail = [f"share {r['shareID'][:8]}"] if r.get("shareID") else []
        detail += [f"{name.rpartition('/')[2]} {amount}" for name, amount in (r.get("consumedCapacity") or {}).items()]
        detail += ["admin access"] if r.get("adminAccess") else []
        detail += [] if newest else ["no slice has it any more"]
        node = str((newest or {"spec": {}})["spec"].get("nodeName") or "")
        name = str(newest["metadata"]["name"]) if newest else ""
        yield HeldDevice(r["request"], r["driver"], r["pool"], r["device"], node, name, ", ".join(detail))


# --- a claim --------------------------------------------------------------------------------------


def _claim(scene: SchedulerView, claim: JSON) -> Explanation:
    """By way of a pod that has the claim and nothing else."""
    namespace, name = str(claim["metadata"]["namespace"]), str(claim["metadata"]["name"])
    state = _state(scene, name, name, "", claim)
    known = Explanation(f"claim {namespace}/{name}", ExplanationState.WAITS, "", claims=(state,))
    if is_allocated(claim):
        nodes = sorted({d.node for d in state.devices} - {""})
        users = join_names(users_of(claim)) or "no pod"
        where = f" on {', '.join(nodes)}" if nodes else ""
        told = f"it is allocated{where} and reserved for {users}"
        pod = pod_info.read(_stand_in(claim))
        bad = tuple(
            r for r in cluster_reasons.reasons(scene, pod) if r.kind in {ReasonKind.BINDING, ReasonKind.CLAIM_DELETED}
        )
        known = replace(known, node=nodes[0] if len(nodes) == 1 else "", reasons=bad)
        return replace(
            known, state=ExplanationState.WAITS if bad else ExplanationState.RUNS, summary=bad[0].text if bad else told
        )
    waiting = [p for p in scene.snapshot.pods if not is_finished(p) and _names(p, name, namespace)]
    notes = (
        (f"pods that name it: {join_names([name_of(p) for p in waiting])}",)
        if waiting
        else ("no pod names it: a claim is allocated when a pod that names it is scheduled",)
    )
    pod = pod_info.read(_stand_in(claim))
    reasons = tuple(cluster_reasons.reasons(scene, pod))
    known = replace(known, reasons=reasons, notes=notes)
    if reasons:
        return replace(known, summary=reasons[0].text)
    verdict = examine_nodes(scene, pod)
    known = replace(known, reasons=verdict.reasons, groups=verdict.groups, changes=verdict.changes)
    return summarize(known, scene.snapshot.gaps)


def _names(pod: JSON, claim: str, namespace: str) -> bool:
    if pod["metadata"]["namespace"] != namespace:
        return False
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    return any(e.get("resourceClaimName") == claim for e in [*(pod["spec"].get("resourceClaims") or []), *made])


def _stand_in(claim: JSON) -> JSON:
    """A pod that any node would take, were it not for the claim. It is none of those that the claim is reserved for."""
    meta = {"name": claim["metadata"]["name"], "namespace": claim["metadata"]["namespace"], "uid": "stand-in"}
    reserved = reserved_for(claim)
    meta["uid"] = str(reserved[0]["uid"]) if reserved else meta["uid"]
    entry = {"name": "claim", "resourceClaimName": claim["metadata"]["name"]}
    spec = {"containers": [{"name": "stand-in"}], "tolerations": [{"operator": "Exists"}], "resourceClaims": [entry]}
    return {"metadata": meta, "spec": spec}


def _finished(scene: SchedulerView, found: Explanation) -> Explanation:
    return replace(found, gaps=scene.snapshot.gaps, notes=(*found.notes, *map(str, scene.snapshot.unread)))


__all__ = ["explain", "explain_pod", "find", "parse", "waiting"]
