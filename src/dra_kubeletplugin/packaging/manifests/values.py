"""What a driver's author says: values, checked, with the defaults of the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...driver import Driver
from . import pod_fields
from .source import JSON, Source, SourceError
from .values_validation import faults


@dataclass(frozen=True)
class Values:
    """``options`` are environment variables of the driver; ``classes`` the specs of DeviceClasses by name; ``pods`` fields of the
    pods by the file of the source."""

    parameters: Mapping[str, str | int]
    features: frozenset[str]
    options: Mapping[str, str]
    classes: Mapping[str, JSON]
    pods: Mapping[str, pod_fields.Given]


def merged(below: JSON, above: JSON) -> JSON:
    """As Helm merges files of values: maps by key, everything else replaced."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def read(source: Source, given: JSON, driver: type[Driver] | None = None) -> Values:
    """Raises :class:`SourceError` with everything that is wrong, each with its path."""
    if found := list(faults(source, given, driver)):
        raise SourceError(*found)
    features = {f.name: f.default for f in source.features.values()} | (given.get("features") or {})
    on = frozenset(name for name, wanted in features.items() if wanted)
    values = {p.name: given.get(p.name, p.default) for p in source.parameters.values()}
    return Values(
        {name: v for name, v in values.items() if v is not None},
        on,
        given.get("options") or {},
        given.get("deviceClasses") or {},
        pod_fields.of_pods(given.get("pods") or {}),
    )
