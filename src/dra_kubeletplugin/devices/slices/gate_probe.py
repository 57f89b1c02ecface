"""Finds out which feature gates are off in the API server: sends a slice with dryRun and looks for dropped fields in the response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.json_types import JSON, ReadOnlyJSON
from ...errors import ApiError, describe
from ...kube import KubeClient, Resource
from ...kube.errors import NotFoundError, UnauthorizedError
from ...resourceapi.conversion import GROUP
from ...resourceapi.gated_fields import Gate, gate_of, gates_of_options, without
from ...resourceapi.nodes import NODE_FIELDS
from ..inventory import Inventory
from .scope import Scope
from .server_response import REJECTIONS, as_sent, dropped_by_server, in_v1, rejected_devices


class GateProbe:
    """Probes each gate that devices depend on once, and again after :meth:`forget`."""

    def __init__(self, client: KubeClient, inventory: Inventory, scope: Scope) -> None:
        self._client = client
        self._inventory = inventory
        self._scope = scope
        self._known: frozenset[str] = frozenset()
        # As last seen, also if the driver has withdrawn them because a gate is off: the probe must notice that the gate is on again.
        self._samples: Mapping[frozenset[str], ReadOnlyJSON] = {}
        self._options: ReadOnlyJSON = {}

    def forget(self) -> None:
        """Forgets the results, because the API server may have been reconfigured."""
        self._known = frozenset()

    async def find_gates_off(self, resource: Resource) -> frozenset[str]:
        """Returns those gates that the devices depend on and that are off.

        If the API server rejects the probe for another reason than a gate, no gate counts as off. The response to the real slices then
        shows which gates are off.

        Raises:
            ApiError: the API server cannot be reached, refuses the credentials, lacks the resource, or returns no slice.
        """
        gates_off = self._inventory.gates_off
        withdrawn = {gates: device for gates, device in self._samples.items() if gates & gates_off}
        samples = self._samples = {**withdrawn, **self._inventory.samples()}
        before = self._options if gates_of_options(self._options) & gates_off else {}
        options = self._options = {**before, **self._inventory.options()}
        used = gates_of_options(options).union(*samples)
        if used <= self._known:
            return gates_off
        off = await self._probe_gates(resource, [*samples.values()], options)
        self._known |= used
        return (gates_off - used) | (off & used)

    async def _probe_gates(
        self, resource: Resource, samples: list[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> frozenset[str]:
        bare = [{k: v for k, v in d.items() if k not in NODE_FIELDS} for d in samples]
        somewhere: JSON = {"nodeName": self._scope.node} if self._scope.node else {"allNodes": True}
        off = await self._gates_of_dropped_fields(resource, {**somewhere, **options}, bare)
        if any(f in d for d in samples for f in NODE_FIELDS):
            off |= await self._gates_of_dropped_fields(
                resource, {"perDeviceNodeSelection": True}, [{"name": "d", "allNodes": True}]
            )
        return off

    async def _gates_of_dropped_fields(self, resource: Resource, nodes: JSON, devices: list[JSON]) -> frozenset[str]:
        named = [{**d, "name": f"probe-{i}"} for i, d in enumerate(devices)]
        pool = {"name": "probe", "generation": 1, "resourceSliceCount": 1}
        obj: JSON = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ResourceSlice",
            "metadata": {"generateName": "probe-"},
            "spec": {"driver": self._scope.driver, **nodes, "pool": pool, "devices": named},
        }
        try:
            response = await self._client.call("POST", resource.path(), as_sent(obj, resource), query={"dryRun": "All"})
            kept = in_v1(response, resource)["spec"]
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            raise ApiError(
                f"POST {resource.path()}?dryRun=All: the response is not a ResourceSlice ({describe(e)})"
            ) from e
        except ApiError as e:
            if e.unreachable or isinstance(e, (UnauthorizedError, NotFoundError)):
                raise
            if not isinstance(e, REJECTIONS):
                return frozenset()
            if "perDeviceNodeSelection" in nodes:
                # The gate is off: the API server dropped perDeviceNodeSelection, and the remaining fields select no nodes.
                return frozenset({Gate.PARTITIONS})
            bare = [without(d, {Gate.LISTS}) for d in named]
            plain = [dict(d) for d in bare if not isinstance(d, str)]
            if not rejected_devices(e, obj) or plain == named:
                return frozenset()
            # With the gate off, the API server drops list values, and then rejects the attribute because it has no value.
            return frozenset({Gate.LISTS}) | await self._gates_of_dropped_fields(resource, nodes, plain)
        found = (gate_of(path) for path in dropped_by_server(obj["spec"], kept))
        return frozenset(gate for gate in found if gate)
