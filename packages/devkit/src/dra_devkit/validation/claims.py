"""Validates ResourceClaims, ResourceClaimTemplates and DeviceClasses (v1, as of 1.36).

The caller passes a CEL compiler as ``compile``. It raises ``ValueError`` with the compiler's message, or
:class:`ProgramFault` if the expression compiles but no program can be created from it. Without a compiler, only the
length of expressions is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation import names
from dra_kubeletplugin.resourceapi.validation.common import driver_name, items, qualified_name, taint_effect, taint_key
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    forbidden,
    invalid,
    invalids,
    required,
    too_long,
    unsupported,
)

from .metadata import metadata, template_metadata, updated_metadata

MAX_REQUESTS = 32
MAX_CONSTRAINTS = 32
MAX_CONFIGS = 32
MAX_SELECTORS = 32
MAX_DERIVED = 32
MAX_SUBREQUESTS = 8
MAX_CEL_BYTES = 10 * 1024
MAX_CEL_COST = 1_000_000
MAX_EXTENDED_NAME = 63
MAX_OPAQUE_BYTES = 10 * 1024

Compile = Callable[[str], object] | None


class ProgramFault(ValueError):
    """An expression compiles, but no program can be created from it. The API server reports an internal error."""


def validate_claim(obj: ReadOnlyJSON, compile: Compile = None, compile_derived: Compile = None) -> list[FieldError]:
    spec = obj["spec"]
    out = metadata(obj["metadata"]) + _claim_spec(spec, "spec", compile)
    return out + derived_attributes(spec.get("devices") or {}, "spec.devices", compile_derived)


def validate_template(obj: ReadOnlyJSON, compile: Compile = None, compile_derived: Compile = None) -> list[FieldError]:
    inner = obj["spec"]
    out = metadata(obj["metadata"]) + template_metadata(inner["metadata"], "spec.metadata")
    out += _claim_spec(inner["spec"], "spec.spec", compile)
    return out + derived_attributes(inner["spec"].get("devices") or {}, "spec.spec.devices", compile_derived)


def validate_class(obj: ReadOnlyJSON, compile: Compile = None, *, update: bool = False) -> list[FieldError]:
    spec = obj["spec"]
    out = updated_metadata(obj["metadata"]) if update else metadata(obj["metadata"])
    out += items(spec.get("selectors"), MAX_SELECTORS, lambda s, p: _selector(s, p, compile), "spec.selectors")
    out += items(spec.get("config"), MAX_CONFIGS, _opaque_only, "spec.config")
    if (extended := spec.get("extendedResourceName")) is not None and not _is_extended(extended):
        out.append(invalid("spec.extendedResourceName", extended, "must be a valid extended resource name"))
    return out


def _is_extended(name: str) -> bool:
    """Returns whether a name is a valid extended resource (KEP-5004).

    It must be a qualified name that is neither native nor the name of a quota. It must still be valid after the prefix
    ``requests.`` of quotas is added.
    """
    if "/" not in name or name.split("/", maxsplit=1)[0].endswith("kubernetes.io") or name.startswith("requests."):
        return False
    return not names.qualified(f"requests.{name}") and len(name.split("/")[1]) <= MAX_EXTENDED_NAME


def known_requests(spec: ReadOnlyJSON) -> frozenset[str]:
    """Returns the names that other parts of a claim may refer to: ``request``, and ``request/alternative``."""
    alternatives: dict[str, list[str]] = {}
    for request in (spec.get("devices") or {}).get("requests") or []:
        alternatives[request["name"]] = [a["name"] for a in request.get("firstAvailable") or []]
    return frozenset(alternatives) | {f"{name}/{sub}" for name, subs in alternatives.items() for sub in subs}


def _claim_spec(spec: ReadOnlyJSON, path: str, compile: Compile) -> list[FieldError]:
    devices = spec.get("devices") or {}
    where = f"{path}.devices"
    known = known_requests(spec)
    requests, constraints, configs = (devices.get(key) for key in ("requests", "constraints", "config"))
    out = items(requests, MAX_REQUESTS, partial(_request, compile=compile), f"{where}.requests", lambda r: r["name"])
    out += items(constraints, MAX_CONSTRAINTS, partial(_constraint, known=known), f"{where}.constraints")
    return out + items(configs, MAX_CONFIGS, partial(configuration, known=known), f"{where}.config")


def configuration(value: ReadOnlyJSON, path: str, known: frozenset[str]) -> list[FieldError]:
    """Returns every error of one entry of ``config`` of a claim or an allocation."""
    return request_names(value.get("requests"), f"{path}.requests", known) + _opaque_only(value, path)


def _opaque_only(value: ReadOnlyJSON, path: str) -> list[FieldError]:
    if value.get("opaque") is None:
        return [required(f"{path}.opaque")]
    return opaque(value["opaque"], f"{path}.opaque")


def request_names(values: list[str] | None, path: str, known: frozenset[str]) -> list[FieldError]:
    return items(values, MAX_REQUESTS, lambda v, at: request_name(v, at, known), path, str)


def request_name(value: str, path: str, known: frozenset[str]) -> list[FieldError]:
    """Validates a reference to a request or to one of its alternatives."""
    rule = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
    parts = value.split("/")
    if len(parts) > 2:
        return [invalid(path, value, rule)]
    out = [fault for part in parts for fault in invalids(path, part, names.label(part))]
    return out if value in known else [*out, invalid(path, value, rule)]


def _request(request: ReadOnlyJSON, path: str, compile: Compile) -> list[FieldError]:
    out = invalids(f"{path}.name", request["name"], names.label(request["name"]))
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    rule = "exactly one of `exactly` or `firstAvailable` is required"
    if exactly is not None and alternatives:
        return [*out, invalid(path, None, f"{rule}, but multiple fields are set")]
    if exactly is not None:
        return out + _device_request(exactly, f"{path}.exactly", compile)
    if not alternatives:
        return [*out, required(path, rule)]

    def sub(value: ReadOnlyJSON, where: str) -> list[FieldError]:
        faults = invalids(f"{where}.name", value["name"], names.label(value["name"]))
        return faults + _device_request(value, where, compile)

    return out + items(alternatives, MAX_SUBREQUESTS, sub, f"{path}.firstAvailable", lambda s: s["name"])


def _device_request(request: ReadOnlyJSON, path: str, compile: Compile) -> list[FieldError]:
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
    return out + tolerations(request.get("tolerations"), f"{path}.tolerations")


def internal(path: str, detail: str) -> FieldError:
    return FieldError("InternalError", path, f"Internal error: {detail}")


def _selector(selector: ReadOnlyJSON, path: str, compile: Compile) -> list[FieldError]:
    cel = selector.get("cel")
    if cel is None:
        return [required(f"{path}.cel")]
    return _expression(cel["expression"], f"{path}.cel.expression", compile)


def _expression(expression: str, where: str, compile: Compile) -> list[FieldError]:
    if len(expression.encode()) > MAX_CEL_BYTES:
        return [too_long(where, MAX_CEL_BYTES)]
    if compile:
        try:
            estimate = getattr(compile(expression), "max_cost", 0)
        except ProgramFault as e:
            return [internal(where, str(e))]
        except ValueError as e:
            return [invalid(where, expression, str(e))]
        if estimate > MAX_CEL_COST:
            return [forbidden(where, "too complex, exceeds cost limit")]
    return []


def derived_attributes(devices: ReadOnlyJSON, path: str, compile: Compile) -> list[FieldError]:
    """Validates the derived attributes of all requests (KEP-6080). Together they have the budget of one selector's cost.

    Source: the documentation of the type DeviceDerivedAttribute and the checks of expressions in Kubernetes 1.37.
    """
    out: list[FieldError] = []
    cost = 0
    for aliases, request, where in _requests(devices, f"{path}.requests"):
        used = _compared(devices.get("constraints") or [], aliases)
        values = request.get("derivedAttributes")

        def derived(value: ReadOnlyJSON, at: str, used: frozenset[str] = used) -> list[FieldError]:
            name, expression = value["name"], value["expression"]
            faults = qualified_name(name, f"{at}.name", fully=True) if name else [required(f"{at}.name")]
            if not faults and name not in used:
                rule = "must be used by a `matchAttribute` or `distinctAttribute` constraint of the request"
                faults.append(invalid(f"{at}.name", name, rule))
            where = f"{at}.expression"
            return faults + (_expression(expression, where, compile) if expression else [required(where)])

        found = items(values, MAX_DERIVED, derived, f"{where}.derivedAttributes", lambda v: v["name"])
        out += found
        if compile and not found:
            cost += sum(getattr(compile(value["expression"]), "max_cost", 0) for value in values or [])
    if cost > MAX_CEL_COST:
        out.append(forbidden(f"{path}.requests", "derived attributes too complex, exceed the cost limit of a claim"))
    return out


def _requests(devices: ReadOnlyJSON, path: str) -> Iterator[tuple[frozenset[str], ReadOnlyJSON, str]]:
    """Yields each request and alternative: the names that constraints use for it, its fields, and its path."""
    for i, request in enumerate(devices.get("requests") or []):
        if (exactly := request.get("exactly")) is not None:
            yield frozenset({request["name"]}), exactly, f"{path}[{i}].exactly"
        for k, sub in enumerate(request.get("firstAvailable") or []):
            aliases = frozenset({request["name"], f"{request['name']}/{sub['name']}"})
            yield aliases, sub, f"{path}[{i}].firstAvailable[{k}]"


def _compared(constraints: Iterable[ReadOnlyJSON], aliases: frozenset[str]) -> frozenset[str]:
    """Returns the attributes that the constraints of a request compare."""
    return frozenset(
        str(c.get("matchAttribute") or c.get("distinctAttribute"))
        for c in constraints
        if not c.get("requests") or not aliases.isdisjoint(c["requests"])
    )


def tolerations(values: list[ReadOnlyJSON] | None, path: str) -> list[FieldError]:
    return [fault for i, value in enumerate(values or []) for fault in toleration(value, f"{path}[{i}]")]


def toleration(value: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns every error of one device toleration."""
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


