"""The downward API: returns values of a pod's fields and of a container's resources, for environments and volumes."""

from __future__ import annotations

import math
import re

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.resource import NODES
from dra_kubeletplugin.resourceapi.quantity import Quantity

# resources for which the node's allocatable amount replaces a missing limit
_LIMITED = {"cpu", "memory", "ephemeral-storage"}
NODE_ADDRESS = "127.0.0.1"
_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class FieldUnknown(Exception):
    """The field does not exist, or the local cluster does not support it."""


def field_value(pod: ReadOnlyJSON, path: str) -> str:
    """Returns the value of a ``fieldRef``.

    Raises:
        FieldUnknown: the path is not supported.
    """
    meta, spec = pod["metadata"], pod["spec"]
    if found := _KEYED.fullmatch(path):
        return str((meta.get(found[1]) or {}).get(found[2], ""))
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(meta[path.partition(".")[2]])
        case "metadata.labels" | "metadata.annotations":
            values = meta.get(path.partition(".")[2]) or {}
            return "\n".join(f'{k}="{v}"' for k, v in sorted(values.items()))
        case "spec.nodeName" | "spec.serviceAccountName":
            return str(spec.get(path.partition(".")[2]) or "")
        case "status.hostIP" | "status.podIP" | "status.hostIPs" | "status.podIPs":
            return NODE_ADDRESS  # also reachable in a pod with its own network namespace, which has a loopback device
    raise FieldUnknown(f"unsupported fieldPath: {path}")


async def allocatable_of(client: KubeClient, pod: ReadOnlyJSON) -> ReadOnlyJSON:
    """Returns the allocatable resources of the pod's node. They are the limits of a container that sets no limits."""
    node = await client.get(NODES, str(pod["spec"]["nodeName"]))
    found: ReadOnlyJSON = (node.get("status") or {}).get("allocatable") or {}
    return found


def resource_value(container: ReadOnlyJSON, ref: ReadOnlyJSON, allocatable: ReadOnlyJSON) -> str:
    """Returns the value of a ``resourceFieldRef`` in units of its divisor, rounded up.

    For a missing limit of CPU, memory or ephemeral storage, this is the node's allocatable amount. Other missing values are 0.

    Raises:
        FieldUnknown: the resource is unknown or a quantity is invalid.
    """
    kind, _, name = str(ref["resource"]).partition(".")
    if kind not in {"limits", "requests"}:
        raise FieldUnknown(f"unsupported container resource : {ref['resource']}")
    value = ((container.get("resources") or {}).get(kind) or {}).get(name, "0")
    divisor = ref.get("divisor") or "1"
    try:
        amount, unit = Quantity(str(value)), Quantity(str(divisor))
        if kind == "limits" and not amount.value and name in _LIMITED:
            amount = Quantity(str(allocatable.get(name, "0")))
        return str(math.ceil(amount.value / (unit.value or 1)))
    except ValueError as e:
        raise FieldUnknown(f"{ref['resource']}: {e}") from None
