"""Names a free card for a placed pod whose card has other shared state, such as another firmware or mode.

The scheduler does not know shared steps of drivers, and a pod that has a node does not move. So the pod waits until the other claims of
its card end, although other cards may be free.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from dra_devkit.scheduling.allocator.pools import DeviceId
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import join_names
from dra_kubeletplugin.errors import SharedStepError
from dra_kubeletplugin.resourceapi.allocation import results_of

from ..scheduler_view import SchedulerView
from . import cluster_reasons
from .placement import devices_in

_KEY = re.compile(r"the shared step \S+ of (?P<key>.+?) is set up for claim ")
_Card = tuple[str, str, str]
"""Driver, pool, and a counter set or the value of the attribute that identifies cards."""


def change_for(view: SchedulerView, pod: PodInfo, message: str) -> str:
    """Returns which free card would do and how the pod gets it; empty if the message is not about shared state of a card."""
    key = _KEY.search(message)
    if f"[{SharedStepError.code}]" not in message or key is None:
        return ""

    free = _free_devices(view, pod, cluster_reasons.claims_of(view, pod), key["key"])
    if free == []:
        return "wait until the pods of that claim have stopped, or delete them; no other free card would do"
    named = [str(e["resourceClaimName"]) for e in pod.spec.get("resourceClaims") or [] if e.get("resourceClaimName")]
    also = f" and claim {join_names(named)}" if named else ""
    would_do = f". {join_names(free)} would do: its card is free" if free else ""
    return f"delete the pod{also}, and create it again: it does not move to another card by itself{would_do}"


def _free_devices(view: SchedulerView, pod: PodInfo, claims: list[JSON], key: str) -> list[str] | None:
    """Returns the devices that the pod would get if only cards without a holder were there.

    Empty if they do not suffice; None if that is not known.
    """
    devices = {
        DeviceId(s["spec"]["driver"], s["spec"]["pool"]["name"], d["name"]): d
        for s in view.snapshot.tainted_slices
        for d in s["spec"].get("devices") or []
    }
    own = {str(c["metadata"]["uid"]) for c in claims}
    waits_for = [DeviceId(r["driver"], r["pool"], r["device"]) for c in claims for r in results_of(c)]
    if not waits_for:
        return None
    identifying = {n for i in waits_for if i in devices for n, v in _attributes(devices[i]) if v.lower() == key.lower()}
    used = {card for i, d in devices.items() if i in waits_for or view.holders(i) for card in _cards(i, d, identifying)}
    slices = []
    for s in view.snapshot.slices:
        driver, pool = s["spec"]["driver"], s["spec"]["pool"]["name"]
        left = [
            d
            for d in s["spec"].get("devices") or []
            if used.isdisjoint(_cards(DeviceId(driver, pool, d["name"]), d, identifying))
        ]
        slices.append({**s, "spec": {**s["spec"], "devices": left}} if "devices" in s["spec"] else s)
    open_claims = tuple(_open(c) if str(c["metadata"]["uid"]) in own else c for c in view.claims)
    return devices_in(replace(view.snapshot, slices=tuple(slices), claims=open_claims), pod.pod)


def _open(claim: JSON) -> JSON:
    return {k: v for k, v in claim.items() if k != "status"}


def _attributes(device: JSON) -> Iterator[tuple[str, str]]:
    for name, value in (device.get("attributes") or {}).items():
        if "string" in value:
            yield name, str(value["string"])


def _cards(device: DeviceId, found: JSON, identifying: set[str]) -> set[_Card]:
    """Returns the device itself, its counter sets, and its values of attributes that identify cards."""
    parts = [device.device, *(c["counterSet"] for c in found.get("consumesCounters") or [])]
    parts += [value for name, value in _attributes(found) if name in identifying]
    return {(device.driver, device.pool, str(part)) for part in parts}
