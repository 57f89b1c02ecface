"""What a pod may ask its kubelet for and does not get here: it waits with a sentence. No false pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .containers import roles

JSON = Mapping[str, Any]
_REFUSED = ("volumeDevices",)


def refusals(pod: JSON) -> list[str]:
    """One sentence for each thing without which the pod would not be what it asks for: it stays Pending."""
    return [
        f"not supported by the local cluster: {field} of container {container['name']}"
        for container, _ in roles(pod)
        for field in _REFUSED
        if container.get(field)
    ]


__all__ = ["refusals"]
