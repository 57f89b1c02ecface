"""Opaque parameters in claims, templates and classes: whether their drivers could read them, before anything is allocated.

Source: KEP-4381, "Custom parameters": a driver may check them at admission time. Objects are resource.k8s.io/v1, v1beta2 or v1beta1,
which have them in the same places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from .driver import Config, Driver
from .driver.parameters import judge
from .errors import DraError, printable

JSON = Mapping[str, Any]
_PLACES = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
    "DeviceClass": ("spec",),
}
KINDS = frozenset(_PLACES)
"""Kinds of resource.k8s.io that carry parameters."""


@dataclass(frozen=True)
class Reader:
    """Who reads parameters: a driver by its name, and the kinds that it knows."""

    driver: str
    kinds: Sequence[type[Config]]

    @classmethod
    def of(cls, driver: Driver, name: str = "") -> Reader:
        """``name`` is the driver's where it is not the class's own."""
        return cls(name or driver.name, driver.config_kinds())


def faults(obj: JSON, readers: Sequence[Reader], before: JSON | None = None) -> list[str]:
    """A sentence with the path for every entry that its driver would refuse; entries for other drivers are theirs to judge.

    Entries that the object had ``before``, wherever they stood in it, are not judged again: one for one, so that a wrong one cannot
    be written a second time.
    """
    by_name = {r.driver: r for r in readers}
    known = Counter(_content(entry) for _, entry in _entries(before or {}))
    out: list[str] = []
    for path, entry in _entries(obj):
        if known and known[content := _content(entry)]:
            known[content] -= 1
            continue
        reader = by_name.get(str(entry.get("driver")))
        if reader is not None:
            try:
                judge(entry.get("parameters"), reader.kinds, reader.driver, path)
            except DraError as e:
                out += map(printable, e.faults or (e,))
    return out


def unjudged(obj: JSON, readers: Sequence[Reader]) -> list[str]:
    """A sentence with the path for every entry whose driver is none of the readers', so that nobody has read its parameters."""
    import difflib  # for files of users only

    names = [r.driver for r in readers]
    out = []
    for path, entry in _entries(obj):
        name = entry.get("driver")
        if not isinstance(name, str) or name in names:
            continue
        if near := difflib.get_close_matches(name, names, 1, 0.8):
            out.append(f"{path}.driver: {printable(name)!r} is none of {', '.join(names)}: did you mean {near[0]!r}?")
        else:
            out.append(f"{path}: parameters of {printable(name)!r} are not judged: give that driver too, with --driver")
    return out


def _content(entry: JSON) -> bytes:
    """What an entry says, whatever the order of its keys."""
    return msgspec.json.encode(entry, order="sorted")


def _entries(obj: JSON) -> Iterator[tuple[str, JSON]]:
    """Every ``opaque`` of an object with its path. What has another shape is not looked at: the API server judges that."""
    steps = _PLACES.get(str(obj.get("kind")), ())
    at: Any = obj if steps else None
    for step in steps:
        at = at.get(step) if isinstance(at, Mapping) else None
    entries = at.get("config") if isinstance(at, Mapping) else None
    for i, entry in enumerate(entries if isinstance(entries, list) else ()):
        opaque = entry.get("opaque") if isinstance(entry, Mapping) else None
        if isinstance(opaque, Mapping):
            yield f"{'.'.join(steps)}.config[{i}].opaque", opaque
