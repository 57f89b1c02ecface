"""What is wrong with parameters, in words that name the field, the nearest that there is, and what it may be."""

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

MORE = "more faults were not looked for"
"""The last of an error's faults, where the search has stopped before the end."""
_MOST = 12  # fields that are told where none is near
_LONGEST = 80  # bytes of a key in a path, and of an unknown field
_LONGEST_TEXT = 512  # bytes of what msgspec or a check() says of a value, which may quote the value


def refusal(*wrong: str, at: str = "") -> ConfigError:
    """With a sentence for each thing that is wrong, all of them ``at`` one place; its message has as many as an event has room for."""
    head = f"{at}: " if at else ""
    found = [w for w in wrong if w != MORE]
    more = [MORE] if len(found) < len(wrong) else []
    error = ConfigError("; ".join((*([head + join_first(found, "; ")] if found else ()), *more)))
    error.faults = (*(head + w for w in found), *more)
    return error


def told(fault: Fault, given: JSON, cls: type[Config]) -> Iterator[str]:
    """The path first, the nearest known name for an unknown field, and what a choice may be; a sentence for each missing field."""
    path, here = path_of(cls, fault.at)
    if fault.unknown:
        known = sorted(_names(here)) or types_of(cls).names
        name = printable(fault.unknown)
        yield f"{path}: unknown field {clip(name, _LONGEST)!r}{did_you_mean(name, known) or _listed(known)}"
    elif fault.missing:
        for name in dict.fromkeys((fault.missing, *_required(here, value_at(given, fault.at)))):
            yield f"{path}: missing required field {name!r}"
    elif fault.text.startswith("Invalid enum value") and (known := _choices(here)):
        yield f"{path}: {clip(fault.text, _LONGEST_TEXT)}: give one of {', '.join(map(repr, known))}"
    else:
        yield f"{path}: {'the key: ' if fault.key else ''}{clip(fault.text, _LONGEST_TEXT)}"


def path_of(cls: type[Config], steps: Steps) -> tuple[str, list[Any]]:
    """How a place is written, and the types that may stand there, alternatives apart."""
    path, infos = "parameters", [types_of(cls).info]
    for step in steps:
        fields = [f.type for i in infos for f in getattr(i, "fields", ()) if f.encode_name == step]
        named = isinstance(step, str) and not any(isinstance(i, msgspec.inspect.DictType) for i in infos)
        path += f".{clip(step, _LONGEST)}" if fields or named else f"[{clip(step, _LONGEST)}]"
        infos = apart(fields or [t for i in infos for t in _items_of(i, step)])
    return path, infos


def value_at(given: Any, steps: Steps) -> Any:
    for step in steps:
        given = given[step]
    return given


def _required(infos: Sequence[Any], given: Any) -> list[str]:
    """What else an object must have and has not, where its type is known."""
    structs = [i for i in infos if isinstance(i, msgspec.inspect.StructType)]
    if len(structs) > 1:
        structs = [i for i in structs if i.tag_field and given.get(i.tag_field) == i.tag]
    if len(structs) != 1 or not isinstance(given, Mapping):
        return []
    return [f.encode_name for f in structs[0].fields if f.required and f.encode_name not in given]


def _listed(known: Sequence[str]) -> str:
    if not known:
        return ": it has no fields"
    return f": there are {', '.join(known[:_MOST])}{', ...' if len(known) > _MOST else ''}"


def apart(infos: Sequence[Any]) -> list[Any]:
    """The types of unions one by one."""
    return [t for i in infos for t in alternatives(i)]


def _items_of(info: Any, step: str | int) -> list[Any]:
    """Types of what a list or a mapping has at one of its places."""
    items = list(getattr(info, "item_types", ()))
    if items and isinstance(step, int):
        return items[step : step + 1]
    found = (getattr(info, name, None) for name in ("item_type", "value_type"))
    return [t for t in found if t is not None]


def _choices(infos: Sequence[Any]) -> list[Any]:
    """What a field of these types may be, where they name that."""
    out: list[Any] = []
    for info in infos:
        if isinstance(info, msgspec.inspect.LiteralType):
            out += info.values
        elif isinstance(info, msgspec.inspect.EnumType):
            out += [member.value for member in info.cls]
    return out


def _names(infos: Sequence[Any]) -> set[str]:
    """JSON names of the fields of these types."""
    return {f.encode_name for i in infos for f in getattr(i, "fields", ())}
