"""Inspects the types of a :class:`Config` class once, because ``msgspec.inspect.type_info`` takes longer than checking a whole
document.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .model import Config

_ATTRIBUTE = "_inspected_types"


class ConfigTypes:
    """The result of :mod:`msgspec.inspect` for one class, and the partial structs that :mod:`.partial` creates for it.

    ``partial`` has at most one entry for each struct within the class.
    """

    def __init__(self, cls: type[Config]) -> None:
        self.info: Any = msgspec.inspect.type_info(cls)
        self.partial: dict[type, type] = {}
        self._names: list[str] | None = None

    @property
    def names(self) -> list[str]:
        """JSON names of all fields, also of nested objects, sorted."""
        if self._names is None:
            self._names = sorted(_names_within(self.info))
        return self._names


def types_of(cls: type[Config]) -> ConfigTypes:
    """Returns the types of ``cls``. They are stored on the class, so they live as long as it does."""
    found: ConfigTypes | None = vars(cls).get(_ATTRIBUTE)  # not getattr: a subclass has other fields
    if found is None:
        found = ConfigTypes(cls)
        setattr(cls, _ATTRIBUTE, found)
    return found


def alternatives(info: Any) -> tuple[Any, ...]:
    """Returns the types of a union; for any other type, the type itself."""
    return info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)


def _names_within(info: Any, depth: int = 0) -> set[str]:
    out: set[str] = set()
    for field in info.fields:
        out.add(field.encode_name)
        for inner in alternatives(field.type):
            if isinstance(inner, msgspec.inspect.StructType) and depth < 4:
                out |= _names_within(inner, depth + 1)
    return out
