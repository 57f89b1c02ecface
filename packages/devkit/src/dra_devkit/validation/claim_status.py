"""Validates the status of a ResourceClaim (v1, as of 1.36): consumers, allocation, status of devices."""

from __future__ import annotations

import re
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.allocation import results_of
from dra_kubeletplugin.resourceapi.validation import names
from dra_kubeletplugin.resourceapi.validation.common import (
    driver_name,
    items,
    node_selector,
    pool_name,
)
from dra_kubeletplugin.resourceapi.validation.device_status import condition_faults, network_data
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    invalids,
    required,
    too_many,
    unsupported,
)
from dra_kubeletplugin.resourceapi.validation.slices import bindings

from .claims import (
    MAX_CONFIGS,
    MAX_OPAQUE_BYTES,
    admin_access,
    configuration,
    json_object,
    known_requests,
    request_name,
)
from .metadata import updated_metadata

MAX_RESERVED = 256
MAX_RESULTS = 32
MAX_CONDITIONS = 8
SOURCES = ("FromClaim", "FromClass")

DeviceKey = tuple[str, str, str, str | None]
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def validate_claim_status(new: ReadOnlyJSON, old: ReadOnlyJSON) -> list[FieldError]:
    """Returns every error of an update of a claim's status.

    ``new`` must have been processed by :func:`without_deallocated`.
    """
    status, before = new.get("status") or {}, old.get("status") or {}
    allocated = set(map(device_key, results_of({"status": status})))

    def device(value: ReadOnlyJSON, path: str) -> list[FieldError]:
        return _device_status(value, path, allocated)

    devices = status.get("devices") or []
    out = items(status.get("reservedFor"), MAX_RESERVED, _consumer, "status.reservedFor", lambda c: c["uid"])
    out += items(devices, len(devices), device, "status.devices", lambda d: _shown(device_key(d)))
    out += _reservable(status, before, deleted=bool(new["metadata"].get("deletionTimestamp")))
    allocation, previous = status.get("allocation"), before.get("allocation")
    if previous is not None and allocation is not None:
        if allocation != previous:
            out.append(invalid("status.allocation", "<value omitted>", "field is immutable"))
    elif allocation is not None:
        out += _allocation(allocation, "status.allocation", known_requests(new["spec"]))
    return out


def validate_admin_access(new: ReadOnlyJSON, old: ReadOnlyJSON, labels: ReadOnlyJSON) -> list[FieldError]:
    """Allows a new allocation with admin access only in namespaces with the label for it."""
    if any(r.get("adminAccess") for r in results_of(old)):
        return []
    return admin_access(results_of(new), "status.allocation.devices.results", labels)


def device_key(owner: ReadOnlyJSON) -> DeviceKey:
    """Returns the device, or the share of a device, to which a result or an entry of ``status.devices`` refers."""
    return owner["driver"], owner["pool"], owner["device"], owner.get("shareID")


def without_deallocated(status: ReadOnlyJSON, before: ReadOnlyJSON) -> dict[str, Any]:
    """Returns ``status`` without the entries of devices that were allocated ``before`` and are no longer allocated."""
    gone = set(map(device_key, results_of({"status": before}))) - set(map(device_key, results_of({"status": status})))
    if not gone or not status.get("devices"):
        return dict(status)
    kept = [d for d in status["devices"] if device_key(d) not in gone]
    return {k: v for k, v in status.items() if k != "devices"} | ({"devices": kept} if kept else {})


def _shown(key: DeviceKey) -> str:
    return "/".join(part for part in key if part)


def _consumer(consumer: ReadOnlyJSON, path: str) -> list[FieldError]:
    return [required(f"{path}.{k}") for k in ("resource", "name", "uid") if not consumer.get(k)]


def _reservable(status: ReadOnlyJSON, before: ReadOnlyJSON, *, deleted: bool) -> list[FieldError]:
    """Returns an error if the claim cannot have its reservations: it has no allocation, or it is deleted and a consumer is new."""
    path, reserved = "status.reservedFor", status.get("reservedFor") or []
    if reserved and status.get("allocation") is None:
        return [forbidden(path, "may not be specified when `allocated` is not set")]
    if deleted and any(consumer not in (before.get("reservedFor") or []) for consumer in reserved):
        rule = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        return [forbidden(path, rule)]
    return []


def _allocation(allocation: ReadOnlyJSON, path: str, known: frozenset[str]) -> list[FieldError]:
    devices = allocation.get("devices") or {}

    def result(value: ReadOnlyJSON, at: str) -> list[FieldError]:
        return _result(value, at, known)

    def config(value: ReadOnlyJSON, at: str) -> list[FieldError]:
        source = value["source"]
        if not source:
            out = [required(f"{at}.source")]
        else:
            out = [] if source in SOURCES else [unsupported(f"{at}.source", source, SOURCES)]
        return out + configuration(value, at, known)

    out = items(devices.get("results"), MAX_RESULTS, result, f"{path}.devices.results")
    out += items(devices.get("config"), 2 * MAX_CONFIGS, config, f"{path}.devices.config")
    if (selector := allocation.get("nodeSelector")) is not None:
        out += node_selector(selector, f"{path}.nodeSelector")
    return out


def _device_id(value: ReadOnlyJSON, path: str) -> list[FieldError]:
    out = driver_name(value["driver"], f"{path}.driver") + pool_name(value["pool"], f"{path}.pool")
    return out + invalids(f"{path}.device", value["device"], names.label(value["device"]))


def _result(result: ReadOnlyJSON, path: str, known: frozenset[str]) -> list[FieldError]:
    out = request_name(result["request"], f"{path}.request", known) + _device_id(result, path)
    return out + bindings(result, path) + _share(result.get("shareID"), f"{path}.shareID")


def _share(value: str | None, path: str) -> list[FieldError]:
    if value is None or _UUID.fullmatch(value):
        return []
    rule = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters"
    return [invalid(path, value, rule)]


def _device_status(device: ReadOnlyJSON, path: str, allocated: set[DeviceKey]) -> list[FieldError]:
    out = _device_id(device, path) + _share(device.get("shareID"), f"{path}.shareID")
    if device_key(device) not in allocated:
        out.append(invalid(path, _shown(device_key(device)), "must be an allocated device in the claim"))
    conditions = device.get("conditions") or []
    if len(conditions) > MAX_CONDITIONS:
        out.append(too_many(f"{path}.conditions", len(conditions), MAX_CONDITIONS))
    types: set[str] = set()
    for i, condition in enumerate(conditions):
        where = f"{path}.conditions[{i}]"
        if condition["type"] in types:
            out.append(duplicate(f"{where}.type", condition["type"]))
        types.add(condition["type"])
        out += condition_faults(condition, where)
    if device.get("data") is not None:
        out += json_object(device["data"], f"{path}.data", MAX_OPAQUE_BYTES)
    return out + network_data(device.get("networkData") or {}, f"{path}.networkData")


def validate_claim_update(new: ReadOnlyJSON, old: ReadOnlyJSON) -> list[FieldError]:
    """Returns every error of an update of a claim or template. It checks the metadata, and that the spec is unchanged."""
    same = new["spec"] == old["spec"]
    out = updated_metadata(new["metadata"])
    return out if same else [*out, invalid("spec", "<value omitted>", "field is immutable")]
