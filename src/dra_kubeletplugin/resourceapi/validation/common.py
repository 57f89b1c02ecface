"""Validation rules that slices, claims and classes share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from . import names
from .field_errors import FieldError, duplicate, forbidden, invalid, invalids, required, too_long, too_many, unsupported


def items(
    values: Sequence[Any] | None,
    limit: int,
    check: Callable[[Any, str], Iterable[FieldError]],
    path: str,
    key: Callable[[Any], str] | None = None,
) -> list[FieldError]:
    """Validates a list: its length, every item, and, with ``key``, that no key occurs twice. Duplicates come last."""
    values = values or []
    if len(values) > limit:
        return [too_many(path, len(values), limit)]
    out = [fault for i, value in enumerate(values) for fault in check(value, f"{path}[{i}]")]
    seen: set[str] = set()
    for i, k in enumerate(map(key, values) if key else ()):
        if k in seen:
            out.append(duplicate(f"{path}[{i}]", k))
        seen.add(k)
    return out


def entry(path: str, key: str, longest: int) -> str:
    """Returns the path of a map's entry. A key that is too long is shortened in the middle."""
    if len(key) > longest:
        shown = longest - len("...")
        key = f"{key[: (shown + 1) // 2]}...{key[len(key) - shown // 2 :]}"
    return f"{path}[{key}]"


def driver_name(value: str, path: str) -> list[FieldError]:
    if not value:
        return [required(path)]
    out = [too_long(path, names.MAX_DRIVER)] if len(value.encode()) > names.MAX_DRIVER else []
    return out + invalids(path, value, names.subdomain(value.lower()))  # the server accepts upper case


def pool_name(value: str, path: str) -> list[FieldError]:
    if not value:
        return [required(path)]
    out = [too_long(path, names.MAX_SUBDOMAIN)] if len(value.encode()) > names.MAX_SUBDOMAIN else []
    for part in value.split("/"):
        out += invalids(path, part, names.subdomain(part))
    return out


@lru_cache(maxsize=4096)
def is_attribute_name(value: str) -> bool:
    """Returns whether every server accepts ``value`` as the name of an attribute or capacity.

    Cached, because thousands of devices share a few names.
    """
    return value.count("/") <= 1 and not qualified_name(value, "")


def qualified_name(value: str, path: str, *, fully: bool = False) -> list[FieldError]:
    """Validates the name of a device's attribute or capacity: a C identifier of at most 32 bytes, or domain/identifier."""
    parts = value.split("/")
    if len(parts) == 1:
        return _identifier(parts[0], path) + ([invalid(path, value, "must include a domain")] if fully else [])
    if len(parts) > 2:
        return []
    domain, name = parts
    out: list[FieldError] = []
    if not domain:
        out.append(invalid(path, "", "the domain must not be empty"))
    else:
        out += driver_name(domain, path)  # domains have the rules of driver names
    if not name:
        out.append(invalid(path, "", "the name must not be empty"))
    else:
        out += _identifier(name, path)
    return out


def _identifier(value: str, path: str) -> list[FieldError]:
    out = [too_long(path, names.MAX_IDENTIFIER)] if len(value.encode()) > names.MAX_IDENTIFIER else []
    return out + invalids(path, value, names.c_identifier(value))


def taint_key(value: str, path: str) -> list[FieldError]:
    return invalids(path, value, names.qualified(value))


def node_selector(selector: Mapping[str, Any], path: str, *, one_term: bool = False) -> list[FieldError]:
    """Validates a NodeSelector. In a slice it must have exactly one term."""
    terms = selector.get("nodeSelectorTerms") or []
    where = f"{path}.nodeSelectorTerms"
    out: list[FieldError] = []
    if not terms:
        out.append(required(where, "must have at least one node selector term"))
    for i, term in enumerate(terms):
        for kind, check in (("matchExpressions", _label_requirement), ("matchFields", _field_requirement)):
            for j, requirement in enumerate(term.get(kind) or []):
                out += check(requirement, f"{where}[{i}].{kind}[{j}]")
    if one_term and len(terms) != 1:
        shown = [
            {
                "MatchExpressions": _go_requirements(t.get("matchExpressions")),
                "MatchFields": _go_requirements(t.get("matchFields")),
            }
            for t in terms
        ]
        out.append(invalid(where, shown or None, "must have exactly one node selector term"))
    return out


def _go_requirements(values: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    if not values:
        return None
    return [{"Key": v["key"], "Operator": v["operator"], "Values": v.get("values")} for v in values]


def _field_requirement(requirement: Mapping[str, Any], path: str) -> list[FieldError]:
    key, operator = requirement.get("key"), requirement.get("operator", "")
    values = requirement.get("values") or []
    out: list[FieldError] = []
    if operator not in {"In", "NotIn"}:
        out.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    elif len(values) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        out.append(required(f"{path}.values", detail))
    if key != "metadata.name":
        return [*out, invalid(f"{path}.key", key, "not a valid field selector key")]
    for i, value in enumerate(values):
        out += invalids(f"{path}.values[{i}]", value, names.subdomain(value))
    return out


def _label_requirement(requirement: Mapping[str, Any], path: str) -> list[FieldError]:
    operator, values = requirement.get("operator", ""), requirement.get("values") or []
    out: list[FieldError] = []
    if operator in {"In", "NotIn"}:
        if not values:
            out.append(required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in {"Exists", "DoesNotExist"}:
        if values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            out.append(forbidden(f"{path}.values", detail))
    elif operator in {"Gt", "Lt"}:
        if len(values) != 1:
            out.append(required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"))
    else:
        out.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    out += invalids(f"{path}.key", requirement.get("key", ""), names.qualified(requirement.get("key", "")))
    for i, value in enumerate(values):
        out += invalids(f"{path}.values[{i}]", value, names.label_value(value))
    return out


TAINT_EFFECTS = ("None", "NoSchedule", "NoExecute")


def taint_effect(value: str, path: str, effects: Collection[str] = TAINT_EFFECTS) -> list[FieldError]:
    if not value:
        return [required(path)]
    return [] if value in effects else [unsupported(path, value, effects)]
