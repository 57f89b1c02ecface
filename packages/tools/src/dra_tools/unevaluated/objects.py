"""Finds the parts of objects that are stored and not evaluated: features without an evaluator, and fields that are not known."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Set
from typing import Any

from dra_devkit.scheduling.framework.claim_cache import is_allocated
from dra_devkit.schemas.object_fields import fields_at
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.text import counted
from dra_kubeletplugin.resourceapi.conversion import GROUP
from dra_kubeletplugin.resourceapi.fields import ApiField, fields_of, rows, table

from ..snapshot import Snapshot
from .parts import UnevaluatedPart, merged, subject_of


@functools.cache
def unevaluated_fields() -> tuple[tuple[str, ApiField], ...]:
    """Returns the fields that the allocator does not evaluate, each with its kind, from the table of fields of the framework."""
    return tuple((kind, field) for kind in table().kinds for field in fields_of(kind) if field.row.unevaluated)


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(field.name for _, field in unevaluated_fields())


def unevaluated_features(obj: ReadOnlyJSON) -> Iterator[str]:
    """Yields the features that an object uses and that are not evaluated, each once."""
    fields = (field for kind, field in unevaluated_fields() if kind == obj.get("kind"))
    used = (f.row.unevaluated for f in fields if any(parent[key] for parent, key, _ in fields_at(obj, f.path)))
    yield from dict.fromkeys(used)


def unknown_fields(obj: ReadOnlyJSON) -> Iterator[str]:
    """Yields the paths of an object's fields that the table does not have; an API server of a newer release stores such fields."""
    kind = str(obj.get("kind"))
    if str(obj.get("apiVersion")).startswith(f"{GROUP}/"):
        for part in rows(kind).keys() & obj.keys():
            yield from _unknown(obj[part], rows(kind)[part].item_type, part)


def _unknown(value: Any, type_name: str, path: str) -> Iterator[str]:
    known, leaves = rows(type_name), _leaves(type_name)
    if not known or not isinstance(value, dict):
        return
    for name, inner in value.items():
        if name in leaves:
            continue
        where = f"{path}.{name}"
        row = known.get(name)
        if row is None:
            if name != "metadata":  # of a template
                yield where
        elif row.type == row.item_type:
            yield from _unknown(inner, row.type, where)
        elif isinstance(inner, list):
            for i, item in enumerate(inner):
                yield from _unknown(item, row.item_type, f"{where}[{i}]")
        elif isinstance(inner, dict):
            item_type = row.item_type
            simple = _leaves(item_type)
            for key, item in inner.items():
                # mostly not: a cluster has very many attributes and capacities
                if not (isinstance(item, dict) and item.keys() <= simple):
                    yield from _unknown(item, item_type, f"{where}.{key}")


@functools.cache
def _leaves(type_name: str) -> Set[str]:
    """Returns the fields of a type that have no fields of their own."""
    return frozenset(name for name, row in rows(type_name).items() if not rows(row.item_type))


def not_evaluated(snapshot: Snapshot, obj: ReadOnlyJSON) -> Iterator[UnevaluatedPart]:
    """Yields the parts of one object that decide which devices a pod gets and are not evaluated."""
    for feature in (*unevaluated_features(obj), *_unknown_fields(snapshot, obj)):
        yield UnevaluatedPart(subject_of(obj), feature)


def not_evaluated_of_device(
    snapshot: Snapshot, slices: Iterable[ReadOnlyJSON], device: str
) -> Iterator[UnevaluatedPart]:
    """Like :func:`not_evaluated`, for one device and the slices of its pool."""
    for sl in slices:
        if any(d["name"] == device for d in sl["spec"].get("devices") or []):
            devices = [d for d in sl["spec"]["devices"] if d["name"] == device]
            for found in not_evaluated(snapshot, {**sl, "spec": {**sl["spec"], "devices": devices}}):
                yield UnevaluatedPart(f"{found.subject}, device {device}", found.why)


SliceParts = tuple[ReadOnlyJSON, tuple[str, ...]]


def parts_of_slice(sl: ReadOnlyJSON) -> SliceParts:
    """Returns a slice and its parts that are not evaluated. The walk through all devices takes long, so callers cache it."""
    return sl, (*unevaluated_features(sl), *_sentences(unknown_fields(sl)))


def all_not_evaluated(snapshot: Snapshot, slices: Iterable[SliceParts] | None = None) -> tuple[UnevaluatedPart, ...]:
    """Returns the parts of all objects that are not evaluated. Slices of one driver with the same feature are one part.

    Args:
        slices: :func:`parts_of_slice` of each slice of the snapshot, if the caller has cached it.
    """
    found: list[UnevaluatedPart] = []
    by_driver: dict[tuple[str, str], list[str]] = {}
    for sl, parts in slices if slices is not None else map(parts_of_slice, snapshot.slices):
        for feature in dict.fromkeys([*parts, *_sentences(_left_out(snapshot, sl))]):
            by_driver.setdefault((str(sl["spec"]["driver"]), feature), []).append(subject_of(sl))
    for (_, feature), subjects in by_driver.items():
        more = f" and {counted(len(subjects) - 1, 'more slice')} of its driver" if len(subjects) > 1 else ""
        found.append(UnevaluatedPart(subjects[0] + more, feature))
    open_claims = (c for c in snapshot.claims if not is_allocated(c))
    for obj in (
        *open_claims,
        *snapshot.templates,
        *snapshot.classes,
        *snapshot.pods,
        *snapshot.rules,
        *snapshot.groups,
    ):
        features = (*unevaluated_features(obj), *_unknown_fields(snapshot, obj))
        found += (UnevaluatedPart(subject_of(obj), feature) for feature in features)
    return merged(found)


def _unknown_fields(snapshot: Snapshot, obj: ReadOnlyJSON) -> Iterator[str]:
    return _sentences((*_left_out(snapshot, obj), *unknown_fields(obj)))


def _left_out(snapshot: Snapshot, obj: ReadOnlyJSON) -> Iterable[str]:
    """Returns the fields of an object that were left out when it was read."""
    return snapshot.unknown.get(str(obj["metadata"].get("uid")), ())


def _sentences(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if _names().isdisjoint(re.split(r"\W+", path)):  # a field of such a feature is not named again
            yield f"the field {path}, which is not known here"
