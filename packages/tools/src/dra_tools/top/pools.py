"""Counts devices by pool, as `dra top` does and as the control plane does (ResourcePoolStatusRequest, KEP-5677).

The control plane counts only for a request object. So this module creates one for each driver, and deletes it after it was read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dra_kubeletplugin.base.json_types import JSON, ReadOnlyJSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.errors import ForbiddenError, NotFoundError
from dra_kubeletplugin.kube.resource import POOL_STATUS_REQUESTS
from dra_kubeletplugin.resourceapi.conversion import GROUP

from ..reader import served_as
from ..usage.rows import CapacityCount, DeviceRow, DeviceUse, PartitionCount, PoolCount, PoolRow, counted

WAIT = 20.0  # seconds until the status of all requests
_MAX_POOLS = 1000  # the largest limit of a request
_KIND = "ResourcePoolStatusRequest"
_NAME = f"{POOL_STATUS_REQUESTS.plural}.{GROUP}"
_NOT_COUNTED = "the pools show only what dra top counts itself"
PoolKey = tuple[str, str]  # driver, pool


@dataclass
class PoolCounts:
    """What the control plane counted.

    Attributes:
        found: the status of each pool.
        gaps: a sentence for each driver or reason that left pools without a status.
    """

    found: dict[PoolKey, ReadOnlyJSON] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)


async def count_pools(client: KubeClient, drivers: Iterable[str], wait: float = WAIT) -> PoolCounts:
    """Creates a request for each driver, reads the statuses and deletes the requests, also if the caller is cancelled.

    Args:
        wait: seconds until the last status.

    Raises:
        ApiError: the API server failed or could not be reached.
    """
    out = PoolCounts()
    resource = await served_as(client, POOL_STATUS_REQUESTS)
    if resource is None:
        out.gaps.append(
            f"this cluster does not serve {_NAME}: {_NOT_COUNTED}; Kubernetes 1.36 and later serve it with the feature gate "
            "DRAResourcePoolStatus and the API server's option --runtime-config=resource.k8s.io/v1alpha3=true"
        )
        return out
    names: dict[str, str] = {}  # of the requests, by driver
    try:
        for driver in sorted(set(drivers)):
            # The name is chosen here, so that a request whose creation was interrupted can be deleted too.
            names[driver] = f"dra-top-{secrets.token_hex(5)}"
            head = {"apiVersion": resource.api_version, "kind": _KIND, "metadata": {"name": names[driver]}}
            try:
                await client.create(resource, {**head, "spec": {"driver": driver, "limit": _MAX_POOLS}})
            except ForbiddenError:
                del names[driver]
                raise
        await _read_statuses(client, resource, names, wait, out)
    except ForbiddenError as e:
        out.gaps.append(
            f"cannot create and read {_NAME}: {_NOT_COUNTED}; ask for a ClusterRole with the verbs create, get and delete on "
            f'"{resource.plural}" of API group "{GROUP}": {e}'
        )
    finally:
        for name in names.values():
            await _delete(client, resource, name, out)
    return out


async def _read_statuses(
    client: KubeClient, resource: Resource, names: dict[str, str], wait: float, out: PoolCounts
) -> None:
    open_requests, pause = dict(names), 0.05
    end = asyncio.get_running_loop().time() + wait
    while open_requests and asyncio.get_running_loop().time() < end:
        for driver, name in tuple(open_requests.items()):
            status = (await client.get(resource, name)).get("status") or {}
            if status.get("conditions"):
                del open_requests[driver]
                _take_status(driver, status, out)
        if open_requests:
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
    for driver in open_requests:
        out.gaps.append(
            f"the control plane did not count the pools of driver {driver} within {wait:g} s: it waits while slices of a pool are "
            f"missing, and kube-controller-manager needs the feature gate DRAResourcePoolStatus too; {_NOT_COUNTED}"
        )


def _take_status(driver: str, status: JSON, out: PoolCounts) -> None:
    pools = status.get("pools") or []
    out.found |= {(pool["driver"], pool["poolName"]): pool for pool in pools}
    for condition in status["conditions"]:
        if condition["type"] == "Failed" and condition["status"] == "True":
            out.gaps.append(f"the control plane could not count the pools of driver {driver}: {condition['message']}")
    if (total := status.get("poolCount", 0)) > len(pools):
        out.gaps.append(
            f"the control plane counted {len(pools)} of {total} pools of driver {driver}, the most that one request gets"
        )


async def _delete(client: KubeClient, resource: Resource, name: str, out: PoolCounts) -> None:
    try:
        await client.delete(resource, name)
    except NotFoundError:
        return  # its creation was interrupted, or the control plane has deleted it
    except ApiError as e:
        out.gaps.append(
            f"{_KIND} {name} is not deleted: the control plane deletes it one hour after its status, or after a day without a status; "
            f"to delete it now: kubectl delete {resource.plural} {name}: {e}"
        )


def pool_rows(devices: Iterable[DeviceRow], counts: PoolCounts, node: str = "") -> Iterator[PoolRow]:
    """Yields a row for each pool with devices, and for each pool that only the control plane knows.

    Args:
        devices: the rows of the devices of all pools; of one node, if ``node`` is set.
        node: the only node whose pools are shown; empty for all.
    """
    by_pool: dict[PoolKey, list[DeviceRow]] = {}
    for device in devices:
        by_pool.setdefault((device.driver, device.pool), []).append(device)
    others = (key for key, pool in counts.found.items() if not node or pool.get("nodeName") == node)
    for driver, name in sorted({*by_pool, *others}):
        rows, status = by_pool.get((driver, name), []), counts.found.get((driver, name))
        own = counted(d for d in rows if d.use is not DeviceUse.VANISHED)
        nodes = {d.node for d in rows}
        yield PoolRow(
            driver=driver,
            pool=name,
            node=(status or {}).get("nodeName", "") or (nodes.pop() if len(nodes) == 1 else ""),
            devices=own.devices,
            held=own.held,
            free=own.free,
            blocked=own.blocked,
            unavailable=own.unavailable,
            counted=_pool_count(status) if status is not None else None,
        )


def _pool_count(pool: ReadOnlyJSON) -> PoolCount:
    shares = (pool.get("shareableSummary") or {}).get("capacity") or []
    partitions = pool.get("partitionSummary") or []
    return PoolCount(
        generation=pool.get("generation", 0),
        devices=pool.get("totalDevices"),
        allocated=pool.get("allocatedDevices"),
        available=pool.get("availableDevices"),
        unavailable=pool.get("unavailableDevices"),
        partitions=tuple(PartitionCount(p["type"], p["total"], p["allocatable"]) for p in partitions),
        capacity=tuple(CapacityCount(c["name"], c["total"], c["consumed"], c["available"]) for c in shares),
        error=pool.get("validationError", ""),
    )
