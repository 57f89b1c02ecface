"""The types by which objects are merged: which maps and lists are one value, and by which keys list items are the same.

Read from ``merge_types.json``, which ``tests/tools/merge_types.py`` makes from the OpenAPI schemas of Kubernetes 1.36.2.
Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/, "Merge strategy".
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import resources
from typing import Any, TypeAlias

JSON = dict[str, Any]


class Scalar(Enum):
    """A value without parts."""

    STRING = "string"
    NUMERIC = "numeric"
    BOOLEAN = "boolean"
    UNTYPED = "untyped"


class Untyped(Enum):
    """A value of any form; its maps and lists are one value, or, deduced, its maps are merged by key."""

    ATOMIC = "atomic"
    DEDUCED = "deduced"


@dataclass(frozen=True, eq=False)
class ListOf:
    """A list: one value, a set of scalars, or items that ``keys`` tell apart."""

    item: Lazy
    keys: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    is_set: bool = False

    @property
    def atomic(self) -> bool:
        return not (self.keys or self.is_set)


@dataclass(frozen=True, eq=False)
class MapOf:
    """A struct with ``fields``, or a map whose values are all of one type."""

    fields: Mapping[str, Lazy]
    values: Lazy | None
    atomic: bool


Type: TypeAlias = Scalar | Untyped | ListOf | MapOf


class Lazy:
    """A type as the file has it, read when it is needed: types refer to themselves."""

    def __init__(self, raw: Any, named: Mapping[str, Any]) -> None:
        self._raw, self._named = raw, named

    @functools.cached_property
    def type(self) -> Type:
        raw = self._raw
        while isinstance(raw, dict) and "type" in raw and isinstance(raw["type"], str):
            raw = self._named[raw["type"]]
        if isinstance(raw, str):
            return Untyped.ATOMIC if raw == "any" else Scalar(raw)
        if "list" in raw:
            keys, defaults = tuple(raw.get("keys", ())), raw.get("defaults", {})
            return ListOf(Lazy(raw["list"], self._named), keys, defaults, bool(raw.get("set")))
        fields = {k: Lazy(v, self._named) for k, v in raw.get("fields", {}).items()}
        values = Lazy(raw["map"], self._named) if "map" in raw else None
        return MapOf(fields, values, bool(raw.get("atomic")))


@functools.cache
def _tables() -> tuple[Mapping[str, str], Mapping[str, Any]]:
    found = json.loads(resources.files(__package__).joinpath("merge_types.json").read_text())
    return found["kinds"], found["types"]


@functools.cache
def type_of(group: str, version: str, kind: str) -> Type:
    """The type of a kind; of one that is not in the table, maps are merged by key and lists replaced."""
    kinds, types = _tables()
    name = kinds.get(f"{group}/{version}/{kind}")
    return Lazy({"type": name}, types).type if name else Untyped.DEDUCED
