"""Places a pod in a changed cluster, to find out whether a change of several objects would be enough."""

from __future__ import annotations

from dataclasses import replace

from dra_devkit.scheduling.framework import devices as pod_devices
from dra_devkit.scheduling.framework import pod_info
from dra_devkit.scheduling.framework.binding import TIMEOUT
from dra_devkit.scheduling.framework.cycle import Cycle
from dra_devkit.scheduling.framework.status import Rejection, SchedulerError
from dra_kubeletplugin.base.json_types import JSON

from ..scheduler_view import SchedulerView
from ..snapshot import Snapshot


def devices_in(snapshot: Snapshot, pod: JSON) -> list[tuple[str, JSON]] | None:
    """Returns the devices that a pod would get if it had no node yet, each with the name of its claim.

    Empty if no node takes the pod; None if that is not known.
    """
    unset = {"nominatedNodeName", "extendedResourceClaimStatus"}
    status = {k: v for k, v in (pod.get("status") or {}).items() if k not in unset}
    open_pod = {**pod, "spec": {k: v for k, v in pod["spec"].items() if k != "nodeName"}, "status": status}
    others = tuple(p for p in snapshot.pods if p["metadata"]["uid"] != pod["metadata"]["uid"])
    view = SchedulerView(replace(snapshot, pods=others))
    info, cache = pod_info.read(open_pod), view.cache
    wanted = pod_devices.read(info, cache.claims, cache.classes, cache.extended, TIMEOUT)
    if isinstance(wanted, Rejection):
        return None
    try:
        nodes = Cycle(info, cache.snapshot(), wanted, view.allocations()).feasible(1)
    except SchedulerError:
        return None
    offer = wanted.offers.get(nodes[0].name) if nodes else None
    if offer is None:
        return []
    claims = (str(wanted.claims[i]["metadata"]["name"]) for i in offer.indices)
    return [(name, r) for name, a in zip(claims, offer.results, strict=True) for r in a["devices"]["results"]]
