"""What the API server accepts as a ResourceClaim, ResourceClaimTemplate or DeviceClass (v1, as of 1.36).

CEL expressions are compiled by whoever has a compiler: pass it as ``compile``, which raises ``ValueError`` with the
compiler's words. Without one, only their length is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import names
from .fields import FieldError, duplicate, forbidden, invalid, invalids, required, too_long, too_many, unsupported
from .rules import items, object_name, opaque, qualified_name, taint_effect, taint_key

MAX_REQUESTS = 32
MAX_CONSTRAINTS = 32
MAX_CONFIGS = 32
MAX_SELECTORS = 32
MAX_SUBREQUESTS = 8
MAX_TOLERATIONS = 16
MAX_CEL_BYTES = 10 * 1024
MAX_CEL_COST = 1_000_000
MAX_RESERVED = 256
MAX_EXTENDED_NAME = 63

JSON = Mapping[str, Any]
Compile = Callable[[str], object] | None


def validate_claim(obj: JSON, compile: Compile = None) -> list[FieldError]:
    return object_name(obj["metadata"]) + _claim_spec(obj["spec"], "spec", compile)


def validate_template(obj: JSON, compile: Compile = None) -> list[FieldError]:
    inner = obj["spec"]
    out = object_name(obj["metadata"])
    labels = {
        "name": "x",
        "labels": inner["metadata"].get("labels"),
        "annotations": inner["metadata"].get("annotations"),
    }
    out += object_name(labels, "spec.metadata")
    return out + _claim_spec(inner["spec"], "spec.spec", compile)


def validate_class(obj: JSON, compile: Compile = None) -> list[FieldError]:
    spec = obj["spec"]
    out = object_name(obj["metadata"])
    out += items(spec.get("selectors"), MAX_SELECTORS, lambda s, p: _selector(s, p, compile), "spec.selectors")
    out += items(spec.get("config"), MAX_CONFIGS, _opaque_only, "spec.config")
    if (extended := spec.get("extendedResourceName")) is not None and not _is_extended(extended):
        out.append(invalid("spec.extendedResourceName", extended, "must be a valid extended resource name"))
    return out


def _is_extended(name: str) -> bool:
    """KEP-5004: not native, not a quota request, a qualified name, and room for the quota's prefix."""
    if "/" not in name or name.split("/", maxsplit=1)[0].endswith("kubernetes.io") or name.startswith("requests."):
        return False
    return not names.qualified(f"requests.{name}") and len(name.split("/")[1]) <= MAX_EXTENDED_NAME


def _claim_spec(spec: JSON, path: str, compile: Compile) -> list[FieldError]:
    devices = spec.get("devices") or {}
    where = f"{path}.devices"
    requests = devices.get("requests") or []
    known = set()
    for r in requests:
        known.add(r["name"])
        known |= {f"{r['name']}/{s['name']}" for s in r.get("firstAvailable") or []}
    out = items(requests, MAX_REQUESTS, lambda r, p: _request(r, p, compile), f"{where}.requests", lambda r: r["name"])
    out += items(
        devices.get("constraints"), MAX_CONSTRAINTS, lambda c, p: _constraint(c, p, known), f"{where}.constraints"
    )

    def config(value: JSON, at: str) -> list[FieldError]:
        return _request_names(value.get("requests"), f"{at}.requests", known) + _opaque_only(value, at)

    return out + items(devices.get("config"), MAX_CONFIGS, config, f"{where}.config")


def _opaque_only(value: JSON, path: str) -> list[FieldError]:
    if value.get("opaque") is None:
        return [required(f"{path}.opaque")]
    return opaque(value["opaque"], f"{path}.opaque")


def _request_names(values: list[str] | None, path: str, known: set[str]) -> list[FieldError]:
    def check(value: str, where: str) -> list[FieldError]:
        out: list[FieldError] = []
        for part in value.split("/", 1):
            out += invalids(where, part, names.label(part))
        if not out and value not in known:
            rule = (
                "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
            )
            out.append(invalid(where, value, rule))
        return out

    return items(values, MAX_REQUESTS, check, path, str)


def _request(request: JSON, path: str, compile: Compile) -> list[FieldError]:
    out = (
        invalids(f"{path}.name", request["name"], names.label(request["name"]))
        if request["name"]
        else [required(f"{path}.name")]
    )
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    rule = "exactly one of `exactly` or `firstAvailable` is required"
    if exactly is None and not alternatives:
        out.append(required(path, rule))
    elif exactly is not None and alternatives:
        out.append(invalid(path, None, rule))
    if exactly is not None:
        out += _device_request(exactly, f"{path}.exactly", compile)

    def sub(value: JSON, where: str) -> list[FieldError]:
        faults = (
            invalids(f"{where}.name", value["name"], names.label(value["name"]))
            if value["name"]
            else [required(f"{where}.name")]
        )
        return faults + _device_request(value, where, compile)

    return out + items(alternatives, MAX_SUBREQUESTS, sub, f"{path}.firstAvailable", lambda s: s["name"])


def _device_request(request: JSON, path: str, compile: Compile) -> list[FieldError]:
    out: list[FieldError] = []
    class_name = request["deviceClassName"]
    where = f"{path}.deviceClassName"
    if not class_name:
        out.append(required(where))
    else:
        out += invalids(where, class_name, names.subdomain(class_name))
    out += items(request.get("selectors"), MAX_SELECTORS, lambda s, p: _selector(s, p, compile), f"{path}.selectors")
    mode, count = request.get("allocationMode", ""), request.get("count", 0)
    if mode == "All":
        if count:
            rule = f"must not be specified when allocationMode is '{mode}'"
            out.append(invalid(f"{path}.count", count, rule))
    elif mode == "ExactCount":
        if count <= 0:
            out.append(invalid(f"{path}.count", count, "must be greater than zero"))
    else:
        out.append(unsupported(f"{path}.allocationMode", mode, ("All", "ExactCount")))
    out += items(request.get("tolerations"), MAX_TOLERATIONS, toleration, f"{path}.tolerations")
    return out


