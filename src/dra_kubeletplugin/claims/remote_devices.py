"""Looks up devices that another process (a controller or another plugin instance) publishes in ResourceSlices.

Only devices that the inventory does not have are looked up. One list request serves all claims that need it at about the same time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from ..base.json_types import JSON
from ..base.shared_call import SharedCall
from ..devices.pool_state import GONE
from ..errors import (
    ApiError,
    ApiUnavailableError,
    DeviceGoneError,
    DevicesUnknownError,
    WrongNodeError,
    describe,
    printable,
)
from ..kube import KubeClient
from ..kube.errors import ForbiddenError, NotFoundError
from ..kube.paging import read_all
from ..kube.resource import NODES
from ..resourceapi import node_selectors
from ..resourceapi.conversion import GROUP, convert
from ..resourceapi.decoding import read_counters, read_device
from ..resourceapi.types import Device

log = logging.getLogger(__name__)
_MAX_AGE = 2.0  # seconds for which a response is reused by later callers
_TIMEOUT = 8.0  # seconds for one lookup with all its pages
_PAGE = 100  # slices


class _PoolName(msgspec.Struct, rename="camel"):
    name: str
    generation: int = 0
    resource_slice_count: int = 0


class _Spec(msgspec.Struct):
    pool: _PoolName


class _Head(msgspec.Struct):
    """The part of a slice that identifies its pool. The rest is decoded when a device of the pool is needed."""

    spec: _Spec


@dataclass
class _Pool:
    """The encoded slices of a pool's newest generation."""

    version: str  # of the API
    generation: int
    count: int  # of slices
    raw: list[bytes] = field(default_factory=list)

    @functools.cached_property
    def specs(self) -> list[JSON]:
        """The specs of the slices in resource.k8s.io/v1 form."""
        head = {"apiVersion": f"{GROUP}/{self.version}", "kind": "ResourceSlice"}
        return [convert({**msgspec.json.decode(raw), **head}, "v1")["spec"] for raw in self.raw]

    @functools.cached_property
    def devices(self) -> Mapping[str, tuple[JSON, JSON]]:
        """Each device with the spec of its slice, by name."""
        return {d["name"]: (d, spec) for spec in self.specs for d in spec.get("devices") or ()}

    @functools.cached_property
    def counter_sets(self) -> Mapping[str, Mapping[str, str]]:
        """By counter set and counter, the amount."""
        return {
            s["name"]: read_counters(s["counters"]) for spec in self.specs for s in spec.get("sharedCounters") or ()
        }