def _constraint(value: ReadOnlyJSON, path: str, known: frozenset[str]) -> list[FieldError]:
    out = request_names(value.get("requests"), f"{path}.requests", known)
    match, distinct = value.get("matchAttribute"), value.get("distinctAttribute")
    if match is not None:
        out += qualified_name(match, f"{path}.matchAttribute", fully=True)
    elif distinct is not None:
        out += qualified_name(distinct, f"{path}.distinctAttribute", fully=True)
    else:
        out.append(required(path, "exactly one of `matchAttribute` or `distinctAttribute` is required"))
    return out


def validate_admin_access(spec: ReadOnlyJSON, labels: ReadOnlyJSON) -> list[FieldError]:
    """Allows admin access only in namespaces with the label ``resource.kubernetes.io/admin-access: "true"``."""
    requests = (spec.get("devices") or {}).get("requests") or []
    # As on the server, the path does not contain `exactly`; for templates it is the path of a claim.
    return admin_access([r.get("exactly") or {} for r in requests], "spec.devices.requests", labels)


def admin_access(owners: Iterable[ReadOnlyJSON], path: str, labels: ReadOnlyJSON) -> list[FieldError]:
    """Returns an error for the first request or result with admin access, unless the namespace has the label."""
    if labels.get("resource.kubernetes.io/admin-access") == "true":
        return []
    rule = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
    found = (forbidden(f"{path}[{i}].adminAccess", rule) for i, o in enumerate(owners) if o.get("adminAccess"))
    return list(islice(found, 1))


def opaque(config: Mapping[str, Any], path: str) -> list[FieldError]:
    """Validates an opaque driver configuration: a driver's name and a JSON object of at most 10 KiB."""
    out = driver_name(config.get("driver", ""), f"{path}.driver")
    return out + json_object(config.get("parameters"), f"{path}.parameters", MAX_OPAQUE_BYTES)


def json_object(value: object, path: str, limit: int) -> list[FieldError]:
    """Validates a JSON object of at most ``limit`` bytes."""
    if value is None:
        return [required(path)]
    if len(msgspec.json.encode(value)) > limit:
        return [too_long(path, limit)]
    return [] if isinstance(value, Mapping) else [invalid(path, "<value omitted>", "must be a valid JSON object")]
