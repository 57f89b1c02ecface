"""Checks the parameters of one layer: the names and types of its fields. Other layers may contain the missing fields.

Source: RFC 7386, JSON Merge Patch: objects are merged; any other value replaces the value of the lower layer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec

from .model import Config, read_form
from .types import ConfigTypes, alternatives, types_of

JSON = Mapping[str, Any]


def validate_partial(given: JSON, cls: type[Config]) -> None:
    """Checks that all fields in ``given`` can be part of parameters of ``cls``, also in nested objects. Null is accepted for any field.

    Raises:
        msgspec.ValidationError: a field cannot be part of them; the message has the path of the first such field.
    """
    types = types_of(cls)
    _validate_object(given, types.info, "$", types)


def _validate_object(given: JSON, info: Any, path: str, kind: ConfigTypes) -> None:
    """Checks one object; ``info`` is the type of a struct."""
    rest = given
    if any(isinstance(value, dict) for value in given.values()):
        types = {f.encode_name: f.type for f in info.fields}
        rest = _without_merged_objects(given, types.get, lambda key: f"{path}.{key}", kind)
    try:
        msgspec.convert(rest, _partial(info, kind), dec_hook=read_form, str_keys=True)
    except msgspec.ValidationError as e:
        text, found, below = str(e).rpartition("`$")
        at = path + below.removesuffix("`")
        if found and text.endswith((" - at ", " in ")):
            raise msgspec.ValidationError(f"{text}`{at}`") from None
        raise msgspec.ValidationError(str(e) if path == "$" else f"{e} - at `{path}`") from None


def _without_merged_objects(
    given: JSON, type_of: Callable[[str], Any], path_of: Callable[[str], str], kind: ConfigTypes
) -> dict[str, Any]:
    """Checks the nested objects that are merged with objects of other layers. Returns ``given`` without them."""
    rest: dict[str, Any] = {}
    for key, value in given.items():
        found = _merged_as(type_of(key), value) if isinstance(value, Mapping) else None
        if found is None:
            rest[key] = value
        elif isinstance(found, _OBJECTS):
            _validate_object(value, found, path_of(key), kind)
        elif isinstance(found, msgspec.inspect.DictType):
            at, inner = path_of(key), found.value_type
            if nested := _without_merged_objects(
                value,
                lambda _, inner=inner: inner,  # type: ignore[misc]
                lambda key, at=at: f"{at}[{json.dumps(key)}]",  # type: ignore[misc]
                kind,
            ):
                rest[key] = nested
    return rest


_LATER = object()
_OBJECTS = (msgspec.inspect.StructType, msgspec.inspect.DataclassType)


def _merged_as(info: Any, value: JSON) -> Any:
    """Returns the struct, or the mapping of structs, in ``info`` that ``value`` is merged into.

    Returns ``_LATER`` if ``value`` lacks the tag that selects the struct, and None if objects of this type are not merged.
    """
    infos = alternatives(info)
    structs: list[Any] = [i for i in infos if isinstance(i, _OBJECTS) and not getattr(i, "array_like", False)]
    if tagged := [i for i in structs if getattr(i, "tag_field", None)]:
        given = value.get(tagged[0].tag_field, _LATER)  # a union has one tag field
        if given is _LATER:
            return _LATER if len(tagged) > 1 else tagged[0]
        return next((i for i in tagged if i.tag == given), None)
    maps = [i for i in infos if isinstance(i, msgspec.inspect.DictType) and _merged_as(i.value_type, {}) is not None]
    return next(iter((*structs, *maps)), None)


def _partial(info: Any, kind: ConfigTypes) -> type:
    """Returns a struct with the fields of ``info``, none of them required. It is created once for each kind of parameters."""
    if (found := kind.partial.get(info.cls)) is None:
        found = kind.partial[info.cls] = _made_partial(info)
    return found


def _made_partial(info: Any) -> type:
    if isinstance(info, msgspec.inspect.DataclassType):
        types = get_type_hints(info.cls, include_extras=True)
        return msgspec.defstruct(
            info.cls.__name__, [(f.name, types[f.name] | msgspec.UnsetType, msgspec.UNSET) for f in info.fields]
        )
    fields = [(f.name, f.type | msgspec.UnsetType, msgspec.UNSET) for f in msgspec.structs.fields(info.cls)]
    names = {f.name: f.encode_name for f in info.fields}
    return msgspec.defstruct(
        info.cls.__name__,
        fields,
        rename=names,
        forbid_unknown_fields=info.forbid_unknown_fields,
        kw_only=True,
        tag=info.tag,
        tag_field=info.tag_field,
    )
