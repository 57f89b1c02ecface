"""The validated values of a driver. Values that are not set have the default of ``parameters.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...driver import Driver
from . import pod_fields
from .source import JSON, Source, SourceError
from .values_validation import faults


@dataclass(frozen=True)
class Values:
    """A driver's values.

    Args:
        options: environment variables of the driver.
        classes: specs of DeviceClasses by name.
        pods: fields of the pods by source file.
    """

    parameters: Mapping[str, str | int]
    features: frozenset[str]
    options: Mapping[str, str]
    classes: Mapping[str, JSON]
    pods: Mapping[str, pod_fields.Given]


def merged(below: JSON, above: JSON) -> JSON:
    """Merges values as Helm does: mappings by key; any other value of ``above`` replaces the value of ``below``."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def read(source: Source, raw: JSON, driver: type[Driver] | None = None) -> Values:
    """Returns validated values. Raises :class:`SourceError` with every error, each with its path."""
    if found := list(faults(source, raw, driver)):
        raise SourceError(*found)
    features = {f.name: f.default for f in source.features.values()} | (raw.get("features") or {})
    on = frozenset(name for name, wanted in features.items() if wanted)
    values = {p.name: raw.get(p.name, p.default) for p in source.parameters.values()}
    return Values(
        {name: v for name, v in values.items() if v is not None},
        on,
        raw.get("options") or {},
        raw.get("deviceClasses") or {},
        pod_fields.of_pods(raw.get("pods") or {}),
    )
