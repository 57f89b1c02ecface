"""Names a rolling update that never ends, because the old pod of a Deployment holds the device that its new pod needs.

A rolling update deletes an old pod only as far as maxUnavailable allows, and otherwise after a new pod is ready. The default of 25 % is
rounded down, so it is 0 for up to three replicas.
"""

from __future__ import annotations

from dataclasses import replace

from dra_devkit.scheduling.framework.claim_cache import reserved_for
from dra_devkit.scheduling.framework.pod_info import PodInfo, is_finished
from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from ..scheduler_view import SchedulerView, name_of
from .model import SuggestedChange
from .placement import devices_in

_HASH = "pod-template-hash"
_RECREATE = '{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}'


def change_for(view: SchedulerView, pod: PodInfo) -> SuggestedChange | None:
    """Returns the change of the Deployment with which its waiting pod would get a device of an old pod; None for other pods."""
    deployment = _deployment(pod.pod)
    old = {
        p["metadata"]["uid"]: p
        for p in (view.snapshot.pods if deployment else ())
        if p["spec"].get("nodeName")
        and not is_finished(p)
        and not p["metadata"].get("deletionTimestamp")
        and p["metadata"]["namespace"] == pod.namespace
        and _deployment(p) == deployment
        and p["metadata"]["labels"][_HASH] != pod.pod["metadata"]["labels"][_HASH]
    }
    users = {c["metadata"]["uid"]: [str(r.get("uid")) for r in reserved_for(c)] for c in view.claims}
    freed = {uid for uid, uids in users.items() if uids and old.keys() >= set(uids)}
    if not freed:
        return None
    after = replace(
        view.snapshot,
        pods=tuple(p for p in view.snapshot.pods if p["metadata"]["uid"] not in old),
        claims=tuple(c for c in view.claims if c["metadata"]["uid"] not in freed),
    )
    if not devices_in(after, pod.pod):
        return None
    holder = old[users[min(freed)][0]]
    text = (
        f"let Deployment {deployment} delete its old pod before the new pod starts: strategy Recreate, or rollingUpdate with maxSurge: 0 "
        f"and maxUnavailable: 1. Pod {name_of(holder)} of the same Deployment holds the device, and a rolling update with "
        "maxUnavailable 0, the default for up to three replicas, keeps it until this pod is ready"
    )
    command = f"kubectl patch deployment {deployment} -n {pod.namespace} --type merge -p '{_RECREATE}'"
    return SuggestedChange(text, 1, str(holder["spec"]["nodeName"]), command)


def _deployment(pod: ReadOnlyJSON) -> str:
    """Returns the name of a pod's Deployment; empty for other pods. Its ReplicaSets have the name of the Deployment and the hash."""
    meta = pod["metadata"]
    suffix = f"-{(meta.get('labels') or {}).get(_HASH)}"
    owners = (o for o in meta.get("ownerReferences") or () if o.get("controller") and o.get("kind") == "ReplicaSet")
    return next((str(o["name"]).removesuffix(suffix) for o in owners if str(o["name"]).endswith(suffix)), "")
