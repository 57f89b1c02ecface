"""Checks before allocation whether drivers can read the opaque parameters in claims, templates and classes.

Source: KEP-4381, "Custom parameters": a driver may check parameters at admission time. Objects are resource.k8s.io/v1, v1beta2 or
v1beta1, which contain parameters in the same places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ...base.json_types import ReadOnlyJSON
from ...base.text import did_you_mean
from ...errors import DraError, printable
from ...resourceapi.encoded import from_json
from .. import Config, Driver
from ..diagnostics.config_errors import MORE
from .device_types import Kinds, device_types
from .model import MAX_FAULTS
from .parameters import ConfigEntry, Parameters, applies

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
        return cls(name or driver.name, driver.config_kinds())

    def parameters(self) -> Parameters:
        """Returns a reader for the parameters of one object, or of one object and its classes."""
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
    known = Counter(_content(entry) for _, entry in _entries(before or {}))
    out: list[str] = []
    for path, entry in _entries(obj):
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


def faults_with_classes(
    obj: ReadOnlyJSON, classes: Mapping[str, ReadOnlyJSON], readers: Sequence[ConfigReader]
) -> list[str]:
    """Returns the faults that appear only when a claim's (or template's) parameters are combined with its classes' parameters.

    The driver would reject such parameters at prepare. A fault of the claim or of the class alone is not reported.

    Args:
        obj: the claim or template.
        classes: DeviceClasses by name. A request whose class is missing here is not checked.
        readers: the drivers whose entries are checked.
    """
    if str(obj.get("kind")) not in _PLACES.keys() - {"DeviceClass"}:
        return []
    own, requests = list(_given(obj)), list(_requests(obj))
    by_name = {r.driver: r.parameters() for r in readers}
    out: dict[str, None] = {}
    for path, request, class_name in requests:
        if (found := classes.get(class_name)) is None:
            continue
        below = list(_given(found))
        for (driver, parameters), fitting in _with_device_types(by_name):
            if len(out) >= MAX_FAULTS:
                return [*list(out)[:MAX_FAULTS], MORE]
            under = [g for g in below if _is_for(g, driver, parameters, fitting)]
            over = [g for g in own if applies(g.requests, request) and _is_for(g, driver, parameters, fitting)]
            # A claim's entry for all requests does not show that this request uses the driver: other requests may use it.
            if under or any(g.requests or len(requests) == 1 for g in over):
                at = over[-1].path if over else path
                out.update(dict.fromkeys(f"{at}: {fault}" for fault in _combined_faults(under, over, parameters)))
    return list(out)


def _with_device_types(by_name: Mapping[str, Parameters]) -> Iterator[tuple[tuple[str, Parameters], Kinds]]:
    """Yields each driver with the kinds for each of its types of devices. Which type a request gets is not known yet."""
    return ((found, fitting) for found in by_name.items() for fitting in device_types(found[1].kinds))


def _is_for(given: _Given, driver: str, parameters: Parameters, fitting: Kinds) -> bool:
    """Whether an entry is for the driver and for a type of device. An invalid entry counts, so that nothing is combined with it."""
    return given.opaque.get("driver") == driver and parameters.is_for(_entry(given, ""), fitting)


def _entry(given: _Given, source: str) -> ConfigEntry:
    return ConfigEntry(given.where, source, given.opaque.get("parameters"))


def _combined_faults(under: Sequence[_Given], over: Sequence[_Given], parameters: Parameters) -> Iterator[str]:
    entries = [_entry(given, "FromClass") for given in under] + [_entry(given, "FromClaim") for given in over]
    try:
        for entry in entries:
            parameters.validate(entry.parameters, entry.where)
    except DraError:
        return  # reported with the entry itself
    try:
        parameters.merge_entries(entries)
    except DraError as e:
        yield from map(printable, e.faults or (e,))


class _Given(NamedTuple):
    """An entry of a claim or a class. ``path`` is its path in the object; ``where`` also names the object's kind and name."""

    path: str
    where: str
    requests: Sequence[str]
    opaque: ReadOnlyJSON


def _given(obj: ReadOnlyJSON) -> Iterator[_Given]:
    name = printable(_at(obj, ("metadata", "name")) or _at(obj, ("metadata", "generateName")) or "")
    for path, entry in _config(obj):
        where = f"{obj['kind']} {name} {path.removesuffix('.opaque').rpartition('.')[2]}"
        requests = entry.get("requests")
        yield _Given(path, where, requests if isinstance(requests, list) else (), entry["opaque"])


def _requests(claim: ReadOnlyJSON) -> Iterator[tuple[str, str, str]]:
    """Yields path, name and class of every request; an alternative has the name ``request/alternative``."""
    steps = _PLACES[str(claim["kind"])]
    for path, request in _listed(_at(claim, steps), "requests", ".".join(steps)):
        name, exactly = request.get("name"), request.get("exactly")
        own = exactly if isinstance(exactly, Mapping) else request  # v1beta1 has the class in the request itself
        if isinstance(own.get("deviceClassName"), str):
            yield path, str(name), own["deviceClassName"]
        for below, other in _listed(request, "firstAvailable", path):
            yield below, f"{name}/{other.get('name')}", str(other.get("deviceClassName"))


def _listed(at: Any, name: str, path: str) -> Iterator[tuple[str, ReadOnlyJSON]]:
    """Yields the objects of a list, each with its path. Items that are not objects are skipped: the API server rejects them."""
    items = at.get(name) if isinstance(at, Mapping) else None
    for i, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, Mapping):
            yield f"{path}.{name}[{i}]", item


def _at(obj: ReadOnlyJSON, steps: Sequence[str]) -> Any:
    at: Any = obj if steps else None
    for step in steps:
        at = at.get(step) if isinstance(at, Mapping) else None
    return at


def unread_entries(obj: ReadOnlyJSON, readers: Sequence[ConfigReader]) -> list[str]:
    """Returns a sentence for every entry whose driver is not among ``readers``, so that its parameters were not checked."""
    names = [r.driver for r in readers]
    out = []
    for path, entry in _entries(obj):
        name = entry.get("driver")
        if not isinstance(name, str) or name in names:
            continue
        if hint := did_you_mean(name, names, 0.8):
            out.append(f"{path}.driver: {printable(name)!r} is not one of {', '.join(names)}{hint}")
        else:
            out.append(f"{path}: parameters of {printable(name)!r} are not validated: add that driver with --driver")
    return out


def _content(entry: ReadOnlyJSON) -> bytes:
    """Returns the JSON of an entry with sorted keys."""
    return msgspec.json.encode(
        {k: from_json(v) if isinstance(v, msgspec.Raw) else v for k, v in entry.items()}, order="sorted"
    )


def _entries(obj: ReadOnlyJSON) -> Iterator[tuple[str, ReadOnlyJSON]]:
    """Yields every ``opaque`` of an object with its path."""
    return ((path, entry["opaque"]) for path, entry in _config(obj))


def _config(obj: ReadOnlyJSON) -> Iterator[tuple[str, ReadOnlyJSON]]:
    steps = _PLACES.get(str(obj.get("kind")), ())
    for path, entry in _listed(_at(obj, steps), "config", ".".join(steps)):
        if isinstance(entry.get("opaque"), Mapping):
            yield f"{path}.opaque", entry
