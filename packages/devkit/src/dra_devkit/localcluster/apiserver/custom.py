"""Custom resources: makes a served kind from a CustomResourceDefinition, and validates objects with the definition's schema."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.defaulting import now
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, invalid, required, unsupported

from ...scheduling.cel.patterns import regex
from ...schemas import decoding, shapes
from ...schemas.merging import Type, from_schema
from ...validation import metadata as metadata_rules
from . import custom_rules
from .columns import AGE, NAME, Column, getter, since
from .kinds import ServedKind

Schema = Mapping[str, Any]
_ANYTHING: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
_TEXT: Schema = {"type": "string"}
_ANY: Schema = {"x-kubernetes-preserve-unknown-fields": True}
_META = {"apiVersion", "kind", "metadata"}


def kind_of(definition: JSON) -> ServedKind:
    """Returns the kind of a CustomResourceDefinition, with its served versions. The storage version comes first."""
    spec = definition["spec"]
    names = spec["names"]
    served = [v for v in spec.get("versions") or () if v.get("served")]
    served.sort(key=lambda v: not v.get("storage"))
    schemas = {v["name"]: (v.get("schema") or {}).get("openAPIV3Schema") or _ANYTHING for v in served}
    scale: Mapping[str, str] = next((s for v in served if (s := (v.get("subresources") or {}).get("scale"))), {})
    return ServedKind(
        spec["group"],
        tuple(schemas),
        names["kind"],
        names["plural"],
        spec.get("scope") == "Namespaced",
        tuple(names.get("shortNames") or ()),
        any((v.get("subresources") or {}).get("status") is not None for v in served),
        subresources=("scale",) if scale else (),
        categories=tuple(names.get("categories") or ()),
        selectable=tuple(f["jsonPath"].lstrip(".") for v in served for f in v.get("selectableFields") or ()),
        custom_columns=_columns(served[0] if served else {}),
        schemas=schemas,
        scale=scale,
    )


def _columns(version: Schema) -> tuple[Column, ...]:
    declared = version.get("additionalPrinterColumns") or ()
    if not declared:
        return (NAME, AGE)
    return (NAME, *((c["name"], int(c.get("priority") or 0), _column(c)) for c in declared))


def _column(column: Schema) -> Any:
    found = getter(*[p for p in re.split(r"[.\[\]'\\]+", str(column.get("jsonPath", ""))) if p])
    return (lambda obj: since(found(obj))) if column.get("type") == "date" else found


def definition_faults(definition: JSON, old: JSON | None) -> list[FieldError]:
    """Returns the errors in a CustomResourceDefinition because of which its kind cannot be served."""
    spec, name = definition.get("spec") or {}, definition["metadata"].get("name", "")
    names, group = spec.get("names") or {}, spec.get("group", "")
    out: list[FieldError] = []
    if not group:
        out.append(required("spec.group"))
    out += [required(f"spec.names.{f}") for f in ("plural", "kind") if not names.get(f)]
    if spec.get("scope") not in {"Namespaced", "Cluster"}:
        out.append(unsupported("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced")))
    if not out and name != f"{names['plural']}.{group}":
        out.append(invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    versions = spec.get("versions") or []
    if sum(bool(v.get("storage")) for v in versions) != 1:
        out.append(
            invalid(
                "spec.versions",
                [v.get("name") for v in versions],
                "must have exactly one version marked as storage version",
            )
        )
    for i, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        where = f"spec.versions[{i}].schema.openAPIV3Schema"
        if not isinstance(schema, Mapping):
            out.append(required(where, "schemas are required"))
        elif schema.get("type") != "object":
            out.append(invalid(f"{where}.type", schema.get("type"), "must be object at the root"))
        else:
            out += custom_rules.definition_faults(schema, where)
        out += _scale_faults(version, f"spec.versions[{i}].subresources.scale")
    if old is not None and spec.get("scope") != old["spec"].get("scope"):
        out.append(invalid("spec.scope", spec.get("scope"), "field is immutable"))
    return out


_SCALE_PATHS = (
    ("specReplicasPath", ".spec.", True),
    ("statusReplicasPath", ".status.", True),
    ("labelSelectorPath", ".", False),
)


def _scale_faults(version: Schema, path: str) -> list[FieldError]:
    scale = (version.get("subresources") or {}).get("scale")
    if scale is None:
        return []
    out = []
    for name, root, needed in _SCALE_PATHS:
        json_path = str(scale.get(name) or "")
        if not json_path and needed:
            out.append(required(f"{path}.{name}"))
        elif json_path and not json_path.startswith(root):
            out.append(
                invalid(
                    f"{path}.{name}", json_path, f"should be a json path under {root.rstrip('.') or '.spec or .status'}"
                )
            )
    return out


# --- objects ----------------------------------------------------------------------------------------


def pruned(obj: Mapping[str, Any], schema: Schema, unknown: list[str]) -> JSON:
    """Returns ``obj`` without the fields that the schema does not define. Appends the paths of these fields to ``unknown``.

    Raises:
        DecodeError: A metadata field has a wrong type.
    """
    shape = shapes.named("apis.meta.v1.ObjectMeta")
    assert isinstance(shape, shapes.Struct)
    below: list[str] = []
    metadata = decoding.decode(obj.get("metadata") or {}, shape, below)
    unknown += [f"metadata.{path}" for path in below]
    rest = _prune({k: v for k, v in obj.items() if k not in _META}, schema, "", unknown)
    return {"metadata": metadata, **rest}


def _prune(value: Any, schema: Schema, path: str, unknown: list[str]) -> Any:
    if isinstance(value, dict):
        fields, rest = schema.get("properties") or {}, schema.get("additionalProperties")
        keeps = schema.get("x-kubernetes-preserve-unknown-fields") or rest is True
        out = {}
        for key, item in value.items():
            where = f"{path}.{key}" if path else key
            if key in fields:
                out[key] = _prune(item, fields[key], where, unknown)
            elif isinstance(rest, Mapping):
                out[key] = _prune(item, rest, where, unknown)
            elif keeps or (schema.get("x-kubernetes-embedded-resource") and key in _META):
                out[key] = copy.deepcopy(item)
            else:
                unknown.append(where)
        return out
    if isinstance(value, list):
        item_schema = _items(schema)
        return [_prune(v, item_schema, f"{path}[{i}]", unknown) for i, v in enumerate(value)]
    return value


def _items(schema: Schema) -> Schema:
    found = schema.get("items")
    return found if isinstance(found, Mapping) else _ANY


def fill(obj: Any, schema: Schema) -> None:
    """Sets the schema's defaults in place. A null in a field that is not nullable counts as absent."""
    if isinstance(obj, dict):
        for name, inner in (schema.get("properties") or {}).items():
            if "default" in inner and (name not in obj or (obj[name] is None and not inner.get("nullable"))):
                obj[name] = copy.deepcopy(inner["default"])
            if name in obj:
                fill(obj[name], inner)
        if isinstance(rest := schema.get("additionalProperties"), Mapping):
            for item in obj.values():
                fill(item, rest)
    elif isinstance(obj, list) and isinstance(items := schema.get("items"), Mapping):
        for item in obj:
            fill(item, items)


