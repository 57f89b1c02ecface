"""Decides whether objects that could not be read may change the result of a pod on nodes.

The scheduler view replaces unread nodes and classes: by a node without taints and labels for each node name in slices, and by a class
that selects every device. So most unread objects can only make a node refuse the pod. This module finds the exceptions.
"""

from __future__ import annotations

from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_kubeletplugin.kube.resource import (
    CLAIMS,
    CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    SLICES,
    TAINT_RULES,
)

from ..scheduler_view import SchedulerView, named_requests
from ..waiting_pods import extended_requests
from .cluster_reasons import open_claims
from .model import Explanation

DECIDING = {r.plural for r in (CLAIMS, CLASSES, NODES, PODS, SLICES, TAINT_RULES)}
"""The kinds that decide which nodes take a pod. Namespaces are not among them, because few pods need their labels."""


def can_try(view: SchedulerView) -> bool:
    """Returns whether changes can be tried: all objects that decide the result of a trial were read."""
    return not view.snapshot.incomplete & DECIDING


def may_not_fit(view: SchedulerView, pod: PodInfo) -> bool:
    """Returns whether a node that would take the pod may refuse it because of unread objects."""
    return not can_try(view) or _needs_unread_namespaces(view, pod)


def may_fit(view: SchedulerView, pod: PodInfo, known: Explanation) -> bool:
    """Returns whether a node may take the pod because of unread objects, although every known node refuses it.

    Args:
        known: the reasons of the nodes.
    """
    unread = view.snapshot.incomplete
    if SLICES.plural in unread or _needs_unread_namespaces(view, pod):
        return True
    if PODS.plural in unread and any(pod.terms("podAffinity")):
        return True
    if NODES.plural in unread:
        # Only if slices name their nodes, the substitutes are all nodes with devices. They lack the labels of the nodes.
        of_named_nodes = all(s["spec"].get("nodeName") for s in view.snapshot.slices)
        if known.reasons or not of_named_nodes or not known.groups or any(g.reasons for g in known.groups):
            return True
    if CLASSES.plural not in unread:
        return False
    # A class that selects every device makes a request for all devices larger, and its requests see devices of other classes.
    requests = [one for claim in open_claims(view, pod) for _, one in named_requests(claim["spec"])]
    is_larger = any(one.get("allocationMode") == "All" for one in requests)
    return bool(known.reasons) or is_larger or any(name not in view.cache.extended for name in extended_requests(pod))


def _needs_unread_namespaces(view: SchedulerView, pod: PodInfo) -> bool:
    """Returns whether the pod needs the labels of a namespace that was not read."""
    requests = (one for claim in open_claims(view, pod) for _, one in named_requests(claim["spec"]))
    is_complete = view.snapshot.is_complete(NAMESPACES)
    is_absent = pod.namespace not in view.namespaces and bool(view.namespaces or not is_complete)
    if is_absent and any(one.get("adminAccess") for one in requests):
        return True
    return not is_complete and any(
        "namespaceSelector" in term for kind in ("podAffinity", "podAntiAffinity") for term in pod.terms(kind)
    )
