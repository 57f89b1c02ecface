"""The base of immutable values that have their own JSON form.

They are not dataclasses, because msgspec would encode a dataclass as a JSON object with the same fields.
"""

from __future__ import annotations

from typing import Any, NoReturn


class Immutable:
    """An immutable value. Its fields are its slots, set once with :meth:`_set`; equality and hash compare the fields."""

    __slots__: tuple[str, ...] = ()

    def _set(self, *values: object) -> None:
        """Sets all slots, in their order."""
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} cannot be changed: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} cannot be changed: {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self._values())

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Immutable)
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


def _restore(kind: type[Immutable], values: tuple[Any, ...]) -> Immutable:
    value = object.__new__(kind)
    value._set(*values)
    return value
