"""What a pod may ask its kubelet for and does not get here: it waits, or is told, with a sentence. No false pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .containers import roles

JSON = Mapping[str, Any]
_REFUSED = ("restartPolicyRules", "volumeDevices")
_READY = ("readinessProbe", "startupProbe")
_NOT_RUN = (*_READY, "livenessProbe", "lifecycle")


def refusals(pod: JSON) -> list[str]:
    """One sentence for each thing without which the pod would not be what it asks for: it stays Pending."""
    return [
        f"not supported by the local cluster: {field} of container {container['name']}"
        for container, _ in roles(pod)
        for field in _REFUSED
        if container.get(field)
    ]


def not_run(pod: JSON) -> Iterable[str]:
    """One sentence for each thing that is left out while the pod runs."""
    for container, _ in roles(pod):
        for field in _NOT_RUN:
            if container.get(field):
                more = ", so it never counts as ready" if field in _READY else ""
                yield f"the local cluster does not run the {field} of container {container['name']}{more}"


def may_be_ready(container: JSON) -> bool:
    """Whether a container that runs is ready: nobody would know of one that has to be probed."""
    return not any(container.get(field) for field in _READY)


__all__ = ["may_be_ready", "not_run", "refusals"]
