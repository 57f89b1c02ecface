"""The types of a :class:`Config` class, inspected once: ``msgspec.inspect.type_info`` takes longer than judging a whole document."""

from __future__ import annotations

from typing import Any

import msgspec

from .model import Config

_ATTRIBUTE = "_inspected_types"


class ConfigTypes:
    """What :mod:`msgspec.inspect` returns for one class, and the partial structs that :mod:`.partial` makes of it.

    ``partial`` has an entry for each struct within the class at most.
    """

    def __init__(self, cls: type[Config]) -> None:
        self.info: Any = msgspec.inspect.type_info(cls)
        self.partial: dict[type, type] = {}
        self._names: list[str] | None = None

    @property
    def names(self) -> list[str]:
        """JSON names of all fields, of objects within too, sorted."""
        if self._names is None:
            self._names = sorted(_names_within(self.info))
        return self._names


def types_of(cls: type[Config]) -> ConfigTypes:
    """The types of ``cls``. They are kept on the class, so they last as long as the class."""
    found: ConfigTypes | None = vars(cls).get(_ATTRIBUTE)  # not getattr: a subclass has other fields
    if found is None:
        found = ConfigTypes(cls)
        setattr(cls, _ATTRIBUTE, found)
    return found


def alternatives(info: Any) -> tuple[Any, ...]:
    """The types of a union; the type itself where it is no union."""
    return info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)


def _names_within(info: Any, depth: int = 0) -> set[str]:
    out: set[str] = set()
    for field in info.fields:
        out.add(field.encode_name)
        for inner in alternatives(field.type):
            if isinstance(inner, msgspec.inspect.StructType) and depth < 4:
                out |= _names_within(inner, depth + 1)
    return out
