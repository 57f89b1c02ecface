"""Explains why a pod or a claim waits and which changes would help, or which devices it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from dra_devkit.scheduling.framework import pod_groups, pod_info
from dra_devkit.scheduling.framework.claim_cache import is_allocated, reserved_for
from dra_devkit.scheduling.framework.extended import wanted
from dra_devkit.scheduling.framework.pod_info import PodInfo, is_finished
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import join_names, natural
from dra_kubeletplugin.errors import QuestionError
from dra_kubeletplugin.kube.resource import CLAIMS, EVENTS, PODS
from dra_kubeletplugin.resourceapi.allocation import results_of
from dra_kubeletplugin.resourceapi.quantity import parse as parse_quantity

from ..doubled_resources import doubled_resources
from ..event_causes import EventCause, cause_of_wait, waiting_container
from ..scheduler_view import SchedulerView, name_of, named_requests, users_of
from ..snapshot import KINDS, Snapshot
from ..usage.usage import text_beside
from ..waiting_pods import asks, claim_name, entries, is_reported_in_events, waiting_pods
from . import cluster_reasons, other_cards, rollouts
from .conclusion import can_try, conclude, undecided
from .model import NOT_BLOCKING, ClaimState, Explanation, ExplanationState, HeldDevice, Reason, ReasonKind
from .node_feasibility import examine_nodes
from .request_reasons import extended_resources

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
        pod = pod_info.read(_found(snapshot, kind, name, namespace))
        if not asks(pod):
            raise QuestionError(
                f"pod {pod.key} asks for no devices: it has no resourceClaims, and requests no extended resource"
            )
        found = _with_gaps(view, explain_pod(view, pod))
        if is_reported_in_events(pod):
            return found
        # No Event can have the cause.
        return replace(found, gaps=tuple(g for g in found.gaps if g.resource != EVENTS.plural))
    return _with_gaps(view, _claim(view, _found(snapshot, kind, name, namespace)))


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


def named(snapshot: Snapshot, kind: str, name: str, namespace: str) -> JSON | None:
    """Returns the pod or claim with this name."""
    objects = snapshot.pods if kind == "pod" else snapshot.claims
    found = (o for o in objects if (o["metadata"]["namespace"], o["metadata"]["name"]) == (namespace, name))
    return next(found, None)


def _found(snapshot: Snapshot, kind: str, name: str, namespace: str) -> JSON:
    """Returns the pod or claim with this name.

    Raises:
        QuestionError: there is no such object; the text contains similar names.
    """
    if (found := named(snapshot, kind, name, namespace)) is not None:
        return found
    plural = (PODS if kind == "pod" else CLAIMS).plural
    for unread in snapshot.unread:
        if (KINDS[unread.kind].plural, unread.namespace, unread.name) == (plural, namespace, name):
            raise QuestionError(f"{kind} {namespace}/{name} cannot be read: {unread.why}")
    gap = next((g for g in snapshot.gaps if g.resource == plural and g.read != namespace), None)
    if gap:
        raise QuestionError(f"{kind} {namespace}/{name} cannot be looked up: {gap.why}")
    every = [(str(o["metadata"]["namespace"]), str(o["metadata"]["name"])) for o in snapshot.objects[plural]]
    other_namespaces = sorted(where for where, other in every if other == name)
    more = cluster_reasons.near(name, [other for where, other in every if where == namespace])
    if other_namespaces:
        more = f"; it exists in namespace {', '.join(other_namespaces[:3])} (use -n)"
    raise QuestionError(f"there is no {kind} {name} in namespace {namespace}{more}")


def objects_of(snapshot: Snapshot, kind: str, name: str, namespace: str) -> list[JSON]:
    """Returns the objects whose selectors decide which devices a pod or a claim gets: its claims, and all classes."""
    keys = {f"{namespace}/{name}"}
    if kind == "pod":
        keys = {key for p in [named(snapshot, kind, name, namespace)] if p for key in pod_info.read(p).claim_keys}
    return [*snapshot.classes, *(c for c in snapshot.claims if name_of(c) in keys)]


# --- a pod ----------------------------------------------------------------------------------------


def explain_pod(view: SchedulerView, pod: PodInfo, *, changes: bool = True) -> Explanation:
    """Explains a pod like :func:`explain`. The pod does not have to be in the view's snapshot."""
    claims = tuple(_states(view, pod))
    reported = _cluster_message(view, pod)
    known = Explanation(
        f"pod {pod.key}",
        ExplanationState.WAITS,
        "",
        node=pod.node,
        claims=claims,
        message=reported.shown,
        message_time=reported.time,
    )
    phase = str((pod.pod.get("status") or {}).get("phase") or "Pending")
    if is_finished(pod.pod):
        return replace(known, state=ExplanationState.ENDED, summary=f"it has ended: {phase}")
    reasons = tuple(cluster_reasons.reasons(view, pod))
    lost = any(r.kind is ReasonKind.NODE_MISSING for r in reasons)
    if phase == "Running" and not pod.terminating and not lost:
        return replace(known, state=ExplanationState.RUNS, summary=f"it runs on {pod.node}")
    unread = cluster_reasons.depends_on_unread_objects(view, pod)
    if pod.node:
        other_card = other_cards.change_for(view, pod, reported.text) if changes and not reported.doubt else ""
        found = _placed(known, reasons, waiting_container(pod.pod), other_card)
        return undecided(found) if unread and found.state is ExplanationState.SCHEDULED else found
    if any(r.kind not in NOT_BLOCKING for r in reasons):
        return replace(known, reasons=reasons, summary=reasons[0].text)
    if unread:  # a reason of the pod itself holds in any case
        return replace(known, reasons=reasons, summary=reasons[0].text) if reasons else undecided(known)
    # No change of a node helps while the pod waits for another reason.
    feasibility = examine_nodes(view, pod, changes=changes and not reasons and can_try(view))
    known = replace(known, reasons=reasons, notes=tuple(_doubled(view, pod)))
    found = conclude(view, pod, known, feasibility)
    tries = changes and not reasons and can_try(view) and found.state is ExplanationState.WAITS
    change = rollouts.change_for(view, pod) if tries else None
    return replace(found, changes=(change, *found.changes)) if change else found


