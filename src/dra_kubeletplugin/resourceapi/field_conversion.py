"""Converts the fields of devices to JSON, and collects a sentence about every value that has no JSON form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from ..errors import InvalidObjectError, clip, describe, kind_of, shown, steady
from . import version
from .amounts import Amount, Capacity, NodeResource
from .nodes import Nodes
from .quantity import Quantity
from .validation.slices import LIST_ATTRIBUTES
from .version import Version

Attribute = str | int | bool | Version | Sequence[str] | Sequence[int] | Sequence[bool] | Sequence[Version]
_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1
_SHOWN = 200  # bytes of a version's fault
ZERO = {"value": "0"}
COUNTERS = {"counter": ZERO}
OVERHEAD = {"overhead": {"perPod": "0"}}
SIMPLE_TYPES = frozenset({"bool", "string", "[]string"})
MAPPINGS = {
    "attributes": "names to values, {'model': 'x1'}",
    "counters": "counters to their amounts, {'memory': '10Gi'}",
    "capacity": "names to amounts, {'memory': '80Gi'}",
    "consumes_counters": "counter sets to counters with amounts, {'card': {'memory': '10Gi'}}",
    "compatibility_groups": "counter sets to lists of groups, {'card': ['x']}",
    "node_resources": "names of resources to NodeResource",
    "extra": "names of fields to JSON",
}


class FieldConversion:
    """Converts fields to JSON. A value that has no JSON form becomes a sentence in ``faults``, and a valid placeholder in the JSON.

    The placeholder prevents further faults that are only consequences.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []

    def text(self, name: object) -> str:
        if wrong := not_text(name):
            self.faults.append(f"its name is {wrong}")
        return "name" if wrong else str.__str__(name)

    def mapping(
        self, field: str, value: object, convert: Callable[[Any, str, str], Any], placeholder: Any, place: str = ""
    ) -> dict[str, Any]:
        """Converts each value of a mapping. None is empty.

        Args:
            convert: called with the value, the mapping's place and the value's name.
            place: the mapping's place in another mapping. A value that is no mapping then raises ``TypeError``.
        """
        if value is None or (type(value) is dict and not value):  # most fields of most devices
            return {}
        nested, place = bool(place), place or field
        if not isinstance(value, Mapping):
            wrong = f"{place} is {kind_of(value)}: use a mapping of {MAPPINGS[field]}"
            if nested:
                raise TypeError(wrong)
            self.faults.append(wrong)
            return {}
        out = {}
        for name, item in dict(value).items():  # a copy, because a thread of the driver may change the mapping
            if wrong := not_text(name):
                self.faults.append(f"{place} has a name that is {wrong}")
                continue
            try:
                out[str.__str__(name)] = convert(item, place, name)
            except Exception as e:
                where = _where(place, name)
                why = steady(str(e)) if isinstance(e, TypeError | ValueError) else describe(e)
                self.faults.append(why if why.startswith(where) else f"{where}: {why}")
                out[str.__str__(name)] = placeholder
        return out

    def counters(self, value: object, place: str, name: str) -> dict[str, Any]:
        known = len(self.faults)
        out = self.mapping("counters", value, capacity_json, ZERO, _where(place, name))
        return out if len(self.faults) == known else out or COUNTERS

    def groups(self, value: object, place: str, name: str) -> list[Any]:
        return self.items(_where(place, name), value, str)

    def items(self, where: str, value: object, kind: type, wrong: Callable[[object], str] | None = None) -> list[Any]:
        """Returns the items of a list. None is empty. Without this check, text would be treated as a list of letters.

        Args:
            wrong: returns why the list cannot contain an item; empty if it can. By default, the items must be text.
        """
        if value is None or (type(value) in {tuple, list} and not value):
            return []
        wrong = wrong or (lambda item: not_text(item) and kind_of(item))
        placeholder = [where.replace("_", "-")] if kind is str else []
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence | Set):
            self.faults.append(f"{where} is {kind_of(value)}: use a list of {kind.__name__}")
            return placeholder
        faults = [f"{where} has {w}: use a list of {kind.__name__}" for item in value if (w := wrong(item))]
        self.faults += faults
        return placeholder if faults else list(value)

    def simple(self, where: str, value: object, kind: str) -> Any:
        """Returns a value whose type is one of :data:`SIMPLE_TYPES`."""
        if kind == "[]string":
            return self.items(where, value, str)
        if kind == "bool":
            return bool(value)
        if value and (wrong := not_text(value)):
            self.faults.append(f"{where} is {wrong}")
        return value if isinstance(value, str) else ""

    def nodes(self, nodes: object) -> Mapping[str, Any]:
        if not isinstance(nodes, Nodes):
            self.faults.append(f"nodes is {kind_of(nodes)}: use Nodes.named('node-1') or another constructor of Nodes")
            return {}
        try:
            return nodes.of_device()
        except InvalidObjectError as e:
            self.faults.append(f"nodes: {e.message}")
            return {}


