"""Selects the kinds of parameters that are for a device, by the attributes in :attr:`Config.DEVICES`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...resourceapi.types import Attribute
from .model import Config

Kinds = frozenset[type[Config]]


def kinds_of(attributes: Mapping[str, Attribute], kinds: Sequence[type[Config]]) -> Kinds:
    """Returns the kinds that are for a device with these attributes."""
    return frozenset(kind for kind in kinds if all(_same(attributes.get(n), v) for n, v in kind.DEVICES.items()))


def described(kind: type[Config]) -> str:
    """Returns the devices that a kind is for, as text: ``type=gpu``."""
    return ", ".join(f"{name}={value}" for name, value in kind.DEVICES.items())


def _same(found: object, wanted: object) -> bool:
    """Compares values of attributes. Python's ``True == 1`` does not count: they are attributes of different types."""
    return type(found) is type(wanted) and found == wanted
