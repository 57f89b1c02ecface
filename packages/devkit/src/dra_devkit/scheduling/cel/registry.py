"""The registry of functions, and helpers that all functions use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .values import CelError

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def define(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that registers a function under ``names``."""

    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            FUNCTIONS[name] = f
        return f

    return register


def no_overload() -> CelError:
    return CelError("no such overload")


def need(value: Any, *kinds: type) -> Any:
    """Returns ``value`` if it has one of the types ``kinds``. A bool does not count as an int.

    Raises :class:`CelError` otherwise.
    """
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise no_overload()
    return value
