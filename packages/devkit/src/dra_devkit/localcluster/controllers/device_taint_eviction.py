"""Evicts pods whose devices have a NoExecute taint: at once, or when the claim's toleration ends.

Source: KEP-5055; kube-controller-manager's devicetainteviction controller. DeviceTaintRules apply if the release supports them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.resource import CLAIMS, PODS, SLICES
from dra_kubeletplugin.resourceapi.allocation import results_of

from ...generations import generation_of, newest
from ...scheduling.allocator.taints import tolerates
from ...scheduling.framework import pod_groups
from ...scheduling.framework.claim_cache import is_allocated, reserved_for
from ...scheduling.framework.device_taint_rules import taints_of
from ...scheduling.framework.pod_info import is_finished
from ..informer import Informers, ObjectChange, pod_claim_names
from .base import Controller, Key, key_of
from .disruption import Cause, evict

Device = tuple[str, str, str]  # driver, pool, device
_NO_EXECUTE = "NoExecute"
_CAUSE = Cause("DeletionByDeviceTaintManager", "Device Taint manager: deleting due to NoExecute taint")


class DeviceTaintEviction(Controller):
    """Reconciles pods."""

    name = "device-taint-eviction-controller"

    def __init__(self, client: KubeClient, informers: Informers, rules: Resource | None) -> None:
        super().__init__(client, informers, (PODS, CLAIMS, SLICES))
        self._rules = rules
        # By UID of a pod: the time of its deletion; 0.0 after the deletion has begun
        self._deletion_times: dict[str, float] = {}
        self._first_seen: dict[tuple[Device, str, str], float] = {}  # when a taint without timeAdded was first seen
        informers.index(CLAIMS, "devices", _devices_of)
        informers.index(CLAIMS, "consumers", _consumers_of)
        informers.index(PODS, "group", pod_groups.key_of)
        informers.index(SLICES, "pool", _pool_of)
        self.watch(PODS)
        self.watch(CLAIMS, self._claim_changed)
        self.watch(SLICES, self._slice_changed)
        if rules:
            self.watch(rules, lambda _: self._rules_changed())

    def _claim_changed(self, change: ObjectChange) -> None:
        for claim in (change.object, change.before):
            if claim is not None:
                self._queue_consumers(claim)

    def _slice_changed(self, change: ObjectChange) -> None:
        versions = [s for s in (change.object, change.before) if s is not None]
        for device in {d for s in versions for d in _tainted(s)}:
            for claim in self.informers.by(CLAIMS, "devices", device):
                self._queue_consumers(claim)

    def _rules_changed(self) -> None:
        for claim in self.informers.all(CLAIMS):
            self._queue_consumers(claim)

    def _queue_consumers(self, claim: JSON) -> None:
        namespace = claim["metadata"]["namespace"]
        for reserved in reserved_for(claim):
            if reserved["resource"] == "pods":
                self.queue.add(Key(PODS, namespace, reserved["name"]))
            elif pod_groups.is_group(reserved):
                for pod in self.informers.by(PODS, "group", (namespace, reserved["name"])):
                    self.queue.add(key_of(PODS, pod))

    async def reconcile(self, key: Key) -> None:
        pod = self.informers.find(PODS, key.name, key.namespace)
        if pod is None or pod["metadata"].get("deletionTimestamp") or is_finished(pod):
            if pod is not None:
                self._deletion_times.pop(pod["metadata"]["uid"], None)
            return
        uid = pod["metadata"]["uid"]
        due = min(self._times_of(pod), default=None)
        if due is None:
            if self._deletion_times.pop(uid, None) is not None:
                self.record_event(pod, PODS, "Normal", "DeviceTaintManagerEviction", "Cancelling deletion")
            return
        remaining = due - time.time()
        if remaining > 0:
            self._deletion_times[uid] = due
            self.queue.add_after(key, remaining)
            return
        if self._deletion_times.get(uid) != 0.0:
            self._deletion_times[uid] = 0.0  # A repeated deletion must not send the event again.
            self.record_event(pod, PODS, "Normal", "DeviceTaintManagerEviction", "Marking for deletion")
        await evict(self.client, pod, _CAUSE)
        self._deletion_times.pop(uid, None)

    def _claims(self, pod: JSON) -> Iterable[JSON]:
        """Yields the claims that are reserved for the pod, and the claims reserved for its group that the pod uses."""
        yield from self.informers.by(CLAIMS, "consumers", pod["metadata"]["uid"])
        named = set(pod_claim_names(pod).values())
        for group in pod_groups.key_of(pod):
            yield from (c for c in self.informers.by(CLAIMS, "consumers", group) if c["metadata"]["name"] in named)

    def _times_of(self, pod: JSON) -> Iterable[float]:
        """Yields a deletion time for each taint of the pod's devices that is not tolerated, or only for some time."""
        for claim in self._claims(pod):
            for result in results_of(claim):
                device = (result["driver"], result["pool"], result["device"])
                for taint in self._taints(device):
                    since = self._since(device, taint)
                    tolerance = _tolerance(taint, result.get("tolerations") or [])
                    if tolerance is not None:
                        yield since + tolerance

    def _taints(self, device: Device) -> list[JSON]:
        """Returns a device's NoExecute taints from its slice and from rules."""
        by_rules = taints_of(self.informers.all(self._rules), *device) if self._rules else []
        return [dict(t) for t in (*self._own_taints(device), *by_rules) if t.get("effect") == _NO_EXECUTE]

    def _own_taints(self, device: Device) -> list[JSON]:
        for found in newest(self.informers.by(SLICES, "pool", device[:2]), generation_of):
            for entry in found["spec"].get("devices") or []:
                if entry["name"] == device[2]:
                    return list(entry.get("taints") or [])
        return []

    def _since(self, device: Device, taint: Mapping[str, Any]) -> float:
        if added := taint.get("timeAdded"):
            return datetime.fromisoformat(added).timestamp()
        return self._first_seen.setdefault((device, taint["key"], taint.get("value", "")), time.time())


