"""What questions about a cluster are asked of: its objects as plain JSON, and what of them could not be had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import QuestionError, describe
from ..kube import Resource
from ..kube.resource import CLAIMS, CLASSES, EVENTS, NAMESPACES, NODES, PODS, SLICES, TEMPLATES
from ..resourceapi.conversion import GROUP, VERSIONS, convert
from .object_shapes import FAULTS, settled

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
}
_UNREAD = ("managedFields",)
_UNREAD_OF_NODES = ("images", "volumesInUse", "volumesAttached", "nodeInfo", "conditions", "addresses", "config")


@dataclass(frozen=True)
class Gap:
    """A kind of object that could not be read. ``why`` is a sentence with what to ask for; ``read`` is how far it was.

    ``read`` is empty where nothing is known, or the one namespace that is.
    """

    resource: str
    why: str
    read: str = ""


@dataclass(frozen=True)
class Unread:
    """An object that has not the form of its kind, and counts as not there."""

    kind: str
    namespace: str
    name: str
    why: str

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {where} cannot be read, and is left out: {self.why}"


@dataclass(frozen=True)
class Snapshot:
    """The objects of one moment, DRA's in ``resource.k8s.io/v1``.

    ``gaps`` are kinds that are not all there, ``unread`` objects that have no object's form. ``live`` says that the moment is now:
    what depends on the clock is judged then.
    """

    pods: tuple[JSON, ...] = ()
    nodes: tuple[JSON, ...] = ()
    namespaces: tuple[JSON, ...] = ()
    events: tuple[JSON, ...] = ()
    claims: tuple[JSON, ...] = ()
    templates: tuple[JSON, ...] = ()
    classes: tuple[JSON, ...] = ()
    slices: tuple[JSON, ...] = ()
    gaps: tuple[Gap, ...] = ()
    unread: tuple[Unread, ...] = ()
    live: bool = False

    @classmethod
    def of(cls, objects: Iterable[Mapping[str, Any]], *, gaps: Iterable[Gap] = (), live: bool = False) -> Snapshot:
        """From objects of any kinds, in any order; those that no question is about are passed over.

        What a server would have set is set where it is missing: a UID, and the namespace ``default``.

        Raises :class:`QuestionError` for what has no kind or no name.
        """
        found: dict[str, list[JSON]] = {r.plural: [] for r in KINDS.values()}
        unread = []
        for obj in objects:
            resource = KINDS.get(kind_of(obj))
            if resource is None:
                continue
            known = read(obj, resource)
            try:
                found[resource.plural].append(settled(known))
            except FAULTS as e:
                meta = known["metadata"]
                unread.append(Unread(known["kind"], str(meta.get("namespace") or ""), str(meta["name"]), describe(e)))
        return cls.by_plural(found, gaps, unread, live=live)

    @classmethod
    def by_plural(
        cls,
        found: Mapping[str, Sequence[JSON]],
        gaps: Iterable[Gap] = (),
        unread: Iterable[Unread] = (),
        *,
        live: bool = False,
    ) -> Snapshot:
        """From objects that were read (:func:`read`) and have their kind's form, by the plural name of their resource."""

        def of(resource: Resource) -> tuple[JSON, ...]:
            return tuple(found.get(resource.plural, ()))

        return cls(
            of(PODS),
            of(NODES),
            of(NAMESPACES),
            of(EVENTS),
            of(CLAIMS),
            of(TEMPLATES),
            of(CLASSES),
            of(SLICES),
            tuple(gaps),
            tuple(unread),
            live,
        )

    @property
    def objects(self) -> Mapping[str, tuple[JSON, ...]]:
        """By the plural name of their resource."""
        found = (
            self.pods,
            self.nodes,
            self.namespaces,
            self.events,
            self.claims,
            self.templates,
            self.classes,
            self.slices,
        )
        resources = (PODS, NODES, NAMESPACES, EVENTS, CLAIMS, TEMPLATES, CLASSES, SLICES)
        return {r.plural: objects for r, objects in zip(resources, found, strict=True)}

    def gap(self, resource: Resource) -> Gap | None:
        return next((g for g in self.gaps if g.resource == resource.plural), None)


def kind_named(resource: Resource) -> str:
    """``Pod`` for pods."""
    return next(kind for kind, known in KINDS.items() if known.plural == resource.plural)


def kind_of(obj: Mapping[str, Any]) -> str:
    """Raises :class:`QuestionError` for what is no object."""
    kind, meta = (obj.get("kind"), obj.get("metadata")) if isinstance(obj, Mapping) else (None, None)
    name = (meta.get("name") or meta.get("generateName")) if isinstance(meta, Mapping) else None
    if not isinstance(kind, str) or not isinstance(name, str) or not isinstance(obj.get("apiVersion"), str):
        raise QuestionError(f"an object without apiVersion, kind or metadata.name: {str(obj)[:200]}")
    return kind


def read(obj: Mapping[str, Any], resource: Resource) -> JSON:
    """The object as questions look at it: in the version that they know, without what they never read.

    Raises :class:`QuestionError`.
    """
    api = str(obj["apiVersion"])
    if resource.group == GROUP and api != f"{GROUP}/v1":
        if api.partition("/")[2] not in VERSIONS:
            known = ", ".join(VERSIONS)
            raise QuestionError(
                f"{obj['kind']} {obj['metadata'].get('name')}: apiVersion {api} is not known, only {known} of {GROUP}"
            )
        try:
            obj = convert(obj, "v1")
        except (TypeError, KeyError, ValueError, AttributeError) as e:
            raise QuestionError(f"{obj['kind']} {obj['metadata'].get('name')} cannot be read: {describe(e)}") from None
    meta = {k: v for k, v in obj["metadata"].items() if k not in _UNREAD}
    if resource.namespaced:
        meta.setdefault("namespace", "default")
    name = meta.setdefault("name", f"{meta.get('generateName', '')}0")
    if not meta.get("uid"):
        meta["uid"] = f"{resource.plural}/{meta.get('namespace', '')}/{name}"
    out = {**obj, "metadata": meta}
    if resource is NODES and isinstance(out.get("status"), dict):
        out["status"] = {k: v for k, v in out["status"].items() if k not in _UNREAD_OF_NODES}
    return out
