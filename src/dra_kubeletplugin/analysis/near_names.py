"""Finds misspelt names of classes, claims, templates and device attributes in objects.

A name is reported only if the same files contain a similar name, because the object may exist in the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..base.text import did_you_mean
from ..scheduling.cel.mentions import mentions

JSON = Mapping[str, Any]
_REFERENCES = {
    "deviceClassName": "DeviceClass",
    "resourceClaimName": "ResourceClaim",
    "resourceClaimTemplateName": "ResourceClaimTemplate",
}
_SIMILARITY = 0.75
_SINGULAR = {"attributes": "attribute", "capacity": "capacity"}


class KnownNames:
    """Names of attributes and capacities, by the domain that a selector uses for them."""

    def __init__(self, slices: Iterable[JSON]) -> None:
        self.names: dict[str, dict[str, set[str]]] = {}
        for found in slices:
            spec = found.get("spec")
            if isinstance(spec, Mapping) and isinstance(driver := spec.get("driver"), str):
                self._add(driver, spec.get("devices"))

    def _add(self, driver: str, devices: Any) -> None:
        for device in devices if isinstance(devices, list) else ():
            for kind in _SINGULAR:
                values = device.get(kind) if isinstance(device, Mapping) else None
                for name in values if isinstance(values, Mapping) else ():
                    domain, slash, bare_name = str(name).partition("/")
                    by_kind = self.names.setdefault(domain if slash else driver, {k: set() for k in _SINGULAR})
                    by_kind[kind].add(bare_name if slash else str(name))

    def warnings(self, expression: str) -> Iterator[str]:
        """Yields a sentence for each attribute or capacity in a selector that no device has.

        An unknown domain is reported only if a known domain has a similar name.
        """
        for kind, domain, name in mentions(expression):
            if domain not in self.names:
                if hint := did_you_mean(domain, self.names, _SIMILARITY):
                    yield f"no device has {kind} of {domain!r}{hint}"
                continue
            known_names = self.names[domain]
            if not name or name in known_names[kind]:
                continue
            other = next(k for k in _SINGULAR if k != kind)
            if name in known_names[other]:
                yield f"{name!r} of {domain} is in device.{other}, not in device.{kind}"
            else:
                known = ", ".join(sorted(known_names[kind])) or "none"
                hint = did_you_mean(name, known_names[kind]) or f": there are {known}"
                yield f"no device has the {_SINGULAR[kind]} {name!r} of {domain}{hint}"


def near_name_warnings(
    obj: JSON, objects: Sequence[JSON], published: KnownNames, classes: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yields path and sentence for each name in ``obj`` that is probably misspelt.

    Args:
        objects: all objects of the files.
        published: attributes and capacities of devices.
        classes: names of the DeviceClasses that the driver under development installs.
    """
    names: dict[str, set[str]] = {kind: set() for kind in _REFERENCES.values()}
    names["DeviceClass"] |= {*classes}
    for other in objects:
        meta = other.get("metadata")
        if (kind := other.get("kind")) in names and isinstance(meta, Mapping):
            names[kind].add(str(meta.get("name")))
    for path, key, value in _texts(obj, ""):
        if (kind := _REFERENCES.get(key)) is not None and value not in names[kind]:
            if hint := did_you_mean(value, names[kind], _SIMILARITY):
                where = "these files or beside the driver" if classes and kind == "DeviceClass" else "these files"
                yield path, f"no {kind} {value!r} in {where}{hint}"
        elif key == "expression":
            yield from ((path, warning) for warning in published.warnings(value))


def _texts(value: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yields path, key and value of each text in a mapping, except below ``parameters``: only the driver knows their form."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            where = f"{path}.{key}" if path else str(key)
            if isinstance(inner, str):
                yield where, str(key), inner
            elif key != "parameters":
                yield from _texts(inner, where)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _texts(item, f"{path}[{i}]")
