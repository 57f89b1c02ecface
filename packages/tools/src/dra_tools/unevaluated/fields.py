"""The fields of resource.k8s.io that are stored, and that the allocator of this package does not evaluate."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from dra_devkit.schemas.object_fields import fields_at
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.conversion import GROUP
from dra_kubeletplugin.resourceapi.fields import ApiField, fields_of, rows, table


@functools.cache
def unevaluated_fields() -> tuple[tuple[str, ApiField], ...]:
    """Returns the fields that the allocator does not evaluate, each with its kind, from the table of fields of the framework."""
    return tuple((kind, field) for kind in table().kinds for field in fields_of(kind) if field.row.unevaluated)


def unevaluated_features(obj: ReadOnlyJSON) -> Iterator[str]:
    """Yields the features that an object uses and that are not evaluated, each once."""
    fields = (field for kind, field in unevaluated_fields() if kind == obj.get("kind"))
    used = (f.row.unevaluated for f in fields if any(parent[key] for parent, key, _ in fields_at(obj, f.path)))
    yield from dict.fromkeys(used)


def unknown_fields(obj: ReadOnlyJSON) -> Iterator[str]:
    """Yields the paths of an object's fields that the table does not have; an API server of a newer release stores such fields.

    The values of maps, such as attributes, are not searched.
    """
    kind = str(obj.get("kind"))
    if str(obj.get("apiVersion")).startswith(f"{GROUP}/"):
        for part in rows(kind).keys() & obj.keys():
            yield from _unknown(obj[part], rows(kind)[part].item_type, part)


def _unknown(value: Any, type_name: str, path: str) -> Iterator[str]:
    known = rows(type_name)
    if not known or not isinstance(value, dict):
        return
    for name, inner in value.items():
        where = f"{path}.{name}"
        row = known.get(name)
        if row is None:
            if name != "metadata":  # of a template
                yield where
        elif isinstance(inner, dict) and row.item_type == row.type:
            yield from _unknown(inner, row.type, where)
        elif isinstance(inner, list) and rows(row.item_type):
            for i, item in enumerate(inner):
                yield from _unknown(item, row.item_type, f"{where}[{i}]")


def with_device(sl: ReadOnlyJSON, device: str) -> ReadOnlyJSON:
    """Returns a slice with only one of its devices."""
    spec = sl["spec"]
    return {**sl, "spec": {**spec, "devices": [d for d in spec.get("devices") or [] if d["name"] == device]}}
