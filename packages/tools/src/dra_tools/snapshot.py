"""The input of all questions about a cluster: its objects as plain JSON, and the kinds and objects that could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dra_devkit.event_messages import as_core_event
from dra_devkit.near_names import suggestion
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import join_names
from dra_kubeletplugin.errors import QuestionError, describe
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.resource import (
    CLAIMS,
    CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    QUOTAS,
    SLICES,
    TAINT_RULES,
    TEMPLATES,
)
from dra_kubeletplugin.resourceapi.conversion import GROUP, VERSIONS, convert

from .object_shapes import FAULTS, validated
from .taints import with_rules
from .unevaluated.parts import group_of, is_builtin, subject_of, unread_kinds

# The field of a snapshot with the objects of each kind
_FIELDS: Sequence[tuple[str, str, Resource]] = (
    ("pods", "Pod", PODS),
    ("nodes", "Node", NODES),
    ("namespaces", "Namespace", NAMESPACES),
    ("events", "Event", EVENTS),
    ("claims", "ResourceClaim", CLAIMS),
    ("templates", "ResourceClaimTemplate", TEMPLATES),
    ("classes", "DeviceClass", CLASSES),
    ("slices", "ResourceSlice", SLICES),
    ("rules", "DeviceTaintRule", TAINT_RULES),
    ("groups", "PodGroup", POD_GROUPS),
    ("quotas", "ResourceQuota", QUOTAS),
)
KINDS: Mapping[str, Resource] = {kind: resource for _, kind, resource in _FIELDS}
_STATUS_OF_NODES = ("capacity", "allocatable")  # the fields that are read


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

    @property
    def subject(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    def __str__(self) -> str:
        return f"{self.subject} cannot be read, and is left out: {self.why}"


@dataclass(frozen=True)
class Snapshot:
    """The objects of a cluster at one moment. DRA objects are in version ``resource.k8s.io/v1``.

    Args:
        gaps: kinds that were not read completely.
        unread: objects that are malformed.
        unknown: the fields that this version does not know and left out, by UID of the object.
        ignored: a sentence with the kinds of objects that no question needs; empty if there are none.
        repeated: a sentence with the objects that the input defines more than once; empty if there are none.
        live: whether the objects were read just now, so that time limits can be evaluated.
        version: the version of the API server, such as ``v1.36.2``; empty if it is not known.
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
    groups: tuple[JSON, ...] = ()
    quotas: tuple[JSON, ...] = ()
    gaps: tuple[Gap, ...] = ()
    unread: tuple[UnreadableObject, ...] = ()
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignored: str = ""
    repeated: str = ""
    live: bool = False
    version: str = ""

    @classmethod
    def of(cls, objects: Iterable[Mapping[str, Any]], *, gaps: Iterable[Gap] = (), live: bool = False) -> Snapshot:
        """Builds a snapshot from objects of any kind, in any order. Ignores kinds that no question needs, and names them.

        Sets a missing UID or namespace (``default``), as a server would. The last definition of an object wins.

        Raises:
            QuestionError: an object has no kind or no name.
        """
        found: dict[str, list[JSON]] = {r.plural: [] for r in KINDS.values()}
        unread: list[UnreadableObject] = []
        unknown: dict[str, tuple[str, ...]] = {}
        ignored: list[Mapping[str, Any]] = []
        objects, repeated = last_definitions(objects)
        for obj in objects:
            if not is_read(obj):
                ignored.append(obj)
                continue
            resource = KINDS[obj["kind"]]
            known = read(obj, resource)
            try:
                fields: list[str] = []
                found[resource.plural].append(validated(known, fields))
                if fields:
                    unknown[known["metadata"]["uid"]] = tuple(fields)
            except FAULTS as e:
                meta = known["metadata"]
                unread.append(
                    UnreadableObject(known["kind"], str(meta.get("namespace") or ""), str(meta["name"]), describe(e))
                )
        made = cls.by_plural(found, gaps, unread, live=live)
        return replace(made, unknown=unknown, ignored=unread_kinds(ignored), repeated=repeated)

    @classmethod
    def by_plural(
        cls,
        found: Mapping[str, Sequence[JSON]],
        gaps: Iterable[Gap] = (),
        unread: Iterable[UnreadableObject] = (),
        *,
        live: bool = False,
        version: str = "",
    ) -> Snapshot:
        """Builds a snapshot from objects that :func:`read` returned and that were validated.

        Args:
            found: the objects by plural name of their resource.
        """
        fields: dict[str, Any] = {name: tuple(found.get(r.plural, ())) for name, _, r in _FIELDS}
        return cls(**fields, gaps=tuple(gaps), unread=tuple(unread), live=live, version=version)

    @cached_property
    def tainted_slices(self) -> tuple[JSON, ...]:
        """The slices as the scheduler uses them: with the taints of DeviceTaintRules on their devices (KEP-5055)."""
        return with_rules(self.slices, self.rules)

    @property
    def objects(self) -> Mapping[str, tuple[JSON, ...]]:
        """The objects by plural name of their resource."""
        return {r.plural: getattr(self, name) for name, _, r in _FIELDS}

    def gap(self, resource: Resource) -> Gap | None:
        return next((g for g in self.gaps if g.resource == resource.plural), None)

    @cached_property
    def incomplete(self) -> frozenset[str]:
        """The plural names of the kinds of which an object was not read."""
        return frozenset([*(g.resource for g in self.gaps), *(KINDS[u.kind].plural for u in self.unread)])

    def is_complete(self, resource: Resource, namespace: str = "") -> bool:
        """Returns whether all objects of a kind were read, so that an absent object does not exist.

        Args:
            namespace: the namespace in question; empty for all namespaces.
        """
        gap = self.gap(resource)
        if gap is not None and not (namespace and gap.read == namespace):
            return False
        return not any(KINDS[u.kind].plural == resource.plural and namespace in {"", u.namespace} for u in self.unread)

    def check_namespace(self, namespace: str) -> None:
        """Checks that an object is in a namespace, or that the namespace is one.

        Raises:
            QuestionError: there is none, so an empty result would say nothing.
        """
        objects = (o["metadata"] for objects in self.objects.values() for o in objects)
        known = {m["namespace"] for m in objects if m.get("namespace")} | {
            n["metadata"]["name"] for n in self.namespaces
        }
        if namespace not in known:
            raise QuestionError(f"no object is in namespace {namespace}{suggestion(namespace, known)}")

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about the objects of the input that were left out."""
        return (*map(str, self.unread), *filter(None, (self.repeated, self.ignored)))


def last_definitions(objects: Iterable[Mapping[str, Any]], namespace: str = "default") -> tuple[list[JSON], str]:
    """Returns the objects without definitions that a later definition of the same object replaces.

    Args:
        namespace: the namespace of objects that do not set it.

    Returns:
        The objects, and a sentence with the objects that are defined more than once; empty if there are none.

    Raises:
        QuestionError: an object has no kind or no name.
    """
    found: dict[Any, Any] = {}
    repeated: dict[str, None] = {}
    for number, obj in enumerate(objects):
        kind, meta = kind_of(obj), obj["metadata"]
        where = str(meta.get("namespace") or namespace)
        if kind in KINDS and is_builtin(obj) and not KINDS[kind].namespaced:
            where = ""
        key = (group_of(obj), kind, where, meta["name"]) if meta.get("name") else number
        if key in found:
            repeated[subject_of(obj)] = None
            del found[key]
        found[key] = obj
    text = f"defined more than once, so the last definition wins: {join_names(repeated)}" if repeated else ""
    return list(found.values()), text


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


def is_read(obj: Mapping[str, Any]) -> bool:
    """Returns whether questions about a cluster read the object. A custom resource may have the kind of another group.

    Raises:
        QuestionError: it is not a Kubernetes object.
    """
    return kind_of(obj) in KINDS and is_builtin(obj)


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
    if resource is EVENTS and api.startswith("events.k8s.io/"):
        obj = as_core_event(obj)
    # Fields with null are removed, because an empty `namespace:` in a file is read as null.
    meta = {k: v for k, v in obj["metadata"].items() if k != "managedFields" and v is not None}
    if resource.namespaced:
        meta.setdefault("namespace", "default")
    name = meta.setdefault("name", f"{meta.get('generateName', '')}0")
    if not meta.get("uid"):
        meta["uid"] = f"{resource.plural}/{meta.get('namespace', '')}/{name}"
    out = {**obj, "metadata": meta}
    if resource is NODES and isinstance(out.get("status"), dict):
        out["status"] = {k: v for k, v in out["status"].items() if k in _STATUS_OF_NODES}
    return out
