"""Validates PodGroups and pods that refer to one. Source: the validation tags of scheduling.k8s.io (1.36, 1.37)."""

from __future__ import annotations

from collections.abc import Iterator

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation import names
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    duplicate,
    invalid,
    invalids,
    required,
    too_many,
)

from .checks import IMMUTABLE, at_least

_MAX_CLAIMS = 4  # maximum number of claims of a group
_SOURCES = ("resourceClaimName", "resourceClaimTemplateName")
_POLICIES = ("basic", "gang")


def validate_group(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    """Returns all errors of a PodGroup."""
    spec, before = obj.get("spec") or {}, (old or {}).get("spec") or {}
    if old is not None:
        changed = [f for f in sorted(spec.keys() | before.keys()) if spec.get(f) != before.get(f)]
        return [invalid(f"spec.{f}", spec.get(f), IMMUTABLE) for f in changed]
    return [*_policy(spec.get("schedulingPolicy") or {}), *_claims(spec.get("resourceClaims") or [])]


def validate_group_status(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    """Returns all errors of a PodGroup's status."""
    known = {c.get("name") for c in (obj.get("spec") or {}).get("resourceClaims") or []}
    return [
        invalid(
            f"status.resourceClaimStatuses[{i}].name",
            status.get("name"),
            "must match the name of an entry in `spec.resourceClaims`",
        )
        for i, status in enumerate((obj.get("status") or {}).get("resourceClaimStatuses") or [])
        if status.get("name") not in known
    ]


def validate_membership(spec: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns all errors of a pod's ``schedulingGroup``."""
    group = spec.get("schedulingGroup")
    if group is None:
        return []
    where, name = f"{path}.schedulingGroup.podGroupName", group.get("podGroupName")
    return invalids(where, name, names.subdomain(name)) if name else [required(where)]


def _one_of(obj: ReadOnlyJSON, allowed: tuple[str, ...], where: str) -> Iterator[FieldError]:
    found = [f for f in allowed if obj.get(f) is not None]
    listed = ", ".join(f"`{f}`" for f in allowed)
    if not found:
        yield invalid(where, "", f"must specify one of: {listed}")
    elif len(found) > 1:
        yield invalid(where, f"{{{', '.join(found)}}}", f"must specify exactly one of: {listed}")


def _policy(policy: ReadOnlyJSON) -> Iterator[FieldError]:
    yield from _one_of(policy, _POLICIES, "spec.schedulingPolicy")
    yield from at_least(policy.get("gang") or {}, "spec.schedulingPolicy.gang", 1, "minCount")


def _claims(entries: list[ReadOnlyJSON]) -> Iterator[FieldError]:
    where = "spec.resourceClaims"
    if len(entries) > _MAX_CLAIMS:
        yield too_many(where, len(entries), _MAX_CLAIMS)
    seen = set()
    for i, entry in enumerate(entries):
        at, name = f"{where}[{i}]", entry.get("name") or ""
        if not name:
            yield required(f"{at}.name")
        yield from invalids(f"{at}.name", name, names.label(name) if name else ())
        if name in seen:
            yield duplicate(at, {"name": name})
        seen.add(name)
        yield from _one_of(entry, _SOURCES, at)
        for source in _SOURCES:
            if (value := entry.get(source)) is not None:
                yield from invalids(f"{at}.{source}", value, names.subdomain(value))
