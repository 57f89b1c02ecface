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


class RemoteDevice(msgspec.Struct, frozen=True):
    """A device and the counter sets that it draws from: by counter set and counter, the amount."""

    device: Device
    counter_sets: Mapping[str, Mapping[str, str]]


class _PoolName(msgspec.Struct, rename="camel"):
    name: str
    generation: int = 0
    resource_slice_count: int = 0


class _Spec(msgspec.Struct):
    pool: _PoolName


class _Head(msgspec.Struct):
    """The part of a slice that identifies its pool. The rest is decoded when a device of the pool is needed."""

    spec: _Spec


class _NodeCondition(msgspec.Struct):
    type: str
    status: str


class _NodeStatus(msgspec.Struct):
    conditions: list[_NodeCondition] | None = None


class _Node(msgspec.Struct):
    """The part of a Node that shows whether its kubelet is alive."""

    status: _NodeStatus | None = None


@dataclass
class _Pool:
    """The encoded slices of a pool's newest generation."""

    version: str  # of the API
    generation: int
    count: int  # of slices
    raw: list[bytes] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.raw) >= self.count

    @functools.cached_property
    def slices(self) -> list[JSON]:
        """The specs of the slices in resource.k8s.io/v1 form."""
        out = []
        for raw in self.raw:
            found = msgspec.json.decode(raw)
            out.append(
                convert({**found, "apiVersion": f"{GROUP}/{self.version}", "kind": "ResourceSlice"}, "v1")["spec"]
            )
        return out

    @functools.cached_property
    def devices(self) -> Mapping[str, tuple[JSON, JSON]]:
        """The device and the spec of its slice, by the device's name."""
        return {d["name"]: (d, s) for s in self.slices for d in s.get("devices") or ()}

    @functools.cached_property
    def counter_sets(self) -> Mapping[str, Mapping[str, str]]:
        return {c["name"]: read_counters(c["counters"]) for s in self.slices for c in s.get("sharedCounters") or ()}


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

    async def find(self, shown: str, pool: str, name: str, started: float) -> RemoteDevice:
        """Finds a device for a claim.

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
            for since, is_current in ((started - _MAX_AGE, False), (started, True)):
                if found := await self._find(shown, pool, name, since, is_current=is_current):
                    return found
        except (ApiError, TimeoutError) as e:
            raise ApiUnavailableError(
                f"{shown}: device {name} of pool {pool} is published by another process, and its ResourceSlices cannot be "
                f"read now: {e if isinstance(e, ApiError) else f'no response within {_TIMEOUT:g} s'}"
            ) from None
        raise WrongNodeError(
            f"{shown}: device {name} belongs to pool {pool}, which is neither a pool of node {self._node} nor in a ResourceSlice "
            "for this node"
        )

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
        try:
            status = msgspec.convert(node, _Node).status or _NodeStatus()
        except msgspec.ValidationError as e:
            raise ApiError(f"the API server's response is not a Node: {printable(e)}") from None
        return _NodeCondition("Ready", "True") not in (status.conditions or ())

    async def _find(self, shown: str, pool: str, name: str, since: float, *, is_current: bool) -> RemoteDevice | None:
        """Returns the device, or None if no pool has it for this node.

        ``is_current`` means that a response since ``since`` is recent enough to be final. Then, if the pool exists but the device cannot be
        used, the method raises the reason.
        """
        sources = [self._unbound_slices, self._node_slices] if self._others() else [self._unbound_slices]
        for source in sources:
            seen = (await source.since(since)).get(pool)
            if seen is None:
                continue
            try:
                entry = seen.devices.get(name)
                if entry is not None and await self._is_here(entry, since):
                    return _read(shown, pool, entry[0], seen)
            except (AttributeError, KeyError, TypeError, ValueError) as e:
                raise DevicesUnknownError(
                    f"{shown}: this version of the plugin cannot read device {name} in the ResourceSlices of "
                    f"pool {pool}: {describe(e)}"
                ) from None
            if not is_current:
                return None
            if entry is not None:
                raise WrongNodeError(f"{shown}: device {name} of pool {pool} is not available on node {self._node}")
            if not seen.complete:
                raise DevicesUnknownError(
                    f"{shown}: device {name} is not known, because pool {pool} is being updated: the kubelet retries"
                )
            raise DeviceGoneError(f"{shown}: device {name} is no longer in pool {pool}")
        return None

    async def _is_here(self, entry: tuple[JSON, JSON], since: float) -> bool:
        """Whether a device can be used from this node. True if the node's labels cannot be read."""
        raw, spec = entry
        at = raw if spec.get("perDeviceNodeSelection") else spec
        node: JSON | None = {"metadata": {"name": self._node}}
        if node_selectors.needs_labels(at.get("nodeSelector")):
            node = await self._node_object.since(since)
        return node is None or node_selectors.matches(
            node, at.get("nodeName"), at.get("allNodes"), at.get("nodeSelector")
        )

    # --- requests to the API server -------------------------------------------------------------

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


def _read(shown: str, pool: str, raw: JSON, seen: _Pool) -> RemoteDevice:
    if any(t["key"] == GONE.key for t in raw.get("taints") or ()):
        raise DeviceGoneError(f"{shown}: device {raw['name']} of pool {pool} vanished: it has the taint {GONE.key}")
    device = read_device(raw)
    return RemoteDevice(device, {s: seen.counter_sets.get(s, {}) for s in device.consumes_counters})
