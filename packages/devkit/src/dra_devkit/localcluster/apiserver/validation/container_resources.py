"""Validates the resources of containers and of whole pods: amounts, and names of claims.

Source: the validation package of the core API group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.quantity import Quantity
from dra_kubeletplugin.resourceapi.validation import names
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    invalids,
    required,
    unsupported,
)

from .checks import quantity

NATIVE = ("cpu", "memory", "ephemeral-storage")
_NOTHING = Quantity(0)
_OF_PODS = ("cpu", "hugepages-", "memory")


def validate_resources(resources: ReadOnlyJSON, path: str, claims: set[Any]) -> list[FieldError]:
    """Validates a container's resources. ``claims`` contains the names of the pod's claims."""
    out: list[FieldError] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            where = f"{path}.{field}[{name}]"
            out += _resource_name(name, where)
            value = quantity(amount)
            if value is not None and value < _NOTHING:
                out.append(invalid(where, amount, "must be greater than or equal to 0"))
            elif value is not None and name not in NATIVE and not _is_huge(name) and not value.is_integer:
                out.append(invalid(where, amount, "must be an integer"))
    for name, amount in requests.items():
        where = f"{path}.requests"
        limit = limits.get(name)
        if limit is None:
            if _is_extended(name) or _is_huge(name):
                out.append(required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
            continue
        requested, maximum = quantity(amount), quantity(limit)
        if requested is None or maximum is None:
            continue
        if (_is_extended(name) or _is_huge(name)) and requested != maximum:
            out.append(invalid(where, amount, f"must be equal to {name} limit of {limit}"))
        elif requested > maximum:
            out.append(invalid(where, amount, f"must be less than or equal to {name} limit of {limit}"))
    resource_names = limits.keys() | requests.keys()
    if any(_is_huge(name) for name in resource_names) and not resource_names & {"cpu", "memory"}:
        out.append(forbidden(path, "HugePages require cpu or memory"))
    return out + _container_claims(resources.get("claims") or [], f"{path}.claims", claims)


def validate_pod_resources(spec: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Validates ``spec.resources``, the resources of the whole pod. They must not be lower than the sum of its containers' requests."""
    out: list[FieldError] = []
    whole = spec.get("resources") or {}
    for field in ("limits", "requests"):
        for name in whole.get(field) or {}:
            if name not in _OF_PODS and not _is_huge(name):
                out.append(unsupported(f"{path}.{field}[{name}]", name, _OF_PODS))
    for name, amount in (whole.get("requests") or {}).items():
        requested = [((c.get("resources") or {}).get("requests") or {}).get(name) for c in spec.get("containers") or []]
        total = sum((a for text in requested if (a := quantity(text))), _NOTHING)
        if (own := quantity(amount)) is not None and own < total:
            rule = f"must be greater than or equal to aggregate container requests of {total}"
            out.append(invalid(f"{path}.requests[{name}]", amount, rule))
    return out


def _resource_name(name: str, where: str) -> list[FieldError]:
    if "/" in name:
        return invalids(where, name, names.qualified(name))
    if name in NATIVE or _is_huge(name):
        return []
    return [invalid(where, name, "must be a standard resource type or fully qualified")]


def _is_huge(name: str) -> bool:
    return name.startswith("hugepages-")


def _is_extended(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    return bool(slash) and not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))


def _container_claims(claims: Sequence[ReadOnlyJSON], path: str, known: set[Any]) -> list[FieldError]:
    out: list[FieldError] = []
    whole: set[str] = set()
    requests: set[tuple[str, str]] = set()
    for i, claim in enumerate(claims):
        name, request = claim.get("name", ""), claim.get("request", "")
        if not name:
            out.append(required(f"{path}[{i}]"))
            continue
        if name in whole or (name, request) in requests:
            out.append(duplicate(f"{path}[{i}]", name if not request else f"{name}/{request}"))
        elif not request and any(n == name for n, _ in requests):
            out.append(duplicate(f"{path}[{i}]", name))
        if request:
            requests.add((name, request))
        else:
            whole.add(name)
        if name not in known:
            out.append(FieldError("FieldValueNotFound", f"{path}[{i}]", f'Not found: "{name}"'))
    return out