def _selector(selector: JSON, path: str, compile: Compile) -> list[FieldError]:
    cel = selector.get("cel")
    if cel is None:
        return [required(f"{path}.cel")]
    expression, where = cel["expression"], f"{path}.cel.expression"
    if len(expression.encode()) > MAX_CEL_BYTES:
        return [too_long(where, MAX_CEL_BYTES)]
    if compile:
        try:
            estimate = getattr(compile(expression), "max_cost", 0)
        except ValueError as e:
            return [invalid(where, expression, str(e))]
        if estimate > MAX_CEL_COST:
            return [forbidden(where, "too complex, exceeds cost limit")]
    return []


def toleration(value: JSON, path: str) -> list[FieldError]:
    """Every fault of one device toleration."""
    out: list[FieldError] = []
    key, operator = value.get("key", ""), value.get("operator", "")
    if key:
        out += taint_key(key, f"{path}.key")
    if operator == "Exists":
        if value.get("value"):
            out.append(invalid(f"{path}.value", value["value"], "must be empty for operator `Exists`"))
    elif operator == "Equal":
        out += invalids(f"{path}.value", value.get("value", ""), names.label_value(value.get("value", "")))
    elif not operator:
        out.append(required(f"{path}.operator"))
    else:
        out.append(unsupported(f"{path}.operator", operator, ("Equal", "Exists")))
    if effect := value.get("effect"):
        out += taint_effect(effect, f"{path}.effect")
    return out


def _constraint(value: JSON, path: str, known: set[str]) -> list[FieldError]:
    out = _request_names(value.get("requests"), f"{path}.requests", known)
    match, distinct = value.get("matchAttribute"), value.get("distinctAttribute")
    if match is not None:
        out += qualified_name(match, f"{path}.matchAttribute", fully=True)
    elif distinct is not None:
        out += qualified_name(distinct, f"{path}.distinctAttribute", fully=True)
    else:
        out.append(required(path, "exactly one of `matchAttribute` or `distinctAttribute` is required"))
    return out


def validate_admin_access(spec: JSON, labels: JSON) -> list[FieldError]:
    """Admin access is for namespaces with the label ``resource.kubernetes.io/admin-access: "true"``."""
    if labels.get("resource.kubernetes.io/admin-access") == "true":
        return []
    rule = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
    requests = (spec.get("devices") or {}).get("requests") or []
    for i, r in enumerate(requests):
        if (r.get("exactly") or {}).get("adminAccess"):
            # The path is the server's, which leaves `exactly` out, also for templates.
            return [forbidden(f"spec.devices.requests[{i}].adminAccess", rule)]
    return []


def validate_claim_update(new: JSON, old: JSON) -> list[FieldError]:
    """The spec of a claim never changes."""
    return [] if new["spec"] == old["spec"] else [invalid("spec", "<value omitted>", "field is immutable")]


def device_key(device: JSON) -> tuple[str, str, str, str]:
    """What tells apart the devices of a claim: driver, pool, device, share."""
    return device["driver"], device["pool"], device["device"], device.get("shareID", "")


def allocated_devices(claim: JSON) -> set[tuple[str, str, str, str]]:
    """The keys of the devices that are allocated to a claim."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return {device_key(r) for r in (allocation.get("devices") or {}).get("results") or []}


def validate_claim_status(new: JSON, old: JSON) -> list[FieldError]:
    """Rules for an update of a claim's status: consumers, allocation and device status fit together."""
    status, before = new.get("status") or {}, old.get("status") or {}
    out: list[FieldError] = []
    reserved = status.get("reservedFor") or []
    if len(reserved) > MAX_RESERVED:
        out.append(too_many("status.reservedFor", len(reserved), MAX_RESERVED))
    uids: set[str] = set()
    for i, consumer in enumerate(reserved):
        where = f"status.reservedFor[{i}]"
        out += [required(f"{where}.{k}") for k in ("resource", "name", "uid") if not consumer.get(k)]
        if consumer["uid"] in uids:
            out.append(duplicate(where, consumer["uid"]))
        uids.add(consumer["uid"])
    allocation, previous = status.get("allocation"), before.get("allocation")
    if allocation is None:
        if reserved:
            out.append(forbidden("status.reservedFor", "may not be specified when `allocated` is not set"))
    elif previous is not None and allocation != previous:
        out.append(invalid("status.allocation", "<value omitted>", "field is immutable"))
    if previous is not None and allocation is not None and new["metadata"].get("deletionTimestamp"):
        fresh = uids - {c["uid"] for c in before.get("reservedFor") or []}
        if fresh:
            out.append(forbidden("status.reservedFor", "new entries may not be added while `deletionTimestamp` is set"))
    allocated = allocated_devices(new)
    seen: set[tuple[str, ...]] = set()
    for i, device in enumerate(status.get("devices") or []):
        where = f"status.devices[{i}]"
        key = device_key(device)
        if key in seen:
            out.append(duplicate(where, "/".join(k for k in key if k)))
        elif key not in allocated:
            out.append(invalid(where, "/".join(k for k in key if k), "must be an allocated device in the claim"))
        seen.add(key)
        if len(device.get("conditions") or []) > 8:
            out.append(too_many(f"{where}.conditions", len(device["conditions"]), 8))
    return out