def _tolerance(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> float | None:
    """Returns the seconds for which a taint is tolerated: None if without limit, 0 if it is not tolerated."""
    matching = [t for t in tolerations if tolerates(t, taint)]
    if not matching:
        return 0.0
    seconds = [max(0.0, float(t["tolerationSeconds"])) for t in matching if t.get("tolerationSeconds") is not None]
    return min(seconds, default=None)


def _devices_of(claim: JSON) -> Iterable[Device]:
    for result in results_of(claim):
        yield result["driver"], result["pool"], result["device"]


def _consumers_of(claim: JSON) -> Iterable[str | tuple[str, str]]:
    """The index ``consumers``: UIDs of pods; namespace and name of groups."""
    if not is_allocated(claim):
        return []
    namespace = claim["metadata"]["namespace"]
    return [(namespace, r["name"]) if pod_groups.is_group(r) else r["uid"] for r in reserved_for(claim)]


def _pool_of(found: JSON) -> Iterable[tuple[str, str]]:
    """The index ``pool``. Raises for a malformed slice, which is then left out of the index."""
    spec = found["spec"]
    names = [device["name"] for device in spec.get("devices") or []]
    if not isinstance(spec["pool"]["generation"], int) or not all(isinstance(n, str) for n in names):
        raise TypeError("the object is not a valid ResourceSlice")
    for device in spec.get("devices") or []:
        for taint in device.get("taints") or []:
            taint.get("effect")
    return [(spec["driver"], spec["pool"]["name"])]


def _tainted(found: JSON) -> Iterable[Device]:
    spec = found["spec"]
    for device in spec.get("devices") or []:
        if any(t.get("effect") == _NO_EXECUTE for t in device.get("taints") or []):
            yield spec["driver"], spec["pool"]["name"], device["name"]
