"""Which ResourceClaims a pod has, and whether it may use them. The words are those of the kubelet's claim manager."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import ApiError
from ...kube import KubeClient
from ..informer import CLAIMS, words_of
from .claims import PrepareError

JSON = dict[str, Any]


def claim_names(pod: Mapping[str, Any], statuses: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Name in the pod → ResourceClaim; an entry that needs none is left out. ``statuses``: ``resourceClaimStatuses``.

    Raises :class:`PrepareError` for one that is not made yet.
    """
    out = {}
    made = {s["name"]: s.get("resourceClaimName") for s in statuses}
    for entry in pod["spec"].get("resourceClaims") or []:
        if direct := entry.get("resourceClaimName"):
            out[entry["name"]] = direct
        elif entry["name"] not in made:
            meta = pod["metadata"]
            raise PrepareError(f'pod "{meta["namespace"]}/{meta["name"]}": ResourceClaim not created yet')
        elif name := made[entry["name"]]:
            out[entry["name"]] = name
    return out


async def usable_claims(client: KubeClient, pod: JSON, statuses: Iterable[Mapping[str, Any]]) -> list[JSON]:
    """The pod's claims, allocated and reserved for it. Raises :class:`PrepareError`."""
    statuses = list(statuses)
    names = list(claim_names(pod, statuses).values())
    if special := ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName"):
        names.append(special)
    templates = {s.get("resourceClaimName") for s in statuses}
    return [await _usable(client, pod, name, from_template=name in templates) for name in names]


async def _usable(client: KubeClient, pod: JSON, name: str, *, from_template: bool) -> JSON:
    meta = pod["metadata"]
    try:
        claim = await client.get(CLAIMS, name, meta["namespace"])
    except ApiError as e:
        raise PrepareError(f"fetch ResourceClaim {name}: {words_of(e)}") from None
    owner = next((o for o in claim["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
    if from_template and (owner is None or owner["uid"] != meta["uid"]):
        where = f"{meta['namespace']}/{name}"
        raise PrepareError(
            f"ResourceClaim {where} was not created for pod {meta['namespace']}/{meta['name']} (pod is not owner)"
        )
    status = claim.get("status") or {}
    if not any(r["uid"] == meta["uid"] for r in status.get("reservedFor") or []):
        uid = claim["metadata"]["uid"]
        raise PrepareError(f"pod {meta['name']} ({meta['uid']}) is not allowed to use ResourceClaim {name} ({uid})")
    if status.get("allocation") is None:
        raise PrepareError(f"ResourceClaim {name}: not allocated")
    return claim


__all__ = ["claim_names", "usable_claims"]
