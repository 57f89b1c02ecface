"""Decides which pods wait for devices: one rule for the list of `dra explain`, for `dra top` and for the page of `dra dev`."""

from __future__ import annotations

from collections.abc import Iterator

from dra_devkit.scheduling.framework import pod_info
from dra_devkit.scheduling.framework.pod_info import PodInfo, is_extended
from dra_kubeletplugin.base.json_types import JSON, ReadOnlyJSON
from dra_kubeletplugin.errors import describe

from .snapshot import Snapshot

_WAITS = {"", "Pending"}
_MALFORMED = (TypeError, KeyError, ValueError, AttributeError)


def asks(pod: PodInfo) -> bool:
    """Returns whether a pod asks for devices: it has claims, or requests an extended resource, which a device may provide."""
    return bool(entries(pod)) or any(extended_requests(pod))


def extended_requests(pod: PodInfo) -> Iterator[str]:
    """Yields the names of the extended resources that a pod requests."""
    return (name for name, amount in sorted(pod.requests.items()) if amount and is_extended(name))


def is_reported_in_events(pod: PodInfo) -> bool:
    """Returns whether the reason why a pod waits may be only in Events: of its kubelet, or of a claim that cannot be created."""
    return bool(pod.node) or waits_for_claims(pod)


def waits_for_claims(pod: PodInfo) -> bool:
    """Returns whether a claim of the pod is not created from its template yet."""
    made = claims_made(pod)
    return any(e.get("resourceClaimTemplateName") and e["name"] not in made for e in entries(pod))


def entries(pod: PodInfo) -> list[JSON]:
    return list(pod.spec.get("resourceClaims") or [])


def claims_made(pod: PodInfo) -> dict[str, str]:
    """Returns the entries for which the claim controller has made a claim, with its name; an empty name if it made none on purpose."""
    made = (pod.pod.get("status") or {}).get("resourceClaimStatuses") or []
    return {str(s["name"]): str(s.get("resourceClaimName") or "") for s in made}


def claim_name(pod: PodInfo, entry: ReadOnlyJSON) -> str:
    """Returns the name of the claim for an entry of the pod; empty if none was created."""
    return str(entry.get("resourceClaimName") or claims_made(pod).get(str(entry["name"]), ""))


def waiting_pods(snapshot: Snapshot, namespace: str = "", notes: list[str] | None = None) -> list[PodInfo]:
    """Returns the pods that ask for devices and whose containers have not started, oldest first.

    Pods with a node are included, because the driver may not have prepared their devices yet. Pods that are being deleted
    are not included.

    Args:
        namespace: the namespace of the pods; empty for all.
        notes: gets a sentence for each pod that cannot be read.
    """
    found = []
    for obj in snapshot.pods:
        if str((obj.get("status") or {}).get("phase") or "") not in _WAITS:
            continue
        if namespace not in {"", obj["metadata"]["namespace"]}:
            continue
        try:
            pod = pod_info.read(obj)
            if asks(pod) and not pod.terminating:
                found.append(pod)
        except _MALFORMED as e:
            if notes is not None:
                meta = obj["metadata"]
                notes.append(f"pod {meta['namespace']}/{meta['name']} cannot be read, and is left out: {describe(e)}")
    return sorted(found, key=lambda p: (p.created, p.namespace, p.name))