def _where(place: str, name: str) -> str:
    return f"{place}[{name!r}]"


def not_text(value: object) -> str:
    """Returns why a value cannot be sent as text; empty if it can."""
    if not isinstance(value, str):
        return f"{kind_of(value)}, not text"
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        return f"{shown(value)}, which is not valid Unicode"
    return ""


def capacity_json(amount: Amount | Capacity, place: str, name: str) -> dict[str, Any]:
    try:
        value = amount.value if isinstance(amount, Capacity) else Quantity(amount)
        if Quantity(value).value < 0:  # the API server accepts it, but no claim could ever be allocated
            raise ValueError(f"{value} is below zero: amounts of a device must be 0 or more")
        return amount.json() if isinstance(amount, Capacity) else {"value": Quantity(amount).text}
    except (TypeError, ValueError) as e:
        raise ValueError(f"{_where(place, name)}: {e}") from None


def attribute_json(value: Attribute, name: str = "") -> dict[str, Any]:
    """Returns a value as a DeviceAttribute.

    Raises ``TypeError`` or ``ValueError`` for a value that Kubernetes does not have.
    """
    return attribute(value, "attributes", name)


def attribute(value: Any, place: str, name: str) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        if not _MIN_INT <= value <= _MAX_INT:
            raise ValueError(f"{_where(place, name)}: {shown(value)} does not fit into 64 bits")
        return {"int": int(value)}
    if isinstance(value, str):
        if wrong := not_text(value):
            raise ValueError(f"{_where(place, name)} is {wrong}")
        return {"string": str.__str__(value)}  # an instance of a subclass cannot be sent
    if isinstance(value, Version):
        try:
            return {"version": str(version.parse(value.text))}
        except version.VersionError as e:
            raise ValueError(
                f"{_where(place, name)}: {clip(e, _SHOWN)}; use Version.coerce(), or publish it as text"
            ) from None
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview) and value:
        items = [next(iter(attribute(v, place, name).items())) for v in value]
        kinds = {kind for kind, _ in items}
        if len(kinds) == 1 and not kinds.intersection(LIST_ATTRIBUTES):  # a list cannot contain lists
            return {f"{kinds.pop()}s": [item for _, item in items]}
    raise TypeError(
        f"{_where(place, name)} is {shown(value)}: use str, int, bool, Version, or a list of one of them{_attribute_hint(value)}"
    )


def node_resource(value: object, place: str, name: str) -> dict[str, Any]:
    if not isinstance(value, NodeResource):
        raise TypeError(f"{_where(place, name)} is {kind_of(value)}: use a NodeResource")
    return value.json()


def _attribute_hint(value: object) -> str:
    """Returns a hint for a value whose type attributes do not have."""
    if value is None:
        return " (leave out attributes without a value)"
    if isinstance(value, float):
        return " (for a float, use text, or an integer in a smaller unit)"
    if isinstance(value, bytes | bytearray):
        return " (for bytes, use value.hex() or value.decode())"
    return ""


def attribute_value(attribute: Mapping[str, Any]) -> Any:
    """Returns the Python value of a DeviceAttribute."""
    if "version" in attribute:
        return version.parse(attribute["version"])
    if "versions" in attribute:
        return [version.parse(v) for v in attribute["versions"]]
    return next(iter(attribute.values()), None)
