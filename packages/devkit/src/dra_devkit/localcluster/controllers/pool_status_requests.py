"""Processes ResourcePoolStatusRequests (KEP-5677): writes the status of each request once, and deletes old requests.

Source: kube-controller-manager's resourcepoolstatusrequest-controller. Kubernetes looks for old requests every 10 minutes; this
controller deletes a request as soon as it is due.
"""

from __future__ import annotations

import time
from datetime import datetime

from dra_kubeletplugin.base.json_types import JSON, ReadOnlyJSON
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.resource import CLAIMS, SLICES
from dra_kubeletplugin.resourceapi.defaulting import now

from ...kubernetes_releases import Features
from ..informer import Informers
from .base import Controller, Key, RetryLater
from .pool_status import is_incomplete, pool_statuses

MAX_RETRIES = 5
PROCESSED_TTL = 3600.0  # seconds from the end of the calculation to the deletion of the request
PENDING_TTL = 24 * 3600.0  # seconds from the creation of a request without a status to its deletion
_DEFAULT_LIMIT = 100


class PoolStatusRequests(Controller):
    """Reconciles ResourcePoolStatusRequests.

    Args:
        rules: the resource of DeviceTaintRules, if they have an effect.
    """

    name = "resourcepoolstatusrequest-controller"

    def __init__(
        self, client: KubeClient, informers: Informers, requests: Resource, rules: Resource | None, features: Features
    ) -> None:
        super().__init__(client, informers, (requests, SLICES, CLAIMS, *filter(None, (rules,))))
        self._requests = requests
        self._rules = rules
        self._features = features
        self._retries: dict[str, int] = {}  # by UID of a request with an incomplete pool
        self.watch(requests)

    async def reconcile(self, key: Key) -> None:
        request = self.informers.find(self._requests, key.name)
        if request is None:
            return
        uid = request["metadata"]["uid"]
        remaining = _expiry(request) - time.time()
        if remaining <= 0:
            await self.client.delete(self._requests, key.name, uid=uid)
            return
        self.queue.add_after(key, remaining)
        if request.get("status") is not None:
            return
        rules = self.informers.all(self._rules) if self._rules else []
        spec = request["spec"]
        slices, claims = self.informers.all(SLICES), self.informers.all(CLAIMS)
        found = pool_statuses(spec, slices, claims, rules, is_1_36=self._features.release == "1.36")
        pools = found[: spec.get("limit", _DEFAULT_LIMIT)]
        if any(map(is_incomplete, pools)):
            self._retry_incomplete(uid)
            return
        await self.client.update(self._requests, {**request, "status": _status(len(found), pools)}, "status")

    def _retry_incomplete(self, uid: str) -> None:
        """Raises :class:`RetryLater`, because the driver may still be writing slices.

        After the last retry it does nothing: as in Kubernetes, the request then stays without a status until it is changed or deleted.
        """
        retries = self._retries.pop(uid, 0)
        if retries < MAX_RETRIES:
            self._retries[uid] = retries + 1
            raise RetryLater("a pool is incomplete")


def _status(count: int, pools: list[JSON]) -> JSON:
    faulty = sum("validationError" in pool for pool in pools)
    condition = {
        "type": "Complete",
        "status": "True",
        "lastTransitionTime": now(),
        "reason": "CalculationComplete",
        "message": f"Calculated status for {len(pools)} pools" + (f" ({faulty} incomplete)" if faulty else ""),
    }
    return {"poolCount": count, **({"pools": pools} if pools else {}), "conditions": [condition]}


def _expiry(request: ReadOnlyJSON) -> float:
    """Returns the time at which a request is deleted."""
    status = request.get("status")
    if status is None:
        return _seconds(request["metadata"]["creationTimestamp"]) + PENDING_TTL
    ended = [c["lastTransitionTime"] for c in status.get("conditions") or [] if c["type"] in {"Complete", "Failed"}]
    return _seconds((*ended, request["metadata"]["creationTimestamp"])[0]) + PROCESSED_TTL


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
