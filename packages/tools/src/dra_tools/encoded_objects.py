"""Decodes objects of an API server with only the fields that the analysis reads, and stores equal parts once.

A cluster of 5,000 nodes has 200 MB of objects. Most of it is never read: images of nodes, variables of containers, field managers.
An object that does not have the expected form is decoded with all fields, so that the error of its validation is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from sys import intern
from types import GenericAlias
from typing import Any, TypedDict

import msgspec

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.decoding import as_json
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, PODS, SLICES, TAINT_RULES
from dra_kubeletplugin.resourceapi.conversion import GROUP

from .snapshot import kind_named, read


def _fields(names: str = "", **types: Any) -> Any:
    """Returns a type that decodes only these fields of an object, each if it is present. ``names`` are fields of any type."""
    return TypedDict("Fields", {**dict.fromkeys(names.split(), Any), **types}, total=False)  # type: ignore[operator]


_METADATA = _fields(
    "labels annotations creationTimestamp deletionTimestamp ownerReferences", name=str, uid=str, namespace=str
)
_CONTAINERS: Any = GenericAlias(list, (_fields("name resources ports restartPolicy"),))
_POD_SPEC = _fields(
    "nodeName schedulerName resourceClaims affinity priority overhead resources hostNetwork schedulingGroup",
    containers=_CONTAINERS,
    initContainers=_CONTAINERS | None,
)
_ALLOCATION = _fields("nodeSelector allocationTimestamp", devices=_fields(results=list[JSON] | None) | None)
_SHAPES: dict[str, Any] = {
    NODES.plural: _fields("spec", metadata=_METADATA, status=_fields("capacity allocatable") | None),
    # A pod that runs or has ended. Only its use of the node is read.
    PODS.plural: _fields(
        metadata=_METADATA,
        spec=_POD_SPEC,
        status=_fields("phase resourceClaimStatuses extendedResourceClaimStatus nodeAllocatableResourceClaimStatuses")
        | None,
    ),
    CLAIMS.plural: _fields(
        "spec", metadata=_METADATA, status=_fields("reservedFor devices", allocation=_ALLOCATION | None) | None
    ),
}
_OTHER = _fields("spec status", metadata=_METADATA)
# All fields of the spec are kept, so that a command can name a field of a newer release.
_SLICE = _fields(metadata=_fields(name=str, uid=str), spec=JSON)
_MAX_EQUAL = 100_000
_PLACED = {"Running", "Succeeded", "Failed"}


class ObjectDecoder:
    """Decodes the objects of one kind.

    Args:
        resource: the kind, in the version in which the server sends the objects.
        attributes: the names of device attributes to read; None for all.
    """

    def __init__(self, resource: Resource, attributes: Collection[str] | None = None) -> None:
        self.resource = resource
        self._plural = resource.plural
        self._head = {"apiVersion": resource.api_version, "kind": kind_named(resource)}
        is_rule = resource.plural == TAINT_RULES.plural  # all versions have the same fields
        self._converted = resource.group == GROUP and resource.version != "v1" and not is_rule
        shape: Any = _SHAPES.get(resource.plural, _OTHER)
        self._attributes = attributes if resource.plural == SLICES.plural else None
        if self._attributes is not None:
            shape = _SLICE
        self._decoder = msgspec.json.Decoder(shape)
        self._equal: dict[bytes, Any] = {}

    def decode(self, item: msgspec.Raw) -> JSON:
        """Returns the object in the version that the analysis uses.

        Raises:
            ApiError: it is not a JSON object.
            QuestionError: it cannot be converted.
        """
        if self._converted:
            return self._whole(item)
        try:
            obj: JSON = self._decoder.decode(item)
            if self._attributes is not None:
                _keep_attributes(obj["spec"].get("devices") or (), self._attributes)
            meta = obj["metadata"]
            is_whole = bool(meta["name"] and meta["uid"] and (meta.get("namespace") or not self.resource.namespaced))
            if not is_whole or (self._plural == PODS.plural and not _is_placed(obj)):
                return self._whole(item)
        except (msgspec.DecodeError, RecursionError, AttributeError, KeyError, TypeError):
            return self._whole(item)
        obj |= self._head
        self._share(obj)
        return obj

    def _whole(self, item: msgspec.Raw) -> JSON:
        obj = {**self._head, **as_json(item)}
        return read(obj, replace(self.resource, version="v1"))

    def _share(self, obj: JSON) -> None:
        """Stores parts that many objects have in common only once in memory."""
        meta: JSON = obj["metadata"]
        spec: JSON = obj.get("spec") or {}
        status: JSON = obj.get("status") or {}
        if "namespace" in meta:
            meta["namespace"] = intern(meta["namespace"])
        match self._plural:
            case PODS.plural:
                self._share_fields(meta, "labels", "creationTimestamp")
                self._share_fields(spec, "containers", "initContainers", "affinity", "nodeName", "schedulerName")
            case NODES.plural:
                self._share_fields(status, "capacity", "allocatable")
            case CLAIMS.plural if allocation := status.get("allocation"):
                obj["spec"] = self._one(spec)
                self._share_fields(meta, "creationTimestamp", "annotations")
                self._share_fields(allocation, "nodeSelector", "allocationTimestamp")
                for result in (allocation.get("devices") or {}).get("results") or ():
                    self._share_fields(result, "request", "driver", "pool", "device")
            case SLICES.plural if self._attributes is not None and spec.get("devices"):
                spec["devices"] = [self._one(d) for d in spec["devices"]]

    def _share_fields(self, obj: JSON, *names: str) -> None:
        for name in names:
            if name in obj:
                value = obj[name]
                obj[name] = intern(value) if isinstance(value, str) else self._one(value)

    def _one(self, value: Any) -> Any:
        if len(self._equal) > _MAX_EQUAL:
            self._equal.clear()  # a watch decodes objects for days
        return self._equal.setdefault(msgspec.json.encode(value), value)


def _is_placed(pod: JSON) -> bool:
    """Returns whether the pod runs or has ended and is not being deleted. Of such a pod, only its use of the node matters."""
    phase = (pod.get("status") or {}).get("phase")
    return "containers" in pod["spec"] and phase in _PLACED and not pod["metadata"].get("deletionTimestamp")


def _keep_attributes(devices: Sequence[JSON], names: Collection[str]) -> None:
    """Removes the other attributes of devices."""
    for device in devices:
        if attributes := device.get("attributes"):
            device["attributes"] = {name: attributes[name] for name in names if name in attributes}
