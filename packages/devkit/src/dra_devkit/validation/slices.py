"""Validates ResourceSlices by the rules of a release (:class:`.Dialect`). The framework validates their devices."""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation.common import TAINT_EFFECTS, driver_name, items, pool_name
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, invalid
from dra_kubeletplugin.resourceapi.validation.slices import (
    MAX_COUNTER_SETS,
    NEWEST,
    Dialect,
    exactly_one_place,
    max_devices,
    slice_options,
    validate_counter_set,
    validate_device,
)

from ..kubernetes_releases import Features
from .metadata import metadata, updated_metadata


def dialect_of(features: Features) -> Dialect:
    newer = features.is_at_least("1.35")
    effects = TAINT_EFFECTS if newer else tuple(e for e in TAINT_EFFECTS if e != "None")
    return Dialect(features.has("DRAFractionalCapacityRange"), effects, newer)


def validate(obj: ReadOnlyJSON, old: ReadOnlyJSON | None = None, dialect: Dialect = NEWEST) -> list[FieldError]:
    """Returns every error of a ResourceSlice, or of its update if ``old`` is set."""
    if old is None:
        return metadata(obj["metadata"]) + validate_spec(obj["spec"], "spec", dialect=dialect)
    return updated_metadata(obj["metadata"], wholly=False) + validate_spec(obj["spec"], "spec", old["spec"], dialect)


def validate_spec(
    spec: ReadOnlyJSON, path: str, old: ReadOnlyJSON | None = None, dialect: Dialect = NEWEST
) -> list[FieldError]:
    known = {d["name"]: d for d in (old or {}).get("devices") or []}
    out = driver_name(spec["driver"], f"{path}.driver") + _pool(spec["pool"], f"{path}.pool")
    if old is not None:
        out += _changed(spec, old, path)
    out += _node_choice(spec, path)
    sets, devices = spec.get("sharedCounters"), spec.get("devices")
    if sets is not None and devices is not None and dialect.separate_slices:
        out.append(invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"))
    limit = max_devices(devices or [])
    per_device = bool(spec.get("perDeviceNodeSelection"))

    def check(device: ReadOnlyJSON, where: str) -> list[FieldError]:
        before = known.get(device["name"])
        return validate_device(device, where, per_device=per_device, old=before, dialect=dialect)

    out += items(devices, limit, check, f"{path}.devices", lambda d: d["name"])
    out += items(sets, MAX_COUNTER_SETS, validate_counter_set, f"{path}.sharedCounters", lambda s: s["name"])
    return out + slice_options(spec, path)


def _changed(spec: ReadOnlyJSON, old: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns an error for each immutable field that an update changes."""
    fields = (
        ("pool.name", spec["pool"]["name"], old["pool"]["name"]),
        ("driver", spec["driver"], old["driver"]),
        ("nodeName", spec.get("nodeName"), old.get("nodeName")),
    )
    return [invalid(f"{path}.{field}", new, "field is immutable") for field, new, was in fields if new != was]


def _pool(pool: ReadOnlyJSON, path: str) -> list[FieldError]:
    out = pool_name(pool["name"], f"{path}.name")
    if pool["resourceSliceCount"] <= 0:
        out.append(invalid(f"{path}.resourceSliceCount", pool["resourceSliceCount"], "must be greater than zero"))
    if pool["generation"] < 0:
        out.append(invalid(f"{path}.generation", pool["generation"], "must be greater than or equal to zero"))
    return out


def _node_choice(spec: ReadOnlyJSON, path: str) -> list[FieldError]:
    empty = "must be either unset or set to a non-empty string"
    rule = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
    flags = ("allNodes", "perDeviceNodeSelection")
    return exactly_one_place(spec, path, flags, empty, rule, one_term=True)
