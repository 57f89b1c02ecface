"""Reads and validates the values of a driver. A value that is not set gets the default from ``parameters.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_devkit.yaml.documents import YamlDocument
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.driver import Driver
from dra_kubeletplugin.errors import SettingsError

from ...yaml import stream
from ...yaml.manifests import PlacedText
from . import pod_fields, values_validation
from .source_reader import ManifestSource


@dataclass(frozen=True)
class Values:
    """A driver's values.

    Args:
        features: the features that are on.
        options: environment variables of the driver.
        classes: specs of DeviceClasses, by name.
        pci_devices: ids of PCI functions, VENDOR:DEVICE or VENDOR. Node feature discovery labels the nodes that have one of them.
        pods: the Kubernetes fields to set, by pod, such as ``plugin`` or ``webhook``.
    """

    parameters: Mapping[str, str | int]
    features: frozenset[str]
    options: Mapping[str, str]
    classes: Mapping[str, JSON]
    pci_devices: Sequence[str]
    pods: Mapping[str, pod_fields.FieldValues]


def read_values(
    source: ManifestSource, paths: Sequence[Path], warnings: list[str] | None = None, driver: type[Driver] | None = None
) -> Values:
    """Reads the values from files; later files override earlier ones.

    Args:
        warnings: the function appends warnings about likely mistakes to this list.
        driver: the driver, if it is known. Its options are then checked too.

    Raises :class:`SettingsError` with all errors, each with file and line.
    """
    found: list[YamlDocument] = []
    faults: list[str] = []
    for path in paths:
        document = stream.read_one(path, faults)
        if document and isinstance(document.value, dict):
            found.append(document)
        elif document:
            faults.append(f"{document.place()}: not a mapping of names to values")
    if faults:
        raise SettingsError(*faults)
    raw: JSON = {}
    for document in found:
        raw = merged(raw, document.value)
    if errors := list(values_validation.value_errors(source, raw, driver)):
        raise SettingsError(*(_with_place(error, found, paths) for error in errors))
    if warnings is not None:
        warnings += [_with_place(text, found, paths) for text in values_validation.value_warnings(raw, driver)]
    return with_defaults(source, raw)


def merged(below: JSON, above: JSON) -> JSON:
    """Merges two sets of values as Helm does: mappings by key. Any other value of ``above`` replaces the value of ``below``."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def with_defaults(source: ManifestSource, raw: JSON) -> Values:
    """Returns valid values with the defaults."""
    features = {f.name: f.default for f in source.features.values()} | (raw.get("features") or {})
    values = {p.name: raw.get(p.name, p.default) for p in source.parameters.values()}
    return Values(
        {name: v for name, v in values.items() if v is not None},
        frozenset(name for name, wanted in features.items() if wanted),
        raw.get("options") or {},
        raw.get("deviceClasses") or {},
        raw.get("pciDevices") or [],
        pod_fields.fields_by_pod(raw.get("pods") or {}),
    )


def _with_place(text: PlacedText, found: Sequence[YamlDocument], paths: Sequence[Path]) -> str:
    """Prepends ``file:line`` to a text. If several files have the first key of its path, uses the last of these files."""
    top = text.path.partition(".")[0]
    for document in reversed(found):
        if top in document.value:
            return f"{document.place(text.path)}: {text}"
    return f"{', '.join(map(str, paths))}: {text}"
