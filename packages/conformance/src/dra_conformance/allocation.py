"""Allocates devices of the driver's slices to claims, with the scheduler's allocator. It supports shared devices and counters."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dra_devkit.generations import generation_of, key_of, newest_by_pool
from dra_devkit.scheduling.allocator.faults import AllocationError
from dra_devkit.scheduling.allocator.pools import AllocatorPool, gather
from dra_devkit.scheduling.allocator.results import allocation_result
from dra_devkit.scheduling.allocator.search import Search, SearchState
from dra_devkit.scheduling.framework.claim_cache import taken_by
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.allocation import results_of

from .catalogue import CheckSkipped

REQUEST = "device"
_CLASS = "conformance"
_TIME_LIMIT = 10.0  # seconds


def pools_of(slices: Sequence[Mapping[str, Any]], node: Mapping[str, Any]) -> list[AllocatorPool]:
    """Returns the pools that the slices form on the node."""

    def of_pool(key: tuple[str, str]) -> list[Mapping[str, Any]]:
        return [s for s in slices if key_of(s) == key]

    return gather(slices, node, of_pool)


def pool_faults(slices: Sequence[Mapping[str, Any]], node: Mapping[str, Any]) -> list[str]:
    """Returns the faults of pools that readers do not treat as incomplete: too many slices of one generation, or invalid content."""
    out = []
    for (_, name), current in sorted(newest_by_pool(slices).items()):
        count = min(s["spec"]["pool"]["resourceSliceCount"] for s in current)
        if len(current) > count:
            number = f"{len(current)} slices of generation {generation_of(current[0])}"
            out.append(f"pool {name} has {number}, but its resourceSliceCount is {count}")
    return out + [f"pool {p.name} is invalid: {p.invalid}" for p in pools_of(slices, node) if p.invalid]


def why_no_device(driver: str, slices: Sequence[Mapping[str, Any]], node: Mapping[str, Any]) -> str:
    """Returns why a claim cannot get a device of the driver on the node."""
    name = node["metadata"]["name"]
    pools = pools_of(slices, node)
    faults = [
        f"pool {p.name} is {f'invalid: {p.invalid}' if p.invalid else f'incomplete: {_found_slices(slices, p)}'}"
        for p in pools
        if p.invalid or p.incomplete
    ]
    nodes = sorted({s["spec"].get("nodeName", "") for s in slices} - {"", name})
    if not slices:
        why = f"no ResourceSlice has the driver {driver}"
    elif faults:
        why = "; ".join(faults)
    elif nodes:
        why = f"its slices are for the node {', '.join(nodes)}, but NODE_NAME is {name}"
    else:
        why = f"its {len(slices)} slices have no device for the node {name}"
    return f"the driver publishes no usable device: {why}"


def _found_slices(slices: Sequence[Mapping[str, Any]], pool: AllocatorPool) -> str:
    """Returns how many slices of its newest generation a pool has."""
    current = newest_by_pool(slices)[pool.key]
    wanted = current[0]["spec"]["pool"]["resourceSliceCount"]
    return f"it has {len(current)} of {wanted} slices of generation {generation_of(current[0])}"


def allocate(
    driver: str,
    slices: Sequence[Mapping[str, Any]],
    node: Mapping[str, Any],
    held: Iterable[Mapping[str, Any]],
    claim: Mapping[str, Any],
) -> JSON:
    """Allocates devices for a claim.

    Args:
        held: the claims that have an allocation.

    Returns:
        The value of ``status.allocation``.

    Raises :class:`CheckSkipped` if no device is free.
    """
    classes = {_CLASS: _class(driver)}
    use = taken_by([r for c in held for r in results_of(c)])
    shares = {device: dict(amounts) for device, amounts in use.shares.items()}
    state = SearchState(classes, set(use.devices), shares, lambda: str(uuid.uuid4()), _TIME_LIMIT)
    search = Search(state, pools_of(slices, node), [claim])
    try:
        found = search.run()
    except AllocationError as e:
        raise CheckSkipped(f"no claim can be allocated: {e}") from None
    if not found:
        count = len(claim["spec"]["devices"]["requests"])
        raise CheckSkipped(f"the driver publishes too few free devices for this check: it needs {count} more")
    return allocation_result(node, claim, search.picks[0], classes, state.behavior)


def _class(driver: str) -> JSON:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {"metadata": {"name": _CLASS}, "spec": {"selectors": [selector]}}


def claim_spec(requests: Sequence[str], driver: str, parameters: Mapping[str, Any] | None) -> JSON:
    """Returns the spec of a claim.

    Args:
        requests: names of requests for one device each; ``NAME/ALTERNATIVE`` is a request with one alternative.
        parameters: opaque parameters for the driver.
    """
    devices: JSON = {"requests": [_request(name) for name in requests]}
    if parameters is not None:
        devices["config"] = [{"opaque": {"driver": driver, "parameters": dict(parameters)}}]
    return {"devices": devices}


def _request(name: str) -> JSON:
    base, _, alternative = name.partition("/")
    device: JSON = {"deviceClassName": _CLASS, "allocationMode": "ExactCount", "count": 1}
    device["tolerations"] = [{"operator": "Exists"}]
    if alternative:
        return {"name": base, "firstAvailable": [{"name": alternative, **device}]}
    return {"name": base, "exactly": device}
