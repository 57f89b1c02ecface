"""The input of all questions about a cluster: its objects as plain JSON, and the kinds and objects that could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import QuestionError, describe
from ..kube import Resource
from ..kube.resource import CLAIMS, CLASSES, EVENTS, NAMESPACES, NODES, PODS, SLICES, TAINT_RULES, TEMPLATES
from ..resourceapi.conversion import GROUP, VERSIONS, convert
from ..scheduling.framework.device_taint_rules import tainted
from .object_shapes import FAULTS, validated

JSON = dict[str, Any]

KINDS: Mapping[str, Resource] = {
    "Pod": PODS,
    "Node": NODES,
    "Namespace": NAMESPACES,
    "Event": EVENTS,
    "ResourceClaim": CLAIMS,
    "ResourceClaimTemplate": TEMPLATES,
    "DeviceClass": CLASSES,
    "ResourceSlice": SLICES,
    "DeviceTaintRule": TAINT_RULES,
}
# The resource of each field of a snapshot
_FIELDS: Mapping[str, Resource] = {
    "pods": PODS, "nodes": NODES, "namespaces": NAMESPACES, "events": EVENTS, "claims": CLAIMS, "templates": TEMPLATES,
    "classes": CLASSES, "slices": SLICES, "rules": TAINT_RULES,
}  # fmt: skip
_IGNORED_METADATA = ("managedFields",)
_IGNORED_STATUS_OF_NODES = (
    "images",
    "volumesInUse",
    "volumesAttached",
    "nodeInfo",
    "conditions",
    "addresses",
    "config",
)


@dataclass(frozen=True)
class Gap:
    """A kind of object that could not be read completely.

    Args:
        why: a sentence with the consequence and the permission to ask for.
        read: the only namespace that was read; empty if none was.
    """

    resource: str
    why: str
    read: str = ""


@dataclass(frozen=True)
class UnreadableObject:
    """An object that is malformed; it is ignored."""

    kind: str
    namespace: str
    name: str
    why: str

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {where} cannot be read, and is left out: {self.why}"


@dataclass(frozen=True)
class Snapshot:
    """The objects of a cluster at one moment. DRA objects are in version ``resource.k8s.io/v1``.

    Args:
        gaps: kinds that were not read completely.
        unread: objects that are malformed.
        live: whether the objects were read just now, so that time limits can be evaluated.
    """

    pods: tuple[JSON, ...] = ()
    nodes: tuple[JSON, ...] = ()
    namespaces: tuple[JSON, ...] = ()
    events: tuple[JSON, ...] = ()
    claims: tuple[JSON, ...] = ()
    templates: tuple[JSON, ...] = ()
    classes: tuple[JSON, ...] = ()
    slices: tuple[JSON, ...] = ()
    rules: tuple[JSON, ...] = ()
    gaps: tuple[Gap, ...] = ()
    unread: tuple[UnreadableObject, ...] = ()
    live: bool = False

    @classmethod
    def of(cls, objects: Iterable[Mapping[str, Any]], *, gaps: Iterable[Gap] = (), live: bool = False) -> Snapshot:
        """Builds a snapshot from objects of any kind, in any order. Ignores kinds that no question needs.

        Sets a missing UID or namespace (``default``), as a server would.

        Raises:
            QuestionError: an object has no kind or no name.
        """
        found: dict[str, list[JSON]] = {r.plural: [] for r in KINDS.values()}
        unread = []
        for obj in objects:
            resource = KINDS.get(kind_of(obj))
            if resource is None:
                continue
            known = read(obj, resource)
            try:
                found[resource.plural].append(validated(known))
            except FAULTS as e:
                meta = known["metadata"]
                unread.append(
                    UnreadableObject(known["kind"], str(meta.get("namespace") or ""), str(meta["name"]), describe(e))
                )
        return cls.by_plural(found, gaps, unread, live=live)

    @classmethod
    def by_plural(
        cls,
        found: Mapping[str, Sequence[JSON]],
        gaps: Iterable[Gap] = (),
        unread: Iterable[UnreadableObject] = (),
        *,
        live: bool = False,
    ) -> Snapshot:
        """Builds a snapshot from objects that :func:`read` returned and that were validated.

        Args:
            found: the objects by plural name of their resource.
        """
        fields: dict[str, Any] = {name: tuple(found.get(r.plural, ())) for name, r in _FIELDS.items()}
        return cls(**fields, gaps=tuple(gaps), unread=tuple(unread), live=live)

    @cached_property
    def tainted_slices(self) -> tuple[JSON, ...]:
        """The slices as the scheduler uses them: with the taints of DeviceTaintRules on their devices (KEP-5055)."""
        return tuple(dict(tainted(s, self.rules)) for s in self.slices) if self.rules else self.slices

    @property
    def objects(self) -> Mapping[str, tuple[JSON, ...]]:
        """The objects by plural name of their resource."""
        return {r.plural: getattr(self, name) for name, r in _FIELDS.items()}

    def gap(self, resource: Resource) -> Gap | None:
        return next((g for g in self.gaps if g.resource == resource.plural), None)


def kind_named(resource: Resource) -> str:
    """Returns the kind of a resource, for example ``Pod`` for pods."""
    return next(kind for kind, known in KINDS.items() if known.plural == resource.plural)


def kind_of(obj: Mapping[str, Any]) -> str:
    """Returns the kind of an object.

    Raises:
        QuestionError: it is not a Kubernetes object.
    """
    kind, meta = (obj.get("kind"), obj.get("metadata")) if isinstance(obj, Mapping) else (None, None)
    name = (meta.get("name") or meta.get("generateName")) if isinstance(meta, Mapping) else None
    if not isinstance(kind, str) or not isinstance(name, str) or not isinstance(obj.get("apiVersion"), str):
        raise QuestionError(f"an object without apiVersion, kind or metadata.name: {str(obj)[:200]}")
    return kind


def read(obj: Mapping[str, Any], resource: Resource) -> JSON:
    """Returns the object in the version that the analysis uses, without fields that it never reads.

    Raises:
        QuestionError: the version is not known, or the object cannot be converted.
    """
    api = str(obj["apiVersion"])
    if resource.group == GROUP and api != f"{GROUP}/v1" and resource.plural != TAINT_RULES.plural:
        if api.partition("/")[2] not in VERSIONS:
            known = ", ".join(VERSIONS)
            raise QuestionError(
                f"{obj['kind']} {obj['metadata'].get('name')}: apiVersion {api} is not known, only {known} of {GROUP}"
            )
        try:
            obj = convert(obj, "v1")
        except (TypeError, KeyError, ValueError, AttributeError) as e:
            raise QuestionError(f"{obj['kind']} {obj['metadata'].get('name')} cannot be read: {describe(e)}") from None
    # Fields with null are removed, because an empty `namespace:` in a file is read as null.
    meta = {k: v for k, v in obj["metadata"].items() if k not in _IGNORED_METADATA and v is not None}
    if resource.namespaced:
        meta.setdefault("namespace", "default")
    name = meta.setdefault("name", f"{meta.get('generateName', '')}0")
    if not meta.get("uid"):
        meta["uid"] = f"{resource.plural}/{meta.get('namespace', '')}/{name}"
    out = {**obj, "metadata": meta}
    if resource is NODES and isinstance(out.get("status"), dict):
        out["status"] = {k: v for k, v in out["status"].items() if k not in _IGNORED_STATUS_OF_NODES}
    return out
