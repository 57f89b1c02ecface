"""Writes faults of parameters as sentences with the field, the nearest known name and the allowed values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...base.text import did_you_mean, join_first
from ...errors import ConfigError, clip, printable
from ..config.model import Config, Steps
from ..config.types import alternatives, types_of
from .all_errors import Fault

JSON = Mapping[str, Any]

MORE = "there may be more faults: validation stopped here"
"""The last item of an error's ``faults``, if the search stopped before the end."""
_MAX_NAMES = 12  # fields that are listed when none is similar
_LONGEST = 80  # bytes of a key in a path, and of an unknown field
_LONGEST_TEXT = 512  # bytes of a message of msgspec or check(), which may quote the value


def refusal(*wrong: str, at: str = "") -> ConfigError:
    """Creates an error with a sentence for each fault, all at one place. Its message contains as many sentences as fit into an event."""
    head = f"{at}: " if at else ""
    found = [w for w in wrong if w != MORE]
    more = [MORE] if len(found) < len(wrong) else []
    error = ConfigError("; ".join((*([head + join_first(found, "; ")] if found else ()), *more)))
    error.faults = (*(head + w for w in found), *more)
    return error


def fault_sentences(fault: Fault, given: JSON, cls: type[Config]) -> Iterator[str]:
    """Yields the sentences of one fault, the path first: with the nearest known name, the allowed values, or each missing field."""
    path, here = path_of(cls, fault.at)
    if fault.unknown:
        known = sorted(_names(here)) or types_of(cls).names
        name = printable(fault.unknown)
        yield f"{path}: unknown field {clip(name, _LONGEST)!r}{did_you_mean(name, known) or _listed(known)}"
    elif fault.missing:
        for name in dict.fromkeys((fault.missing, *_required(here, value_at(given, fault.at)))):
            yield f"{path}: missing required field {name!r}"
    elif fault.text.startswith("Invalid enum value") and (known := _choices(here)):
        yield f"{path}: {clip(fault.text, _LONGEST_TEXT)}: use one of {', '.join(map(repr, known))}"
    else:
        value = value_at(given, fault.at) if fault.text.endswith("got `float`") and not fault.key else None
        # An integer above 64 bits becomes a float, such as 1e+40. The value shows the user which integer is meant.
        number = f" ({value:g})" if isinstance(value, float) else ""
        yield f"{path}: {'the key: ' if fault.key else ''}{clip(fault.text, _LONGEST_TEXT)}{number}"


def path_of(cls: type[Config], steps: Steps) -> tuple[str, list[Any]]:
    """Returns a place in text form, and the types that are allowed there, with unions resolved."""
    path, infos = "parameters", [types_of(cls).info]
    for step in steps:
        fields = [f.type for i in infos for f in getattr(i, "fields", ()) if f.encode_name == step]
        named = isinstance(step, str) and not any(isinstance(i, msgspec.inspect.DictType) for i in infos)
        path += f".{clip(step, _LONGEST)}" if fields or named else f"[{clip(step, _LONGEST)}]"
        infos = union_members(fields or [t for i in infos for t in _items_of(i, step)])
    return path, infos


def value_at(given: Any, steps: Steps) -> Any:
    for step in steps:
        given = given[step]
    return given


def _required(infos: Sequence[Any], given: Any) -> list[str]:
    """Returns the other missing required fields of an object, if its type is known."""
    structs = [i for i in infos if isinstance(i, msgspec.inspect.StructType)]
    if len(structs) > 1:
        structs = [i for i in structs if i.tag_field and given.get(i.tag_field) == i.tag]
    if len(structs) != 1 or not isinstance(given, Mapping):
        return []
    return [f.encode_name for f in structs[0].fields if f.required and f.encode_name not in given]


def _listed(known: Sequence[str]) -> str:
    if not known:
        return ": it has no fields"
    return f": there are {', '.join(known[:_MAX_NAMES])}{', ...' if len(known) > _MAX_NAMES else ''}"


def union_members(infos: Sequence[Any]) -> list[Any]:
    """Returns the types with unions replaced by their members."""
    return [t for i in infos for t in alternatives(i)]


def _items_of(info: Any, step: str | int) -> list[Any]:
    """Returns the types of a list's or mapping's item at one place."""
    items = list(getattr(info, "item_types", ()))
    if items and isinstance(step, int):
        return items[step : step + 1]
    found = (getattr(info, name, None) for name in ("item_type", "value_type"))
    return [t for t in found if t is not None]


def _choices(infos: Sequence[Any]) -> list[Any]:
    """Returns the allowed values of these types, if they list them."""
    out: list[Any] = []
    for info in infos:
        if isinstance(info, msgspec.inspect.LiteralType):
            out += info.values
        elif isinstance(info, msgspec.inspect.EnumType):
            out += [member.value for member in info.cls]
    return out


def _names(infos: Sequence[Any]) -> set[str]:
    """Returns the JSON names of the fields of these types."""
    return {f.encode_name for i in infos for f in getattr(i, "fields", ())}
