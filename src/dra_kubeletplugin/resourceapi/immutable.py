"""Values that cannot be changed and have a form of their own in JSON.

They are no dataclasses, because msgspec would take those for JSON objects with the same fields.
"""

from __future__ import annotations

from typing import Any, NoReturn


class Immutable:
    """Base of a value: its fields are its slots, set once with :meth:`_set`; equal and hashed by them."""

    __slots__: tuple[str, ...] = ()

    def _set(self, *values: object) -> None:
        """The values of all slots, in their order."""
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} cannot be changed: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} cannot be changed: {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self._values())

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


def _made(kind: type[Immutable], values: tuple[Any, ...]) -> Immutable:
    value = object.__new__(kind)
    value._set(*values)
    return value
