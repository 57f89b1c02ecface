"""Derived attributes (KEP-6080): expressions that calculate an attribute of a device. Source: compile.go of Kubernetes 1.37."""

from __future__ import annotations

import functools
from typing import Any

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.version import Version

from .selector import Device, DeviceExpression
from .types import is_dyn
from .values import CelError, Type, type_of

_SCALARS = "a primitive scalar (string, integer, boolean, semver)"
_KINDS = {"bool": "bool", "int": "int", "string": "string", "kubernetes.Semver": "version"}  # fields of an attribute


class DerivedAttribute(DeviceExpression):
    """A compiled expression that calculates an attribute."""

    def __init__(self, expression: str, *, list_attributes: bool = False) -> None:
        fault = functools.partial(_fault, list_attributes=list_attributes)
        super().__init__(expression, fault, list_attributes=list_attributes)

    def attribute(self, device: Device) -> JSON:
        """Returns the attribute in the form of a ResourceSlice, such as ``{"int": 1}``. Raises :class:`CelError`."""
        value, _ = self.run(device)
        if isinstance(value, CelError):
            raise CelError(str(value))
        if not isinstance(value, (list, tuple)):
            return {_kind(value): _plain(value)}
        kinds = [_kind(item) for item in value] or ["string"]
        if wrong := next((i for i, kind in enumerate(kinds) if kind != kinds[0]), 0):
            raise CelError(f"expected list element at index {wrong} to be {kinds[0]}, got {kinds[wrong]}")
        return {f"{kinds[0]}s": [_plain(item) for item in value]}


def _fault(t: Type, *, list_attributes: bool) -> str:
    is_list = list_attributes and t.name == "list" and len(t.params) == 1
    if _is_element(t.params[0] if is_list else t):
        return ""
    return f"must evaluate to {_SCALARS}{' or a list of these scalars' if list_attributes else ''}, not {t}"


def _is_element(t: Type) -> bool:
    return (t.name in _KINDS and not t.params) or is_dyn(t)


def _kind(value: Any) -> str:
    name = type_of(value).name
    if name not in _KINDS:
        raise CelError(f"unsupported CEL return type: {name}")
    return _KINDS[name]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Version) else value


@functools.lru_cache(maxsize=1024)
def compile_derived(expression: str, *, list_attributes: bool = False) -> DerivedAttribute:
    """Returns the compiled expression, from a cache.

    Raises :class:`CompileError` with Kubernetes' text.
    """
    return DerivedAttribute(expression, list_attributes=list_attributes)
