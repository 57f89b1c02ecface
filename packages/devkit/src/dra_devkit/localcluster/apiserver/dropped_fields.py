"""Drops fields that the simulated release does not know, or whose feature gate is off.

If the stored object already uses the fields of a gate, an update keeps them, so that an unrelated update cannot break a running
workload.
The table of fields (``resourceapi/fields.toml`` of the framework) contains the release and the gate of each field. Source of the rule
for stored objects: the strategies of Kubernetes, ``dropDisabledFields``.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence

import msgspec

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.fields import ApiField, FieldRow, fields_of

from ...kubernetes_releases import RELEASES, Features
from ...schemas.object_fields import fields_at
from .kinds import ServedKind


@functools.cache
def _fields(kind: str) -> tuple[ApiField, ...]:
    """Returns the fields of a kind that some release does not know or drops."""
    return tuple(f for f in fields_of(kind) if f.since or f.until or f.row.gate or f.row.off_until)


def without_unknown(kind: ServedKind, obj: JSON, features: Features) -> tuple[JSON, list[str]]:
    """Removes fields that the release does not know, as its decoder does.

    Args:
        obj: an object in v1; it is not changed.

    Returns:
        The object without these fields, and their paths.
    """
    removed: list[str] = []
    for path in _occurring(obj, [f.path for f in _fields(kind.kind) if not _knows(features, f)]):
        if not any(fields_at(obj, path)):
            continue  # another field has this name. Then nothing is copied: a driver's parameters may be nested too deeply for that.
        obj = obj if removed else copy.deepcopy(obj)
        for owner, key, where in list(fields_at(obj, path)):
            del owner[key]
            removed.append(where)
    return obj, removed


def _occurring(obj: JSON, paths: Sequence[str]) -> list[str]:
    """Returns the paths whose last name occurs in the object's JSON text, because a text search is faster than reading all devices."""
    if not paths:
        return []
    text = msgspec.json.encode(obj)
    return [p for p in paths if f'"{p.rpartition(".")[2]}":'.encode() in text]


def releases_of(kind: ServedKind, path: str) -> tuple[str, str]:
    """Returns the first and the last release that have a field. Each is empty if it is not among the supported releases."""
    name = path.rpartition(".")[2]
    return next(((f.since, f.until) for f in _fields(kind.kind) if f.name == name), ("", ""))


def _knows(features: Features, field: ApiField) -> bool:
    if field.since and not features.is_at_least(field.since):
        return False
    return not field.until or RELEASES.index(features.release) <= RELEASES.index(field.until)


def _is_dropped(features: Features, row: FieldRow) -> bool:
    if row.off_until:
        return row.off_until == "later" or RELEASES.index(features.release) <= RELEASES.index(row.off_until)
    return bool(row.gate) and not features.has(row.gate)


def drop(kind: ServedKind, obj: JSON, old: JSON | None, features: Features) -> list[tuple[str, str]]:
    """Removes fields of disabled gates in place, unless the old object already uses the gate's fields.

    Returns:
        The path and the gate of each removed field; the gate is empty if no gate can switch the field on.
    """
    dropped: list[tuple[str, str]] = []
    by_gate: dict[str, list[str]] = {}
    for field in _fields(kind.kind):
        if _is_dropped(features, field.row):  # each field without a gate is its own group
            by_gate.setdefault(field.row.gate or field.path, []).append(field.path)
    occurring = set(_occurring(obj, [path for paths in by_gate.values() for path in paths]))
    for gate, paths in by_gate.items():
        if occurring.isdisjoint(paths) or (old is not None and any(_is_used(old, p) for p in paths)):
            continue
        for path in filter(occurring.__contains__, paths):
            for owner, key, where in list(fields_at(obj, path)):
                del owner[key]
                dropped.append((where, gate if gate != path else ""))
    return dropped


def _is_used(obj: JSON, path: str) -> bool:
    return any(owner[key] not in (None, [], {}, "") for owner, key, _ in fields_at(obj, path))
