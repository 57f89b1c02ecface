"""Checks before allocation whether drivers can read the opaque parameters in claims, templates and classes.

Source: KEP-4381, "Custom parameters": a driver may check parameters at admission time. Objects are resource.k8s.io/v1, v1beta2 or
v1beta1, which contain parameters in the same places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ...base.json_types import ReadOnlyJSON
from ...errors import DraError, printable
from ...resourceapi.encoded import from_json
from .. import Config, Driver
from ..attachment import config_kinds
from ..diagnostics.config_errors import MORE
from .model import MAX_FAULTS
from .parameters import Parameters

_PLACES = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
    "DeviceClass": ("spec",),
}
KINDS = frozenset(_PLACES)
"""Kinds of resource.k8s.io that contain parameters."""


@dataclass(frozen=True)
class ConfigReader:
    """A driver that reads parameters: its name and its kinds of parameters."""

    driver: str
    kinds: Sequence[type[Config]]

    @classmethod
    def of(cls, driver: Driver, name: str = "") -> ConfigReader:
        """Returns the reader of one driver. ``name`` is the driver's name, if it differs from the name in its class."""
        return cls(name or driver.name, config_kinds(driver))

    def parameters(self) -> Parameters:
        """Returns a reader for the parameters of one object."""
        return Parameters(self.kinds, self.driver)


def config_faults(obj: ReadOnlyJSON, readers: Sequence[ConfigReader], before: ReadOnlyJSON | None = None) -> list[str]:
    """Returns a sentence with the path for every fault of an entry that its driver would reject.

    Entries for other drivers are not checked. At most ``MAX_FAULTS`` faults are returned; :data:`MORE` follows if the search stopped.

    Args:
        obj: the claim, template or class.
        readers: the drivers whose entries are checked.
        before: the object before an update. An entry that it already contained, at any place, is not checked again. A second copy of
            the entry is checked, so an update cannot copy an invalid entry.
    """
    by_name = {r.driver: r.parameters() for r in readers}
    known = Counter(_content(entry) for _, entry in opaque_entries(before or {}))
    out: list[str] = []
    for path, entry in opaque_entries(obj):
        if known and known[content := _content(entry)]:
            known[content] -= 1
            continue
        if (parameters := by_name.get(str(entry.get("driver")))) is None:
            continue
        if len(out) >= MAX_FAULTS:
            return [*out[:MAX_FAULTS], MORE]
        try:
            parameters.validate(entry.get("parameters"), path)
        except DraError as e:
            out += map(printable, e.faults or (e,))
    return out


def _content(entry: ReadOnlyJSON) -> bytes:
    """Returns the JSON of an entry with sorted keys."""
    return msgspec.json.encode(
        {k: from_json(v) if isinstance(v, msgspec.Raw) else v for k, v in entry.items()}, order="sorted"
    )


def opaque_entries(obj: ReadOnlyJSON) -> Iterator[tuple[str, ReadOnlyJSON]]:
    """Yields every ``opaque`` of an object with its path. Values of wrong types are skipped: the API server rejects them."""
    steps = _PLACES.get(str(obj.get("kind")), ())
    at: Any = obj if steps else None
    for step in (*steps, "config"):
        at = at.get(step) if isinstance(at, Mapping) else None
    for i, entry in enumerate(at if isinstance(at, list) else ()):
        if isinstance(entry, Mapping) and isinstance(entry.get("opaque"), Mapping):
            yield f"{'.'.join(steps)}.config[{i}].opaque", entry["opaque"]