def faults(kind: ServedKind, obj: JSON, old: JSON | None) -> list[FieldError]:
    """Validates an object with the schema of the stored version, and returns all errors."""
    meta = obj["metadata"]
    out = metadata_rules.metadata(meta) if old is None else metadata_rules.updated_metadata(meta, wholly=False)
    schema = kind.schemas[kind.versions[0]]
    found = _faults({k: v for k, v in obj.items() if k not in _META}, schema, "")
    return out + found + ([] if found else custom_rules.faults(_typed(kind, obj), old and _typed(kind, old), schema))


def _typed(kind: ServedKind, obj: JSON) -> JSON:
    """Returns the form of an object that CEL rules can use: with apiVersion and kind, and with only the names in its metadata."""
    meta = {k: v for k, v in obj["metadata"].items() if k in {"name", "generateName"}}
    return {**obj, "apiVersion": kind.api_version(kind.versions[0]), "kind": kind.kind, "metadata": meta}


_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def _faults(value: Any, schema: Schema, path: str) -> list[FieldError]:
    if value is None and (schema.get("nullable") or not schema.get("type")):
        return []
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, (int, str)) and not isinstance(value, bool)
        return [] if fits else [_wrong_type(path, value, "integer,string")]
    wanted = _TYPES.get(schema.get("type", ""))
    if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
        return [_wrong_type(path, value, str(schema["type"]))]
    out: list[FieldError] = []
    if "enum" in schema and value not in schema["enum"]:
        out.append(unsupported(path, value, map(str, schema["enum"])))
    if isinstance(value, dict):
        out += [required(f"{path}.{n}" if path else n) for n in schema.get("required") or () if value.get(n) is None]
        fields, rest = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, item in value.items():
            inner = fields.get(key) or (rest if isinstance(rest, Mapping) else None)
            if inner and not (item is None and key not in (schema.get("required") or ())):
                out += _faults(item, inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        out += _size(len(value), schema, path, "Items")
        for i, item in enumerate(value):
            out += _faults(item, _items(schema), f"{path}[{i}]")
    elif isinstance(value, str):
        out += _size(len(value), schema, path, "Length")
        out += _pattern(value, schema, path)
        out += _format(value, schema, path)
    elif isinstance(value, (int, float)):
        out += _bounds(value, schema, path)
    return out


def _wrong_type(path: str, value: Any, wanted: str) -> FieldError:
    kinds = {bool: "boolean", str: "string", list: "array", dict: "object", int: "integer", float: "number"}
    actual = "null" if value is None else kinds.get(type(value), "object")
    detail = f'{path} in body must be of type {wanted}: "{actual}"'
    return FieldError("FieldValueTypeInvalid", path, f'Invalid value: "{actual}": {detail}')


def _size(size: int, schema: Schema, path: str, suffix: str) -> list[FieldError]:
    maximum, minimum = schema.get(f"max{suffix}"), schema.get(f"min{suffix}")
    if maximum is not None and size > maximum:
        return [FieldError("FieldValueTooLong", path, f"Too long: may not be more than {maximum}")]
    if minimum is not None and size < minimum:
        unit = "items" if suffix == "Items" else "chars long"
        return [invalid(path, size, f"{path} in body should be at least {minimum} {unit}")]
    return []


def _pattern(value: str, schema: Schema, path: str) -> list[FieldError]:
    pattern = schema.get("pattern")
    try:
        fits = pattern is None or regex(pattern).matches(value)
    except ValueError:  # RE2 does not support the pattern in the definition
        return []
    return [] if fits else [invalid(path, value, f"{path} in body should match '{pattern}'")]


def _format(value: str, schema: Schema, path: str) -> list[FieldError]:
    name = schema.get("format", "")
    if custom_rules.fits_format(value, name):
        return []
    return [invalid(path, value, f'{path} in body must be of type {name}: "{value}"')]


def _bounds(value: float, schema: Schema, path: str) -> list[FieldError]:
    out = []
    if (minimum := schema.get("minimum")) is not None and value < minimum:
        out.append(invalid(path, value, f"{path} in body should be greater than or equal to {minimum}"))
    if (maximum := schema.get("maximum")) is not None and value > maximum:
        out.append(invalid(path, value, f"{path} in body should be less than or equal to {maximum}"))
    return out


def merge_type(kind: ServedKind, version: str) -> Type:
    """Returns the merge type of a custom kind: its schema, with the metadata that all objects have."""
    schema = kind.schemas[version]
    always = {"metadata": {"$ref": "apis.meta.v1.ObjectMeta"}, "apiVersion": _TEXT, "kind": _TEXT}
    return from_schema({**schema, "properties": {**(schema.get("properties") or {}), **always}})


def established_status(names: JSON, stored: list[str]) -> JSON:
    """Returns the status of a CustomResourceDefinition whose kind is served."""

    def condition(kind: str, reason: str, message: str) -> JSON:
        times = {"lastTransitionTime": now()}
        return {"type": kind, "status": "True", "reason": reason, "message": message, **times}

    conditions = [
        condition("NamesAccepted", "NoConflicts", "no conflicts found"),
        condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ]
    return {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}
