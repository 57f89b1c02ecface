"""Explains an error that ends the scheduler's search on all nodes, such as a selector that fails for one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dra_devkit.near_names import KnownNames, suggestion
from dra_devkit.scheduling.allocator.faults import (
    ConstraintUnmet,
    PoolInvalid,
    PoolUpdating,
    SelectorFault,
    TooManyDevices,
)
from dra_devkit.scheduling.cel.mentions import mentions
from dra_devkit.scheduling.framework.claim_cache import is_allocated
from dra_devkit.scheduling.framework.devices import PodClaims
from dra_devkit.scheduling.framework.node_info import NodeInfo
from dra_devkit.scheduling.framework.status import SchedulerError
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import did_you_mean

from ..scheduler_view import SchedulerView, named_requests
from . import request_reasons
from .device_reasons import NodeDevices
from .model import Reason, ReasonKind

OpenOn = Callable[[NodeInfo], Sequence[JSON]]
# The kind of the reason, and the change that removes it
_KINDS: dict[type, tuple[ReasonKind, str]] = {
    PoolUpdating: (
        ReasonKind.POOL_INCOMPLETE,
        "the driver has to publish the rest of the pool; a request for all devices waits for it",
    ),
    PoolInvalid: (ReasonKind.POOL_INVALID, "the driver has to publish a pool that does not contradict itself"),
    ConstraintUnmet: (ReasonKind.CONSTRAINT, "remove the constraint from the request for all devices"),
    TooManyDevices: (ReasonKind.TOO_MANY, "use several claims"),
    SelectorFault: (ReasonKind.SELECTOR_ERROR, "repair the cause that the message names"),
}
_OTHER = (ReasonKind.OTHER, "repair the cause that the message names")


def search_error(error: SchedulerError, view: SchedulerView, claims: PodClaims, open_on: OpenOn) -> Reason:
    """Returns the reason for an error.

    Args:
        open_on: returns the claims that would have to be allocated on a node.
    """
    cause = error.__cause__ or error
    message = str(cause)
    kind, change = _KINDS.get(type(cause), _OTHER)
    if kind is ReasonKind.SELECTOR_ERROR and (found := _failing(message, view, open_on)):
        where, fault = found
        message, change = fault.text, f"{fault.change} (seen at {where})"
        if unpublished := _unpublished(view, claims, fault.subject):
            change = f"correct the selector: {unpublished} For devices that come later: {fault.change}"
    return Reason(kind, f"the scheduler ends with an error for all nodes: {message}", change)


def _failing(message: str, view: SchedulerView, open_on: OpenOn) -> request_reasons.Place | None:
    """Returns a device for which the selector in the scheduler's message cannot be evaluated."""
    for node in view.cache.snapshot().nodes:
        devices = NodeDevices(view, node)
        for where, fault in request_reasons.failing(devices, open_on(node), view.cache.classes):
            if fault.subject in message:
                return where, fault
    return None


def _unpublished(view: SchedulerView, claims: PodClaims, error: str) -> str:
    """Returns a sentence if no device of the cluster has the key that the selector lacks, because the name is probably wrong."""
    names = KnownNames(view.snapshot.slices).names
    requests = [one for c in claims.claims if not is_allocated(c) for _, one in named_requests(c["spec"])]
    specs = [*requests, *(view.cache.classes[one["deviceClassName"]]["spec"] for one in requests)]
    for expression in (s["cel"]["expression"] for spec in specs for s in spec.get("selectors") or []):
        for kind, domain, name in mentions(expression):
            of_domain = names.get(domain, {}).get(kind, set())
            if name and name not in of_domain and error.endswith(f": {name}"):
                hint = did_you_mean(name, of_domain) if domain in names else suggestion(domain, names)
                return f'no device of the cluster has {name} in device.{kind}["{domain}"]{hint or "."}'
    return ""
