"""Reads ``fields.toml``, the table of releases, kinds, feature gates and fields of resource.k8s.io.

Only this module reads the file. All that depends on the release of a field derives it from here: what the publisher withholds, what the
local API server drops, what validation and the tools name, and the tables of the documentation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

FILE = Path(__file__).with_name("fields.toml")


class GateRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A feature gate.

    Attributes:
        stages: ``alpha`` (off), ``beta``, ``beta, off``, ``stable, not locked`` (it can be switched off) or ``stable``, by the first
            release with this stage.
        source: the KEP.
        needs: the gates without which it has no effect.
        not_local: why the local cluster does not implement it; enabling it there is an error.
    """

    stages: dict[str, str]
    source: str
    needs: tuple[str, ...] = ()
    not_local: str = ""


class FieldRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field of a type. A text in the table in place of a row is its type.

    Attributes:
        type: as in Go: ``bool``, ``[]string``, ``map[string]Counter``, or the name of another type.
        since: the first release with the field and with the fields below it; "" if all supported releases have them.
        until: the last release with the field.
        gate: the feature gate without which the API server drops it.
        off_until: the last release whose server drops the field, for a gate that the table does not have; ``later`` if all releases do.
        refuse: why a device must not be published if the server drops the field. Without it, the device is published without the field.
        harmless: the values with which an item of the field may be dropped, although the row has ``refuse``.
        refuse_remote: as ``refuse``, for a field of a pool; only for pools that do not belong to the plugin's node.
        unevaluated: the feature, if the allocator of the devkit does not evaluate the field.
        required: whether the API requires the field.
        list_type: ``set``, or the key of the items, if the list is not replaced as a whole.
        wire: the number in protobuf, for a field that the published schemas of the devkit do not have.
    """

    type: str
    since: str = ""
    until: str = ""
    gate: str = ""
    off_until: str = ""
    refuse: str = ""
    harmless: dict[str, str] = {}
    refuse_remote: str = ""
    unevaluated: str = ""
    required: bool = False
    list_type: str = ""
    wire: int = 0

    @property
    def item_type(self) -> str:
        """The type of the items of a list or map, or the type itself."""
        return self.type.removeprefix("[]").removeprefix("map[string]")


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    releases: dict[str, str]
    kinds: dict[str, dict[str, list[str]]]
    gates: dict[str, GateRow]
    types: dict[str, dict[str, str | FieldRow]]


@dataclass(frozen=True)
class ApiField:
    """A field at its path in a kind, such as ``spec.devices[].attributes.*.ints``: ``[]`` is each item, ``*`` is each key."""

    path: str
    row: FieldRow
    since: str
    until: str

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@functools.cache
def table() -> Table:
    return msgspec.toml.decode(FILE.read_bytes(), type=Table)


@functools.cache
def rows(type_name: str) -> Mapping[str, FieldRow]:
    """Returns the rows of a type by the name of the field; empty for a type that the table does not describe."""
    found = table().types.get(type_name, {})
    return {name: FieldRow(row) if isinstance(row, str) else row for name, row in found.items()}


@functools.cache
def fields_of(kind: str) -> tuple[ApiField, ...]:
    """Returns the fields of a kind, each before the fields below it."""
    return tuple(_below(kind, "", "", ""))


def _below(type_name: str, prefix: str, since: str, until: str) -> Iterator[ApiField]:
    for name, row in rows(type_name).items():
        field = ApiField(prefix + name, row, row.since or since, row.until or until)
        yield field
        step = {"[": "[]", "m": ".*"}.get(row.type[0] if row.type != row.item_type else "", "")
        yield from _below(row.item_type, f"{field.path}{step}.", field.since, field.until)


def on_since(gate: str) -> str:
    """Returns the first release in which a gate is on by default; empty if there is none."""
    stages = table().gates[gate].stages
    return next((release for release, stage in stages.items() if stage in {"beta", "stable, not locked", "stable"}), "")
