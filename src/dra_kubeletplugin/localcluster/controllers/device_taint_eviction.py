"""Device taints with effect NoExecute: pods whose claims have such a device are deleted, at once or when their tolerance ends.

Source: KEP-5055; kube-controller-manager's devicetainteviction controller. Rules (DeviceTaintRule) count where the release follows
them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar

from ...kube import KubeClient, Resource
from ...kube.resource import CLAIMS, PODS, SLICES
from ...scheduling.allocator.taints import tolerates
from ...scheduling.framework import pod_groups
from ...scheduling.framework.device_taint_rules import taints_of
from ..informer import Informers, ObjectChange, is_finished, pod_claim_names
from .base import Controller, Key, key_of
from .disruption import Cause, evict

JSON = dict[str, Any]
Device = tuple[str, str, str]  # driver, pool, device
_NO_EXECUTE = "NoExecute"
_WHY = Cause("DeletionByDeviceTaintManager", "Device Taint manager: deleting due to NoExecute taint")


class DeviceTaintEviction(Controller):
    """One key a pod."""

    name = "device-taint-eviction-controller"
    kinds: ClassVar = {PODS: "Pod"}

    def __init__(self, client: KubeClient, informers: Informers, rules: Resource | None) -> None:
        super().__init__(client, informers, (PODS, CLAIMS, SLICES))
        self._rules = rules
        self._due: dict[str, float] = {}  # UIDs of pods that are to go, and when
        self._seen: dict[tuple[Device, str, str], float] = {}  # when a taint without a time was seen first
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
                self._look_at_consumers(claim)

    def _slice_changed(self, change: ObjectChange) -> None:
        versions = [s for s in (change.object, change.before) if s is not None]
        for device in {d for s in versions for d in _tainted(s)}:
            for claim in self.informers.by(CLAIMS, "devices", device):
                self._look_at_consumers(claim)

    def _rules_changed(self) -> None:
        for claim in self.informers.all(CLAIMS):
            self._look_at_consumers(claim)

    def _look_at_consumers(self, claim: JSON) -> None:
        namespace = claim["metadata"]["namespace"]
        for reserved in (claim.get("status") or {}).get("reservedFor") or []:
            if reserved["resource"] == "pods":
                self.queue.add(Key(PODS, namespace, reserved["name"]))
            elif pod_groups.is_group(reserved):
                for pod in self.informers.by(PODS, "group", (namespace, reserved["name"])):
                    self.queue.add(key_of(PODS, pod))

    async def reconcile(self, key: Key) -> None:
        pod = self.informers.find(PODS, key.name, key.namespace)
        if pod is None or pod["metadata"].get("deletionTimestamp") or is_finished(pod):
            if pod is not None:
                self._due.pop(pod["metadata"]["uid"], None)
            return
        uid = pod["metadata"]["uid"]
        due = min(self._times(pod), default=None)
        if due is None:
            if self._due.pop(uid, None) is not None:
                self.events.event(pod, "Pod", "Normal", "DeviceTaintManagerEviction", "Cancelling deletion")
            return
        left = due - time.time()
        if left > 0:
            self._due[uid] = due
            self.queue.add_after(key, left)
            return
        if self._due.get(uid) != 0.0:
            self._due[uid] = 0.0  # told once, however often the deletion has to be tried
            self.events.event(pod, "Pod", "Normal", "DeviceTaintManagerEviction", "Marking for deletion")
        await evict(self.client, pod, _WHY)
        self._due.pop(uid, None)

    def _claims(self, pod: JSON) -> Iterable[JSON]:
        """Those that are reserved for the pod, and those of its group that it names."""
        yield from self.informers.by(CLAIMS, "consumers", pod["metadata"]["uid"])
        named = set(pod_claim_names(pod).values())
        for group in pod_groups.key_of(pod):
            yield from (c for c in self.informers.by(CLAIMS, "consumers", group) if c["metadata"]["name"] in named)

    def _times(self, pod: JSON) -> Iterable[float]:
        """When the pod has to go, for each taint of each device that it uses."""
        for claim in self._claims(pod):
            for result in claim["status"]["allocation"]["devices"].get("results") or []:
                device = (result["driver"], result["pool"], result["device"])
                for taint in self._taints(device):
                    since = self._since(device, taint)
                    tolerance = _tolerance(taint, result.get("tolerations") or [])
                    if tolerance is not None:
                        yield since + tolerance

    def _taints(self, device: Device) -> list[JSON]:
        """The taints of a device, by its slice and by rules, that its pods have to bear."""
        by_rules = taints_of(self.informers.all(self._rules), *device) if self._rules else []
        return [dict(t) for t in (*self._own_taints(device), *by_rules) if t.get("effect") == _NO_EXECUTE]

    def _own_taints(self, device: Device) -> list[JSON]:
        slices = self.informers.by(SLICES, "pool", device[:2])
        newest = max((s["spec"]["pool"]["generation"] for s in slices), default=0)
        for found in slices:
            if found["spec"]["pool"]["generation"] == newest:
                for entry in found["spec"].get("devices") or []:
                    if entry["name"] == device[2]:
                        return list(entry.get("taints") or [])
        return []

    def _since(self, device: Device, taint: Mapping[str, Any]) -> float:
        if added := taint.get("timeAdded"):
            return datetime.fromisoformat(added).timestamp()
        return self._seen.setdefault((device, taint["key"], taint.get("value", "")), time.time())


def _tolerance(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> float | None:
    """Seconds for which a taint is tolerated; None for ever, 0 not at all."""
    matching = [t for t in tolerations if tolerates(t, taint)]
    if not matching:
        return 0.0
    seconds = [max(0.0, float(t["tolerationSeconds"])) for t in matching if t.get("tolerationSeconds") is not None]
    return min(seconds, default=None)


def _devices_of(claim: JSON) -> Iterable[Device]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or []:
        yield result["driver"], result["pool"], result["device"]


def _consumers_of(claim: JSON) -> Iterable[str | tuple[str, str]]:
    """UIDs of pods; namespace and name of groups."""
    status = claim.get("status") or {}
    if status.get("allocation") is None:
        return []
    namespace = claim["metadata"]["namespace"]
    return [(namespace, r["name"]) if pod_groups.is_group(r) else r["uid"] for r in status.get("reservedFor") or []]


def _pool_of(found: JSON) -> Iterable[tuple[str, str]]:
    """Raises where the slice is malformed: it has no place among others then."""
    spec = found["spec"]
    names = [device["name"] for device in spec.get("devices") or []]
    if not isinstance(spec["pool"]["generation"], int) or not all(isinstance(n, str) for n in names):
        raise TypeError("no slice")
    for device in spec.get("devices") or []:
        for taint in device.get("taints") or []:
            taint.get("effect")
    return [(spec["driver"], spec["pool"]["name"])]


def _tainted(found: JSON) -> Iterable[Device]:
    spec = found["spec"]
    for device in spec.get("devices") or []:
        if any(t.get("effect") == _NO_EXECUTE for t in device.get("taints") or []):
            yield spec["driver"], spec["pool"]["name"], device["name"]


__all__ = ["DeviceTaintEviction"]