def _doubled(view: SchedulerView, pod: PodInfo) -> Iterator[str]:
    """Yields the resources that the pod asks for and that nodes have from a device plugin and from a driver."""
    claims = (view.cache.claims.get(pod.namespace, claim_name(pod, e)) for e in entries(pod))
    classes = {one["deviceClassName"] for claim in claims if claim for _, one in named_requests(claim["spec"])}
    snapshot = view.snapshot
    for found in doubled_resources(snapshot.nodes, snapshot.classes, snapshot.slices):
        if pod.requests.get(found.resource) or found.device_class in classes:
            yield f"{found}; {found.change}"


def _placed(known: Explanation, reasons: tuple[Reason, ...], container: str, other_card: str) -> Explanation:
    """Explains a pod that has a node and does not run there yet.

    Args:
        container: why a container waits, from the pod's status.
        other_card: what to do if the pod waits for a card in another mode; empty for other causes.
    """
    if reasons:
        return replace(known, reasons=reasons, summary=reasons[0].text)
    if cause := container or known.message:
        why = Reason(
            ReasonKind.KUBELET,
            f"{cause} (kubelet of {known.node})",
            "repair the cause that the message names; see also the driver's log on the node"
            if container or not other_card
            else other_card,
            time="" if container else known.message_time,
        )
        return replace(known, reasons=(why,), summary=why.text)
    return replace(
        known,
        state=ExplanationState.SCHEDULED,
        summary=f"it is scheduled to {known.node}, and its containers have not started yet",
    )


def _cluster_message(view: SchedulerView, pod: PodInfo) -> EventCause:
    """Returns the cause that the scheduler or the kubelet reports for the pod; empty if there is none."""
    if not pod.node:
        for condition in (pod.pod.get("status") or {}).get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return EventCause(str(condition.get("message") or condition.get("reason") or ""))
    return cause_of_wait(view, pod) or EventCause("")


def _states(view: SchedulerView, pod: PodInfo) -> Iterator[ClaimState]:
    for entry in entries(pod):
        name = claim_name(pod, entry)
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
    there = (p for p in view.snapshot.pods if p["metadata"]["namespace"] == namespace and not is_finished(p))
    waiting = [p for p in there if f"{namespace}/{name}" in pod_info.read(p).claim_keys]
    notes: tuple[str, ...] = ()
    if waiting:
        notes = (f"pods that name it: {join_names([name_of(p) for p in waiting])}",)
    elif view.snapshot.is_complete(PODS, namespace):
        notes = ("no pod names it: a claim is allocated when a pod that names it is scheduled",)
    pod = pod_info.read(_pod_with(claim))
    reasons = tuple(cluster_reasons.reasons(view, pod))
    known = replace(known, reasons=reasons, notes=notes)
    if reasons:
        return replace(known, summary=reasons[0].text)
    return conclude(view, pod, known, examine_nodes(view, pod, changes=can_try(view)))


def _pod_with(claim: JSON) -> JSON:
    """Returns a pod with this claim and no other requirements, so that only the claim decides which nodes fit.

    If the claim is reserved, the pod has the first consumer's UID.
    """
    meta = {"name": claim["metadata"]["name"], "namespace": claim["metadata"]["namespace"], "uid": "stand-in"}
    reserved = reserved_for(claim)
    meta["uid"] = str(reserved[0]["uid"]) if reserved else meta["uid"]
    entry = {"name": "claim", "resourceClaimName": claim["metadata"]["name"]}
    spec: JSON = {
        "containers": [{"name": "stand-in"}],
        "tolerations": [{"operator": "Exists"}],
        "resourceClaims": [entry],
    }
    if reserved and pod_groups.is_group(reserved[0]):
        spec["schedulingGroup"] = {"podGroupName": reserved[0]["name"]}
    return {"metadata": meta, "spec": spec}


def _with_gaps(view: SchedulerView, found: Explanation) -> Explanation:
    return replace(found, gaps=view.snapshot.gaps, notes=(*found.notes, *view.snapshot.remarks))
