"""The kinds and versions of parameters that a driver reads, the devices that each is for, and the error message for any other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...base.text import did_you_mean
from ...errors import clip
from ...resourceapi.types import Attribute
from .model import Config

Kinds = frozenset[type[Config]]
_SHOWN = 80  # bytes of a kind or an API version in a message


def versions(kinds: Sequence[type[Config]]) -> dict[type[Config], type[Config] | None]:
    """Returns every kind that claims may use, mapped to its newer kind. The kinds that the driver's code uses are mapped to None."""
    out: dict[type[Config], type[Config] | None] = dict.fromkeys(kinds)
    waiting = list(kinds)
    while waiting:
        cls = waiting.pop(0)
        for older in cls.OLDER:
            if older not in out:
                out[older] = cls
                waiting.append(older)
    return out


def unknown_kind(api_version: str, kind: str, driver: str, known: Iterable[type[Config]]) -> str:
    """Returns the error message for an unknown or missing ``apiVersion`` or ``kind``, with the nearest or all known names."""
    kinds = sorted({cls.KIND for cls in known if api_version in {"", cls.API_VERSION} or not cls.API_VERSION} - {""})
    names = ", ".join(map(name_of, known))
    if hint := did_you_mean(kind, kinds) if kind not in kinds else "":
        return f"parameters.kind: {clip(kind, _SHOWN)!r} is not known to {driver}{hint}"
    field, value = ("apiVersion", api_version) if kind in kinds or not kinds else ("kind", kind)
    if not value:
        return f"parameters.{field}: missing: {driver} knows {names}"
    to_do = "to accept an older version, keep its class and list it in OLDER"
    return f"parameters.{field}: {clip(value, _SHOWN)!r} is not known to {driver}, which knows {names}; {to_do}"


def name_of(cls: type[Config]) -> str:
    return f"{cls.API_VERSION or '-'} {cls.KIND or cls.__name__}"


def kinds_of(attributes: Mapping[str, Attribute], kinds: Sequence[type[Config]]) -> Kinds:
    """Returns the kinds that are for a device with these attributes."""

    def has(name: str, value: Attribute) -> bool:
        found = attributes.get(name)
        return type(found) is type(value) and found == value  # for Python, True == 1

    return frozenset(kind for kind in kinds if all(has(name, value) for name, value in kind.DEVICES.items()))


def described(kind: type[Config]) -> str:
    """Returns the devices that a kind is for, as text: ``type=gpu``."""
    return ", ".join(f"{name}={value}" for name, value in kind.DEVICES.items())
