"""Device selectors: compile once, match many devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from dra_kubeletplugin.resourceapi import quantity, version

from .checker import Checker, boolean_fault
from .declarations import FUNCTIONS, LIST_ATTRIBUTE_FUNCTIONS, parse_type
from .estimates import Estimator
from .evaluator import plan
from .frame import Frame, run_to_end
from .lexer import Source, bounded_depth
from .parser import Parser
from .values import CelError, CompileError, DefaultMap, Type, type_of

COST_LIMIT = 1_000_000

_DEVICE = parse_type("kubernetes.DRADevice")
_OBJECTS = {
    "kubernetes.DRADevice": {
        "driver": parse_type("string"),
        "attributes": parse_type("map(string, map(string, any))"),
        "capacity": parse_type("map(string, map(string, kubernetes.Quantity))"),
        "allowMultipleAllocations": parse_type("bool"),
    }
}


class Device:
    """One device of a slice, as expressions see it. Names without a domain belong to the driver's domain."""

    def __init__(self, driver: str, device: Mapping[str, Any]) -> None:
        attributes: DefaultMap = DefaultMap()
        for name, value in (device.get("attributes") or {}).items():
            domain, key = _split(name, driver)
            attributes.setdefault(domain, {})[key] = _attribute(value)
        capacity: DefaultMap = DefaultMap()
        for name, value in (device.get("capacity") or {}).items():
            domain, key = _split(name, driver)
            capacity.setdefault(domain, {})[key] = quantity.parse(value["value"])
        self.value = {
            "driver": driver,
            "attributes": attributes,
            "capacity": capacity,
            "allowMultipleAllocations": bool(device.get("allowMultipleAllocations")),
        }


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, key = name.partition("/")
    return (domain, key) if slash else (driver, name)


def _attribute(value: Mapping[str, Any]) -> Any:
    if "version" in value:
        return version.parse(value["version"])
    for kind in ("string", "int", "bool"):
        if kind in value:
            return value[kind]
    for kind in ("strings", "ints", "bools"):
        if kind in value:
            return list(value[kind])
    if "versions" in value:
        return [version.parse(v) for v in value["versions"]]
    raise CelError("unsupported attribute value")


class DeviceExpression:
    """A compiled expression over one ``device``.

    Args:
        fault: returns why a result of a type is rejected; empty if it is accepted.
    """

    def __init__(self, expression: str, fault: Callable[[Type], str], *, list_attributes: bool) -> None:
        source = Source(expression)
        functions = {**FUNCTIONS, **LIST_ATTRIBUTE_FUNCTIONS} if list_attributes else FUNCTIONS
        self.expression = expression
        with bounded_depth():
            tree = Parser(source).parse()
            result = Checker(source, {"device": _DEVICE}, _OBJECTS, functions, any_is_iterable=list_attributes).check(
                tree
            )
            if found := fault(result):
                raise CompileError(found)
            self.max_cost = Estimator().estimate(tree).most
            self._plan = plan(tree)

    def run(self, device: Device) -> tuple[Any, int]:
        """Returns the result, which may be a :class:`CelError`, and the cost."""
        frame = Frame({"device": device.value}, COST_LIMIT)
        return run_to_end(self._plan.run, frame), frame.cost


class Selector(DeviceExpression):
    """A compiled expression that selects devices."""

    def __init__(self, expression: str, *, list_attributes: bool = False) -> None:
        super().__init__(expression, boolean_fault, list_attributes=list_attributes)

    def evaluate(self, device: Device) -> tuple[bool, int]:
        """Returns whether the device matches, and the cost.

        Raises :class:`CelError`, which contains the cost until then.
        """
        value, cost = self.run(device)
        if not isinstance(value, bool):
            error = CelError(str(value)) if isinstance(value, CelError) else _no_bool(value)
            error.cost = cost
            raise error
        return value, cost

    def matches(self, device: Device) -> bool:
        return self.evaluate(device)[0]


def _no_bool(value: Any) -> CelError:
    name = type_of(value).name
    why = {
        "int": "unsupported type conversion from 'int' to bool",
        "string": "unsupported native conversion from string to 'bool'",
    }.get(name, f"type conversion error from '{name.rpartition('.')[2]}' to 'bool'")
    return CelError(f"CEL result of type {name} could not be converted to bool: {why}")


@functools.lru_cache(maxsize=1024)
def compile_selector(expression: str, *, list_attributes: bool = False) -> Selector:
    """Returns the compiled selector, from a cache.

    Raises :class:`CompileError` with Kubernetes' text.
    """
    return Selector(expression, list_attributes=list_attributes)