class SliceLookup:
    """Finds devices in the ResourceSlices of one driver.

    Args:
        others: returns whether another instance of the plugin runs on this node. Only then can another process publish slices of this node.
    """

    def __init__(self, client: KubeClient, driver: str, node: str, others: Callable[[], bool]) -> None:
        self._client = client
        self._driver = driver
        self._node = node
        self._others = others
        # Slices of other nodes are irrelevant here and may be thousands, so they are not read.
        # Slices without a node name are read first, then the slices of this node.
        self._unbound_slices = SharedCall(lambda: self._pools(""), "slices without a node", _MAX_AGE)
        self._node_slices = SharedCall(lambda: self._pools(node), "slices of this node", _MAX_AGE)
        self._node_object = SharedCall(self._this_node, "this node", _MAX_AGE)
        self._forbidden_logged = False  # whether it was logged that the Node may not be read

    async def find(
        self, shown: str, pool: str, name: str, started: float
    ) -> tuple[Device, Mapping[str, Mapping[str, str]]]:
        """Returns a device for a claim, and the counter sets of its pool: by counter set and counter, the amount.

        Args:
            shown: the claim's name in messages.
            pool: name of the device's pool.
            name: name of the device.
            started: when the claim's first device was looked up, in event loop time.

        Raises :class:`ApiUnavailableError` if the API server does not respond, and :class:`DevicesUnknownError` while the pool is being
        written. Raises :class:`DeviceGoneError` if the pool has no such device. Raises :class:`WrongNodeError` if the device is not
        available on this node.
        """
        try:
            # A device that was missing in a cached response may have been published since.
            for since in (started - _MAX_AGE, started):
                found = (await self._unbound_slices.since(since)).get(pool)
                if found is None and self._others():
                    found = (await self._node_slices.since(since)).get(pool)
                entry = found.devices.get(name) if found else None
                if found and entry and await self._is_here(*entry, since):
                    if any(t["key"] == GONE.key for t in entry[0].get("taints") or ()):
                        raise DeviceGoneError(
                            f"{shown}: device {name} of pool {pool} vanished: it has the taint {GONE.key}"
                        )
                    return read_device(entry[0]), found.counter_sets
        except (ApiError, TimeoutError) as e:
            raise ApiUnavailableError(
                f"{shown}: device {name} of pool {pool} is published by another process, and its ResourceSlices cannot be "
                f"read now: {e if isinstance(e, ApiError) else f'no response within {_TIMEOUT:g} s'}"
            ) from None
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise DevicesUnknownError(
                f"{shown}: this version of the plugin cannot read device {name} in the ResourceSlices of pool {pool}: "
                f"{describe(e)}"
            ) from None
        if found is None:
            raise WrongNodeError(
                f"{shown}: device {name} belongs to pool {pool}, which is neither a pool of node {self._node} nor in a "
                "ResourceSlice for this node"
            )
        if entry:
            raise WrongNodeError(f"{shown}: device {name} of pool {pool} is not available on node {self._node}")
        if len(found.raw) < found.count:
            raise DevicesUnknownError(
                f"{shown}: device {name} is not known, because pool {pool} is being updated: the kubelet retries"
            )
        raise DeviceGoneError(f"{shown}: device {name} is no longer in pool {pool}")

    async def kubelet_is_away(self) -> bool:
        """Whether the kubelet of this node sends no heartbeats. False if the Node may not be read.

        Pods that the kubelet started may still run. When the kubelet is back, it unprepares the claims of the pods that have ended.

        Raises :class:`ApiError` or ``TimeoutError`` if the API server does not respond.
        """
        try:
            node = await self._node_object.fresh()
        except NotFoundError:
            return True
        if node is None:
            return False
        conditions = (node.get("status") or {}).get("conditions") or ()
        return not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    async def _is_here(self, device: JSON, spec: JSON, since: float) -> bool:
        """Whether a device can be used from this node. True if the node's labels cannot be read."""
        at = device if spec.get("perDeviceNodeSelection") else spec
        node: JSON | None = {"metadata": {"name": self._node}}
        if node_selectors.needs_labels(at.get("nodeSelector")):
            node = await self._node_object.since(since)
        return node is None or node_selectors.matches(
            node, at.get("nodeName"), at.get("allNodes"), at.get("nodeSelector")
        )

    async def _pools(self, node: str) -> Mapping[str, _Pool]:
        """Returns the driver's pools by name: the pools of one node, or of no single node if ``node`` is empty."""
        async with asyncio.timeout(_TIMEOUT):
            resource = await self._client.dra("resourceslices")
            fields = f"spec.driver={self._driver},spec.nodeName={node}"
            found = await read_all(self._client, resource, _read_head, fields=fields, limit=_PAGE)
        out: dict[str, _Pool] = {}
        for pool, raw in found:
            seen = out.get(pool.name)
            if seen is None or seen.generation < pool.generation:
                seen = out[pool.name] = _Pool(resource.version, pool.generation, pool.resource_slice_count)
            if seen.generation == pool.generation:
                seen.raw.append(raw)
        return out

    async def _this_node(self) -> JSON | None:
        """Returns the Node. Returns None if the plugin has no permission to read it: callers then trust the scheduler's choice."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await self._client.get(NODES, self._node)
        except ForbiddenError as e:
            if not self._forbidden_logged:
                self._forbidden_logged = True
                log.warning(
                    "cannot read this node, so node selectors of pools and the kubelet's state are not checked: %s; deploy/ has "
                    "the permissions",
                    e,
                )
            return None


def _read_head(raw: msgspec.Raw) -> tuple[_PoolName, bytes]:
    try:
        return msgspec.json.decode(raw, type=_Head).spec.pool, bytes(raw)
    except (ValueError, RecursionError) as e:
        raise ApiError(f"the API server's response is not a ResourceSlice: {printable(e)}") from None
