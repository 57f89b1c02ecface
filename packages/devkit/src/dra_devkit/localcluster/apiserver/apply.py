"""Server-side apply: field managers, merging of applied configurations, and conflicts between managers.

Every write of a client uses this module. An update (PUT, or a patch other than apply) makes the writer the manager of the fields
that it changes. An apply makes the writer the manager of the fields that it contains. It removes the fields that the writer's
previous apply contained, unless another manager has them. If another manager has a field of the apply with another value, the apply
is rejected, unless it is forced.
Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/ and structured-merge-diff's merge package.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.defaulting import now

from ...schemas import typed
from ...schemas.field_paths import Path, decode, encode, field_element, in_order, shown, without
from ...schemas.merging import Type, type_of

_BEFORE = "before-first-apply"
_NEVER_MANAGED = (
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
)
_STRIPPED: tuple[Path, ...] = (
    ("f:apiVersion",),
    ("f:kind",),
    *(("f:metadata", field_element(name)) for name in _NEVER_MANAGED),
)


class Operation(Enum):
    APPLY = "Apply"
    UPDATE = "Update"


@dataclass(frozen=True)
class Manager:
    """A field manager. The version is part of its identity for updates only, not for applies."""

    name: str
    operation: Operation
    api_version: str
    subresource: str

    @property
    def key(self) -> tuple[str, Operation, str, str]:
        version = "" if self.operation is Operation.APPLY else self.api_version
        return self.name, self.operation, version, self.subresource

    def __str__(self) -> str:
        out = f'"{self.name}"'
        if self.subresource:
            out += f' with subresource "{self.subresource}"'
        return out + (f" using {self.api_version}" if self.operation is Operation.UPDATE else "")


@dataclass(frozen=True)
class ManagedFieldsEntry:
    """One entry of ``metadata.managedFields``. ``fields`` is the JSON that was read; None if ``paths`` has changed since."""

    manager: Manager
    paths: frozenset[Path]
    time: str = ""
    fields: JSON | None = None


Entries = Mapping[tuple[str, Operation, str, str], ManagedFieldsEntry]


class ConflictError(Exception):
    """Other managers have fields that the request applies. ``conflicts`` lists managers and paths. The text is as in Kubernetes."""

    def __init__(self, conflicts: Sequence[tuple[Manager, Path]]) -> None:
        self.conflicts = conflicts
        if len(conflicts) == 1:
            manager, path = conflicts[0]
            super().__init__(f"Apply failed with 1 conflict: conflict with {manager}: {shown(path)}")
            return
        lines = []
        for name in sorted({str(m) for m, _ in conflicts}):
            lines.append(f"conflicts with {name}:")
            lines += [f"- {shown(p)}" for m, p in conflicts if str(m) == name]
        super().__init__(f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines))


@dataclass(frozen=True)
class Rules:
    """The rules for the writes of one request.

    Attributes:
        group, version, kind: the group, version and kind of the objects in the request.
        ignored: paths that the request cannot write: the status, or everything except the status.
        convert: converts an object of this kind to another version.
        types: returns the type of the kind in a version. It is set for kinds that are not in the built-in tables.
    """

    group: str
    version: str
    kind: str
    ignored: Sequence[Path]
    convert: Callable[[JSON, str], JSON]
    types: Callable[[str], Type] | None = None

    @property
    def type(self) -> Type:
        return self.type_in(self.version)

    def type_in(self, version: str) -> Type:
        return self.types(version) if self.types else type_of(self.group, version, self.kind)

    @property
    def hidden(self) -> Sequence[Path]:
        return (*_STRIPPED, *self.ignored)

    def manager(self, name: str, operation: Operation, subresource: str) -> Manager:
        api_version = f"{self.group}/{self.version}" if self.group else self.version
        return Manager(name, operation, api_version, subresource)

    def compare(self, old: JSON, new: JSON, manager: Manager) -> typed.Comparison:
        """Compares two objects, in the API version of ``manager``."""
        version = manager.api_version.rpartition("/")[2]
        if version != self.version:
            old, new = self.convert(old, version), self.convert(new, version)
        found = typed.compare(old, new, self.type_in(version))
        for paths in (found.added, found.removed, found.modified):
            kept = without(paths, _STRIPPED)
            paths.intersection_update(kept)
        return found


# --- managed fields as objects have them ------------------------------------------------------------


def decode_entries(managed: Iterable[Mapping[str, Any] | None] | None) -> Entries:
    """Raises ``ValueError`` for malformed managed fields."""
    out = {}
    for raw in managed or ():
        item = {k: v for k, v in (raw or {}).items() if v is not None}
        if not item.get("manager") and not item.get("fieldsV1"):
            continue
        operation = Operation(item.get("operation", Operation.UPDATE.value))
        manager = Manager(item.get("manager", ""), operation, item.get("apiVersion", ""), item.get("subresource", ""))
        fields = item.get("fieldsV1") or {}
        if not isinstance(fields, dict):
            raise ValueError("fieldsV1 is not an object")
        out[manager.key] = ManagedFieldsEntry(manager, frozenset(decode(fields)), item.get("time", ""), fields)
    return out


def encode_entries(entries: Entries) -> list[JSON]:
    """Encodes the entries as JSON. Entries of applies come before entries of updates; each is sorted by time and name."""
    out = []
    for entry in sorted(
        entries.values(), key=lambda e: (e.manager.operation is Operation.UPDATE, e.time, e.manager.name)
    ):
        manager = entry.manager
        item: JSON = {
            "manager": manager.name,
            "operation": manager.operation.value,
            "apiVersion": manager.api_version,
            "time": entry.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": encode(entry.paths) if entry.fields is None else entry.fields,
        }
        if manager.subresource:
            item["subresource"] = manager.subresource
        out.append(item)
    return out


# --- the two operations -----------------------------------------------------------------------------


def update(live: JSON | None, new: JSON, entries: Entries, manager: Manager, rules: Rules, empty: JSON) -> Entries:
    """Returns the managers after a write that is not an apply. For a creation, ``live`` is None and ``new`` is compared with ``empty``."""
    if live is not None and not entries:
        return {}  # A client removed all managers, and no client has applied the object since then.
    found = rules.compare(live if live is not None else empty, new, manager)
    known = {manager.api_version: found}
    out = _other_managers(live if live is not None else empty, new, entries, manager, rules, known, force=True)
    before = entries[manager.key].paths if manager.key in entries else frozenset()
    paths = (before | found.modified | found.added) - found.removed
    return _with(out, ManagedFieldsEntry(manager, frozenset(without(paths, rules.hidden))), entries)


def apply(
    live: JSON | None, applied: JSON, entries: Entries, manager: Manager, rules: Rules, empty: JSON, *, force: bool
) -> tuple[JSON, Entries]:
    """Returns the merged object and its managers. For a creation, ``live`` is None and ``applied`` is merged into ``empty``.

    Raises:
        ConflictError: Another manager has an applied field with another value, and ``force`` is false.
        typed.SchemaError: ``applied`` does not fit its kind.
    """
    kind = rules.type
    typed.check(applied, kind)
    if live is not None and not entries:
        first = rules.manager(_BEFORE, Operation.UPDATE, "")
        found = rules.compare(empty, live, first)
        entries = _with({}, ManagedFieldsEntry(first, frozenset(found.added | found.modified)), {})
    live = live if live is not None else empty
    last = entries.get(manager.key)
    claimed = ManagedFieldsEntry(manager, frozenset(without(typed.paths_of(applied, kind), rules.ignored)))
    merged = typed.merge(live, applied, kind)
    if last is not None and last.paths:
        all_entries = {**entries, manager.key: claimed}
        merged = _pruned(merged, last, all_entries, rules)
    remaining = _other_managers(live, merged, entries, manager, rules, {}, force=force)
    kept = dataclasses.replace(claimed, paths=frozenset(without(claimed.paths, _STRIPPED)))
    return typed.cleaned(merged, kind), _with(remaining, kept, entries)


def _pruned(merged: JSON, last: ManagedFieldsEntry, entries: Entries, rules: Rules) -> JSON:
    """Returns ``merged`` without the fields that the manager's previous apply contained and that no manager has now.

    The API versions of a kind differ only below atomic fields, so the paths are the same in each version.
    """
    kind = rules.type
    had = typed.with_parent_fields(last.paths, kind)
    pruned = typed.remove(merged, had, kind) or {}
    # Restore the fields that other managers have, or that this manager applies now.
    everything = typed.with_parent_fields(typed.paths_of(merged, kind), kind)
    kept = typed.with_parent_fields(typed.paths_of(pruned, kind), kind)
    owned: set[Path] = set()
    for entry in entries.values():
        owned |= entry.paths
    pruned = typed.remove(merged, everything - (kept | typed.with_parent_fields(owned, kind)), kind) or {}
    # Restore the fields that were removed only with their parent and had not been applied.
    kept = typed.with_parent_fields(typed.paths_of(pruned, kind), kind)
    out: JSON = typed.remove(merged, (everything - kept) & had, kind) or {}
    return out


def _other_managers(
    old: JSON,
    new: JSON,
    entries: Entries,
    writer: Manager,
    rules: Rules,
    seen: dict[str, typed.Comparison],
    *,
    force: bool,
) -> Entries:
    """Returns the other managers without the fields that the writer changed or removed.

    Args:
        seen: known comparisons, by version. The function adds new comparisons.

    Raises:
        ConflictError: The writer changed another manager's fields, and ``force`` is false.
    """
    out, conflicts = {}, []
    for key, entry in entries.items():
        if key == writer.key:
            continue
        version = entry.manager.api_version
        found = seen[version] = seen.get(version) or rules.compare(old, new, entry.manager)
        taken = entry.paths & (found.modified | found.added)
        conflicts += [(entry.manager, p) for p in in_order(taken)]
        remaining = entry.paths - taken - found.removed
        out[key] = entry if remaining == entry.paths else dataclasses.replace(entry, paths=remaining, fields=None)
    if conflicts and not force:
        raise ConflictError(sorted(conflicts, key=lambda c: str(c[0])))
    return {k: e for k, e in out.items() if e.paths}


def _with(others: Entries, entry: ManagedFieldsEntry, before: Entries) -> Entries:
    """Returns ``others`` plus ``entry``. Keeps the earlier timestamp if the entry did not change."""
    known = before.get(entry.manager.key)
    out = {k: e for k, e in others.items() if k != entry.manager.key}
    if entry.paths:
        same = known is not None and known.paths == entry.paths and known.manager == entry.manager
        out[entry.manager.key] = known if same and known is not None else dataclasses.replace(entry, time=now())
    return out
