"""Finds the ResourceClaims of a pod and checks that the pod may use them. The error texts are those of a real kubelet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import CLAIMS

from ...scheduling.framework import pod_groups
from ...scheduling.framework.claim_cache import is_allocated, reserved_for
from ..informer import pod_claim_names, server_message
from .claims import PrepareError


def claim_names(pod: Mapping[str, Any], statuses: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the names of the ResourceClaims of a pod, by the name in ``spec.resourceClaims``. Leaves out entries that need no claim.

    Args:
        statuses: the ``resourceClaimStatuses`` of the pod.

    Raises:
        PrepareError: a claim is not created yet.
    """
    names = pod_claim_names({**pod, "status": {"resourceClaimStatuses": list(statuses)}})
    if None in names.values():
        meta = pod["metadata"]
        raise PrepareError(f'pod "{meta["namespace"]}/{meta["name"]}": ResourceClaim not created yet')
    return {entry: name for entry, name in names.items() if name}


async def usable_claims(
    client: KubeClient, pod: JSON, statuses: Iterable[Mapping[str, Any]], *, groups: bool
) -> list[JSON]:
    """Gets the pod's claims and checks that each is allocated and reserved for the pod.

    Args:
        statuses: the ``resourceClaimStatuses`` of the pod.
        groups: whether claims that are reserved for the pod's PodGroup are also accepted.

    Raises:
        PrepareError: a claim cannot be used.
    """
    statuses = list(statuses)
    names = list(claim_names(pod, statuses).values())
    if special := ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName"):
        names.append(special)
    templates = {s.get("resourceClaimName") for s in statuses}
    alone = pod if groups else {**pod, "spec": {k: v for k, v in pod["spec"].items() if k != "schedulingGroup"}}
    return [await _usable(client, alone, name, from_template=name in templates) for name in names]


async def _usable(client: KubeClient, pod: JSON, name: str, *, from_template: bool) -> JSON:
    meta = pod["metadata"]
    try:
        claim = await client.get(CLAIMS, name, meta["namespace"])
    except ApiError as e:
        raise PrepareError(f"fetch ResourceClaim {name}: {server_message(e)}") from None
    if from_template and not pod_groups.made_for(claim, pod):
        group = pod_groups.name_of(pod)
        why = f"neither Pod nor PodGroup {group} is the owner" if group else "pod is not owner"
        where, who = f"{meta['namespace']}/{name}", f"{'Pod' if group else 'pod'} {meta['namespace']}/{meta['name']}"
        raise PrepareError(f"ResourceClaim {where} was not created for {who} ({why})")
    if not any(pod_groups.is_for(r, pod) for r in reserved_for(claim)):
        uid = claim["metadata"]["uid"]
        raise PrepareError(f"pod {meta['name']} ({meta['uid']}) is not allowed to use ResourceClaim {name} ({uid})")
    if not is_allocated(claim):
        raise PrepareError(f"ResourceClaim {name}: not allocated")
    return claim
