"""Validates downward API references: fields of the pod and resources of its containers, for environment variables and volumes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, required, unsupported

_OF_VOLUMES = ("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid")
_OF_ENVIRONMENTS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_KEYED = re.compile(r"metadata\.(labels|annotations)\['[^']+'\]")
_RESOURCES = tuple(f"{k}.{name}" for k in ("limits", "requests") for name in ("cpu", "memory", "ephemeral-storage"))
_HUGE = ("limits.hugepages-", "requests.hugepages-")


def validate_references(source: ReadOnlyJSON, path: str, *, volume: bool) -> Iterator[FieldError]:
    """Yields all errors of ``fieldRef`` and ``resourceFieldRef`` in an environment variable, or with ``volume`` in a file of a volume."""
    known = _OF_VOLUMES if volume else _OF_ENVIRONMENTS
    if (ref := source.get("fieldRef")) is not None:
        field = ref.get("fieldPath") or ""
        if not field:
            yield required(f"{path}.fieldRef.fieldPath")
        elif field not in known and not _KEYED.fullmatch(field):
            yield unsupported(f"{path}.fieldRef.fieldPath", field, known)
    if (ref := source.get("resourceFieldRef")) is not None:
        name = ref.get("resource") or ""
        if volume and not ref.get("containerName"):
            yield required(f"{path}.resourceFieldRef.containerName")
        elif not name:
            yield required(f"{path}.resourceFieldRef.resource")
        elif name not in _RESOURCES and not name.startswith(_HUGE):
            yield unsupported(f"{path}.resourceFieldRef.resource", name, _RESOURCES)
