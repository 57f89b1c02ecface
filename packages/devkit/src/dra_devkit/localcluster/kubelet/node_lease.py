"""Renews the Lease of a kubelet, which shows that the kubelet runs. Source: KEP-589, k8s.io/component-helpers, apimachinery/lease."""

from __future__ import annotations

import asyncio
import logging

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.kube.leader_election import now_exactly
from dra_kubeletplugin.kube.resource import LEASES, NODES

from .node import mark_ready

log = logging.getLogger(__name__)
NAMESPACE = "kube-node-lease"
_DURATION = 40  # seconds


async def renew_lease(client: KubeClient, node: str, every: float) -> None:
    """Renews the node's Lease every ``every`` seconds, also after errors of the API server. Never returns."""
    while True:
        try:
            await _renew(client, node)
            await mark_ready(client, node)
        except ApiError as e:
            log.debug("kubelet: cannot renew the node's lease: %s", e, extra={"node": node})
        await asyncio.sleep(every)


async def _renew(client: KubeClient, node: str) -> None:
    """Raises ``ApiError``."""
    spec = {"holderIdentity": node, "leaseDurationSeconds": _DURATION, "renewTime": now_exactly()}
    try:
        await client.patch(LEASES, node, {"spec": spec}, NAMESPACE)
    except NotFoundError:
        # With the owner reference, Kubernetes deletes the Lease together with the Node.
        uid = (await client.get(NODES, node))["metadata"]["uid"]
        meta: JSON = {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}], "name": node}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        await client.create(LEASES, body, NAMESPACE)
