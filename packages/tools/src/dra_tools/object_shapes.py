"""Validates the fields on which the analysis relies, in objects from files or other programs.

Objects from an API server are not checked here, because the server has validated them. Objects of resource.k8s.io are decoded with
the types of their validation, other objects with the published types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_devkit.generations import key_of
from dra_devkit.scheduling import cel
from dra_devkit.scheduling.framework import node_info, pod_groups, pod_info
from dra_devkit.scheduling.framework.device_taint_rules import SELECTED_BY
from dra_devkit.schemas import decoding, shapes
from dra_devkit.validation import claims
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.conversion import GROUP
from dra_kubeletplugin.resourceapi.quantity import parse
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError

FAULTS = (TypeError, KeyError, ValueError, AttributeError, OverflowError, RecursionError, cel.CelError)
RULES: Mapping[str, Callable[..., list[FieldError]]] = {
    "ResourceClaim": claims.validate_claim,
    "ResourceClaimTemplate": claims.validate_template,
    "DeviceClass": claims.validate_class,
}


def validated(obj: JSON, unknown: list[str] | None = None) -> JSON:
    """Returns the object in the form that the analysis relies on.

    Args:
        unknown: gets the paths of fields that are not known and left out.

    Raises:
        one of :data:`FAULTS`: the object does not have this form.
    """
    kind, api_version = str(obj["kind"]), str(obj["apiVersion"])
    is_core = not api_version.startswith(f"{GROUP}/")
    if kind == pod_groups.KIND:
        shape = shapes.kind_shape(*api_version.partition("/")[::2], kind)
    else:
        shape = shapes.kind_shape("" if is_core else GROUP, "v1", kind)
    if shape is None:
        raise ValueError(f"apiVersion {api_version} is not known")
    decoded = decoding.decode(obj, shape, [] if unknown is None else unknown)
    if is_core:
        if kind == "Pod":
            pod_info.read(decoded)
        if kind == "Node":
            node_info.read(decoded)
        return decoded
    if kind == "ResourceSlice":
        _check_amounts(decoded)
    elif kind == "DeviceTaintRule":
        _check_rule(obj)
    elif missing := [str(f) for f in RULES[kind](decoded) if f.reason == "FieldValueRequired"]:
        raise ValueError("; ".join(missing))
    return decoded


def _check_rule(rule: JSON) -> None:
    """Checks that a DeviceTaintRule has a taint, and no selector of an old alpha version.

    Raises:
        one of :data:`FAULTS`: the rule has another form.
    """
    spec = rule["spec"]
    if unknown := sorted((spec.get("deviceSelector") or {}).keys() - SELECTED_BY):
        raise ValueError(f"{unknown[0]} of its deviceSelector is not known")
    if not (spec["taint"]["key"] and spec["taint"]["effect"]):
        raise ValueError("its taint has no key or no effect")


def _check_amounts(sl: JSON) -> None:
    """Checks that all amounts and versions in a slice can be parsed.

    Raises:
        ValueError: an amount or a version cannot be parsed.
    """
    driver, _ = key_of(sl)
    for device in sl["spec"].get("devices") or []:
        cel.Device(driver, device)
        for consumed in device.get("consumesCounters") or []:
            for amount in consumed["counters"].values():
                parse(amount["value"])
    for counter_set in sl["spec"].get("sharedCounters") or []:
        for amount in counter_set["counters"].values():
            parse(amount["value"])
