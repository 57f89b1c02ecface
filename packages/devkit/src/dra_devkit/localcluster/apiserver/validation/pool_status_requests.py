"""Validates ResourcePoolStatusRequests (KEP-5677). Source: the validation tags of resource.k8s.io/v1alpha3 (1.36, 1.37)."""

from __future__ import annotations

from collections.abc import Iterator

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation import common, names
from dra_kubeletplugin.resourceapi.validation.device_status import condition_faults
from dra_kubeletplugin.resourceapi.validation.field_errors import (
    FieldError,
    invalid,
    invalids,
    required,
    too_long,
    too_many,
)

from .checks import IMMUTABLE, at_least

_MAX_POOLS = 1000
_MAX_ERROR = 256  # bytes
_MAX_ENTRIES = 32  # entries of each list of a pool
_MAX_CONDITIONS = 10
_COUNTS = ("totalDevices", "allocatedDevices", "availableDevices", "unavailableDevices", "generation")


def validate_request(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    """Returns all errors of a request. Its spec never changes."""
    spec = obj.get("spec") or {}
    if old is not None:
        return [] if spec == old.get("spec") else [invalid("spec", spec, IMMUTABLE)]
    out = common.driver_name(spec.get("driver", ""), "spec.driver")
    if (pool := spec.get("poolName")) is not None:
        out += _pool_name(pool, "spec.poolName")
    if (attribute := spec.get("defaultPartitionTypeAttribute")) is not None:
        out += common.qualified_name(attribute, "spec.defaultPartitionTypeAttribute", fully=True)
    out += at_least(spec, "spec", 1, "limit")
    if (limit := spec.get("limit", _MAX_POOLS)) > _MAX_POOLS:
        out.append(invalid("spec.limit", limit, f"must be less than or equal to {_MAX_POOLS}"))
    return out


def validate_request_status(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    """Returns all errors of a status. A status that is set never changes."""
    status, before = obj.get("status"), (old or {}).get("status")
    if before is not None:
        return [] if status == before else [invalid("status", status, IMMUTABLE)]
    return [] if status is None else list(_status(status))


def _status(status: ReadOnlyJSON) -> Iterator[FieldError]:
    if status.get("poolCount") is None:
        yield required("status.poolCount")
    yield from at_least(status, "status", 0, "poolCount")
    pools, conditions = status.get("pools") or [], status.get("conditions") or []
    if len(pools) > _MAX_POOLS:
        yield too_many("status.pools", len(pools), _MAX_POOLS)
    if len(conditions) > _MAX_CONDITIONS:
        yield too_many("status.conditions", len(conditions), _MAX_CONDITIONS)
    for i, condition in enumerate(conditions):
        yield from condition_faults(condition, f"status.conditions[{i}]")
    for i, pool in enumerate(pools[:_MAX_POOLS]):
        yield from _pool(pool, f"status.pools[{i}]")


def _pool(pool: ReadOnlyJSON, path: str) -> Iterator[FieldError]:
    yield from common.driver_name(pool.get("driver", ""), f"{path}.driver")
    yield from common.pool_name(pool.get("poolName", ""), f"{path}.poolName")
    if (node := pool.get("nodeName")) is not None:
        yield from invalids(f"{path}.nodeName", node, names.subdomain(node))
    yield from at_least(pool, path, 0, *_COUNTS)
    yield from at_least(pool, path, 1, "resourceSliceCount")
    if len(pool.get("validationError", "").encode()) > _MAX_ERROR:
        yield too_long(f"{path}.validationError", _MAX_ERROR)
    shares = (pool.get("shareableSummary") or {}).get("capacity") or []
    for where, entries in (
        ("partitionSummary", pool.get("partitionSummary") or []),
        ("shareableSummary.capacity", shares),
    ):
        if len(entries) > _MAX_ENTRIES:
            yield too_many(f"{path}.{where}", len(entries), _MAX_ENTRIES)


def _pool_name(value: str, path: str) -> list[FieldError]:
    return common.pool_name(value, path) if value else invalids(path, value, names.subdomain(value))
