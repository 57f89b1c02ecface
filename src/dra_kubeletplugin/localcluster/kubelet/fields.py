"""Values that a container asks for of its own pod: the downward API."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ...kube import KubeClient
from ...kube.resource import NODES
from ...resourceapi.quantity import Quantity

JSON = Mapping[str, Any]
_LIMITED = {"cpu", "memory", "ephemeral-storage"}  # of which a container without a limit may have all
NODE_ADDRESS = "127.0.0.1"
_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class FieldUnknown(Exception):
    """No such field, or none that the local cluster knows."""


def field_value(pod: JSON, path: str, node: JSON | None = None) -> str:
    """The value of a ``fieldRef``. Raises :class:`FieldUnknown`."""
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
            return NODE_ADDRESS  # of a pod in a network of its own too: it has a loopback
    raise FieldUnknown(f"unsupported fieldPath: {path}")


async def allocatable_of(client: KubeClient, pod: JSON) -> JSON:
    """What a container without limits may take of its pod's node."""
    node = await client.get(NODES, str(pod["spec"]["nodeName"]))
    found: JSON = (node.get("status") or {}).get("allocatable") or {}
    return found


def resource_value(container: JSON, ref: JSON, allocatable: JSON) -> str:
    """The value of a ``resourceFieldRef``, in units of its divisor, rounded up.

    Where the container has no limit that is what the node has to give, and a request that it does not make is 0.
    Raises :class:`FieldUnknown`.
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
