"""Finds misspelt names of classes, claims, templates and device attributes in objects.

A name is reported only if the same files contain a similar name, because the object may exist in the cluster.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.resourceapi.validation import names

from .scheduling.cel.mentions import fields_of_values, mentions

_REFERENCES = {
    "deviceClassName": "DeviceClass",
    "resourceClaimName": "ResourceClaim",
    "resourceClaimTemplateName": "ResourceClaimTemplate",
}
_SIMILARITY = 0.75
_MAX_DOMAIN = 63
_MAX_NAME = 512  # a longer name is not checked for misspelling
_FIELDS_OF_VALUES = frozenset({"string", "int", "bool", "version", "strings", "ints", "bools", "versions", "value"})
"""Fields of a value in a ResourceSlice, which selectors do not see."""
_SINGULAR = {"attributes": "attribute", "capacity": "capacity"}


def similar_names(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Returns the known names that are similar, the nearest first. Parts of a domain that both names have do not count."""
    if len(name) > _MAX_NAME:
        return []
    scores = sorted((-_similarity(name, other), other) for other in known)
    return [other for score, other in scores[:most] if -score >= _SIMILARITY]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns ``, did you mean 'x'?`` with the nearest of :func:`similar_names`; empty if there is none."""
    return "".join(f", did you mean {other!r}?" for other in similar_names(name, known))


def _similarity(name: str, other: str) -> float:
    left, right = name.split("."), other.split(".")
    while len(left) > 1 and len(right) > 1 and left[-1] == right[-1]:
        left.pop()
        right.pop()
    one, two = ".".join(left), ".".join(right)
    different = [i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b]
    if len(one) == len(two) and len(different) == 2 and different[1] == different[0] + 1:
        i, k = different
        if (one[i], one[k]) == (two[k], two[i]):
            return 1.0  # two letters are exchanged
    return difflib.SequenceMatcher(None, one, two).ratio()


class KnownNames:
    """Names of attributes and capacities, by the domain that a selector uses for them."""

    def __init__(self, slices: Iterable[ReadOnlyJSON]) -> None:
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
                if hint := suggestion(domain, self.names):
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


def impossible_keys(expression: str) -> Iterator[str]:
    """Yields a sentence for each key in a selector that no device can ever have, because the key is no valid name."""
    for kind, domain, name in mentions(expression):
        before, slash, after = domain.partition("/")
        if slash:
            correct = (
                f'device.{kind}["{before}"].{after}'
                if names.C_IDENTIFIER.fullmatch(after)
                else f'device.{kind}["{before}"]'
            )
            yield f'no device can have the key {domain!r} in device.{kind}, because a key is a domain without "/": use {correct}'
            if name in _FIELDS_OF_VALUES:
                yield f"the value of {correct} has no field {name!r}: compare {correct} itself"
        elif len(domain) > _MAX_DOMAIN or names.subdomain(domain.lower()):
            yield f"no device can have the key {domain!r} in device.{kind}, because it is not a domain such as gpu.example.com"
        elif name and (len(name) > names.MAX_IDENTIFIER or not names.C_IDENTIFIER.fullmatch(name)):
            rule = f"a name is a C identifier of at most {names.MAX_IDENTIFIER} characters"
            yield f'no device can have {name!r} in device.{kind}["{domain}"], because {rule}'
    for (kind, domain, name), field in fields_of_values(expression):
        value = f'device.{kind}["{domain}"].{name}'
        if "/" not in domain:
            yield f"the value of {value} has no field {field!r}: compare {value} itself"


def near_name_warnings(
    obj: ReadOnlyJSON, objects: Sequence[ReadOnlyJSON], published: KnownNames, classes: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yields path and sentence for each name in ``obj`` that is probably misspelt.

    Args:
        objects: all objects of the files.
        published: attributes and capacities of devices.
        classes: names of the DeviceClasses that the driver under development installs.
    """
    known: dict[str, set[str]] = {kind: set() for kind in _REFERENCES.values()}
    known["DeviceClass"] |= {*classes}
    for other in objects:
        meta = other.get("metadata")
        if (kind := other.get("kind")) in known and isinstance(meta, Mapping):
            known[kind].add(str(meta.get("name")))
    for path, key, value in _texts(obj, ""):
        if (kind := _REFERENCES.get(key)) is not None and value not in known[kind]:
            if hint := suggestion(value, known[kind]):
                where = "these files or beside the driver" if classes and kind == "DeviceClass" else "these files"
                yield path, f"no {kind} {value!r} in {where}{hint}"
        elif key == "expression":
            impossible = list(impossible_keys(value))
            yield from ((path, warning) for warning in impossible or published.warnings(value))


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


def nearest_or_all(name: str, known: Collection[str]) -> str:
    """Returns :func:`did_you_mean`, or all ``known`` names if no name is near."""
    return did_you_mean(name, known) or f"; there are {', '.join(known)}"
