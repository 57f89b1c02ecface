"""What is wrong with parameters, in words that name the field, the nearest that there is, and what it may be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ..wording import near
from .config import Config

_MOST = 12  # fields that are told where none is near


def explained(message: str, cls: type[Config]) -> str:
    """msgspec's sentence, with the path first, the nearest known name for an unknown field, and what a choice may be."""
    text, _, path = message.partition(" - at `")
    path = "parameters" + path.rstrip("`").removeprefix("$") if path else "parameters"
    here = _at(cls, path.replace("[...]", "[]").split(".")[1:])
    unknown = re.search(r"unknown field `(.+)`", text)
    if unknown:
        known = sorted(_names(here) or _names_within(cls))
        return f"{path}: unknown field {unknown[1]!r}{near(unknown[1], known) or _listed(known)}"
    if text.startswith("Invalid enum value") and (known := _choices(here)):
        return f"{path}: {text}: give one of {', '.join(map(repr, known))}"
    return f"{path}: {text}"


def _listed(known: Sequence[str]) -> str:
    if not known:
        return ": it has no fields"
    return f": there are {', '.join(known[:_MOST])}{', ...' if len(known) > _MOST else ''}"


def _at(cls: type[Config], path: Sequence[str]) -> list[Any]:
    """The types that stand at ``path``, alternatives apart."""
    infos: list[Any] = [msgspec.inspect.type_info(cls)]
    for part in path:
        name, *items = part.replace("]", "").split("[")
        infos = [f.type for i in infos for f in getattr(i, "fields", ()) if f.encode_name == name]
        infos = apart(infos)
        for _ in items:
            infos = apart([t for i in infos for t in _items_of(i)])
    return infos


def apart(infos: Sequence[Any]) -> list[Any]:
    """The types of unions one by one."""
    return [t for i in infos for t in (i.types if isinstance(i, msgspec.inspect.UnionType) else (i,))]


def _items_of(info: Any) -> list[Any]:
    """Types of what a list or a mapping has."""
    found = (getattr(info, name, None) for name in ("item_type", "value_type"))
    return [t for t in found if t is not None] + list(getattr(info, "item_types", ()))


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


def _names_within(cls: Any, depth: int = 0) -> set[str]:
    """JSON names of the fields of a struct and of those within it."""
    out: set[str] = set()
    for f in msgspec.structs.fields(cls):
        out.add(f.encode_name)
        inner = msgspec.inspect.type_info(f.type)
        for t in getattr(inner, "types", (inner,)):
            if isinstance(t, msgspec.inspect.StructType) and depth < 4:
                out |= _names_within(t.cls, depth + 1)
    return out
