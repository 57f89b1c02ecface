"""Finds the attributes of devices that selectors and constraints can read. All other attributes do not affect an allocation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from dra_devkit.scheduling.cel.mentions import named_attributes
from dra_devkit.scheduling.framework.claim_cache import is_allocated
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi import unhealthy_reason

_names_of = lru_cache(1024)(named_attributes)


def selected_attributes(objects: Iterable[ReadOnlyJSON]) -> frozenset[str] | None:
    """Returns the names of all attributes that selectors and constraints of the objects can read; None if they may read any.

    The attribute with the reason of bad health is always included.

    Args:
        objects: claims, templates and classes; other kinds and allocated claims are ignored.
    """
    open_objects = [o for o in objects if not is_allocated(o)]
    found = of_selectors(open_objects)
    try:
        return None if found is None else found | of_constraints(open_objects)
    except _MALFORMED:
        return None


def of_selectors(objects: Iterable[ReadOnlyJSON]) -> frozenset[str] | None:
    """Returns the names of all attributes that selectors can read; None if they may read any."""
    names = {unhealthy_reason.ATTRIBUTE}
    try:
        for one in (one for o in objects for one in _with_selectors(o)):
            if one.get("derivedAttributes"):
                return None
            for selector in one.get("selectors") or []:
                found = _names_of(selector["cel"]["expression"])
                if found is None:
                    return None
                names |= found
    except _MALFORMED:
        return None  # the validation of the malformed object reports the error
    return frozenset(names)


def of_constraints(objects: Iterable[ReadOnlyJSON]) -> frozenset[str]:
    """Returns the names of all attributes that constraints compare."""
    names: set[str] = set()
    for constraint in (c for o in objects for c in _devices(o).get("constraints") or []):
        name = str(constraint.get("matchAttribute") or constraint.get("distinctAttribute"))
        names |= {name, name.rpartition("/")[2]}
    return frozenset(names)


def _devices(obj: ReadOnlyJSON) -> ReadOnlyJSON:
    spec = obj.get("spec") or {}
    found: ReadOnlyJSON = (spec.get("spec") or spec).get("devices") or {}  # a template has the claim's spec in its own
    return found


def _with_selectors(obj: ReadOnlyJSON) -> Iterator[ReadOnlyJSON]:
    """Yields the parts of an object that can have selectors: the spec of a class, requests, and their alternatives."""
    yield obj.get("spec") or {}
    for request in _devices(obj).get("requests") or []:
        yield request.get("exactly") or request
        yield from request.get("firstAvailable") or []


_MALFORMED = (TypeError, KeyError, ValueError, AttributeError)
