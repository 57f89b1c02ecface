"""Calculates the status of pools for ResourcePoolStatusRequests (KEP-5677): how many of their devices are free.

Kubernetes 1.36 counts each allocation of a device, also with admin access, and no device as unavailable. 1.37 counts a device once, counts
tainted devices as unavailable, and adds views of partitions and of shared capacity.
Source: kube-controller-manager's resourcepoolstatusrequest-controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dra_kubeletplugin.base.json_types import JSON, ReadOnlyJSON
from dra_kubeletplugin.resourceapi.allocation import results_of
from dra_kubeletplugin.resourceapi.quantity import Quantity, parse

from ...generations import generation_of, newest_by_pool
from ...scheduling.allocator.constraints import attribute
from ...scheduling.allocator.counters import consume
from ...scheduling.framework.device_taint_rules import taints_of

_MAX_ERROR = 256
_MAX_ENTRIES = 32  # of each list of a view
_UNAVAILABLE = {"NoSchedule", "NoExecute"}
_ZERO = parse("0")
Counters = dict[tuple[str, str], Quantity]  # by counter set and counter


class _ViewError(Exception):
    """A view cannot be calculated. The text is the ``validationError`` of the pool."""


@dataclass(frozen=True)
class _Pool:
    """A complete pool.

    Attributes:
        results: its allocated devices, each without admin access.
        default_type: the attribute with the type of a partition, if no slice with devices names one.
    """

    driver: str
    name: str
    slices: Sequence[ReadOnlyJSON]
    results: Sequence[ReadOnlyJSON]
    default_type: str | None = None

    @cached_property
    def devices(self) -> list[ReadOnlyJSON]:
        return [device for sl in self.slices for device in sl["spec"].get("devices") or []]

    @cached_property
    def in_use(self) -> set[str]:
        return {result["device"] for result in self.results}

    @cached_property
    def counter_sets(self) -> list[ReadOnlyJSON]:
        return [counters for sl in self.slices for counters in sl["spec"].get("sharedCounters") or []]

    def partitions(self) -> Iterator[tuple[str, ReadOnlyJSON]]:
        """Yields the devices whose type of partition is named by an attribute, each with this attribute."""
        named = [(sl["spec"].get("partitionTypeAttribute"), sl["spec"].get("devices") or ()) for sl in self.slices]
        default = None if any(name and devices for name, devices in named) else self.default_type
        yield from ((attribute, d) for name, devices in named if (attribute := name or default) for d in devices)

    def available_counters(self) -> Counters:
        """Returns the rest of each counter. A device consumes counters once, however many claims share it."""
        rest = {(s["name"], c): parse(v["value"]) for s in self.counter_sets for c, v in s["counters"].items()}
        for device in self.devices:
            if device["name"] in self.in_use:
                consume(rest, device, 1)
        return rest

    def error(self, reason: str, text: str) -> _ViewError:
        return _ViewError(f"{reason}: pool {self.driver}/{self.name} {text}")

    def checked(self, entries: list[JSON], reason: str, what: str) -> list[JSON]:
        if len(entries) > _MAX_ENTRIES:
            raise self.error(reason, f"has {len(entries)} {what}, exceeding the maximum of {_MAX_ENTRIES}")
        return entries


def pool_statuses(
    spec: ReadOnlyJSON,
    slices: Iterable[ReadOnlyJSON],
    claims: Iterable[ReadOnlyJSON],
    rules: Sequence[ReadOnlyJSON],
    *,
    is_1_36: bool,
) -> list[JSON]:
    """Returns the status of each pool that a request selects, in order of their names.

    Args:
        spec: of the request.
        rules: the DeviceTaintRules that have an effect.
        is_1_36: whether to count as Kubernetes 1.36.
    """
    driver, wanted = spec["driver"], spec.get("poolName")
    selected = [s for s in slices if s["spec"]["driver"] == driver and wanted in (None, s["spec"]["pool"]["name"])]
    results: dict[str, list[ReadOnlyJSON]] = {}
    for result in (r for claim in claims for r in results_of(claim)):
        if result["driver"] == driver and (is_1_36 or not result.get("adminAccess")):
            results.setdefault(result["pool"], []).append(result)
    default = spec.get("defaultPartitionTypeAttribute")
    pools = [
        _Pool(driver, name, found, results.get(name, ()), default)
        for (_, name), found in newest_by_pool(selected).items()
    ]
    return [_status(pool, rules, is_1_36=is_1_36) for pool in sorted(pools, key=lambda p: p.name)]


def is_incomplete(status: ReadOnlyJSON) -> bool:
    """Returns whether slices of a pool are missing. Its status then has no counts."""
    return "totalDevices" not in status


def _status(pool: _Pool, rules: Sequence[ReadOnlyJSON], *, is_1_36: bool) -> JSON:
    first = pool.slices[0]
    out: JSON = {"driver": pool.driver, "poolName": pool.name, "generation": generation_of(first)}
    nodes = {sl["spec"].get("nodeName") for sl in pool.slices}
    if len(nodes) == 1 and (node := nodes.pop()):
        out["nodeName"] = node
    expected = first["spec"]["pool"]["resourceSliceCount"]
    if len(pool.slices) < expected:
        observed = f"observed {len(pool.slices)}/{expected} slices at generation {generation_of(first)}"
        error = f"pool {pool.driver}/{pool.name} is incomplete: {observed}"
        out["validationError"] = (error if is_1_36 else f"PoolIncomplete: {error}")[:_MAX_ERROR]
        return out
    total = len(pool.devices)
    allocated = len(pool.results) if is_1_36 else len(pool.in_use)
    unavailable = 0 if is_1_36 else sum(_is_unavailable(pool, device, rules) for device in pool.devices)
    out |= {
        "resourceSliceCount": len(pool.slices),
        "totalDevices": total,
        "allocatedDevices": allocated,
        "availableDevices": max(0, total - allocated - unavailable),
        "unavailableDevices": unavailable,
    }
    return out if is_1_36 else out | _views(pool)


def _is_unavailable(pool: _Pool, device: ReadOnlyJSON, rules: Sequence[ReadOnlyJSON]) -> bool:
    taints = (*(device.get("taints") or ()), *taints_of(rules, pool.driver, pool.name, device["name"]))
    return any(taint.get("effect") in _UNAVAILABLE for taint in taints)


def _views(pool: _Pool) -> JSON:
    """Returns the views of 1.37. An error of one view does not affect the counts of the pool."""
    out: JSON = {}
    errors = []
    for view in (_partition_summary, _shareable_summary):
        try:
            out |= view(pool)
        except _ViewError as e:
            errors.append(str(e))
    if errors:
        out = {k: v for k, v in out.items() if k == "shareableSummary"} | {"validationError": errors[0][:_MAX_ERROR]}
    return out


def _partition_summary(pool: _Pool) -> JSON:
    """Returns the partitions by the attribute that names their type, and by type. Devices without counters are no partitions."""
    partitions = list(pool.partitions())
    if partitions and not pool.counter_sets:
        raise pool.error("PartitionTypeMissing", "declares partitionTypeAttribute but publishes no sharedCounters")
    where = f"in pool {pool.driver}/{pool.name}"
    by_type: dict[tuple[str, str], list[ReadOnlyJSON]] = {}
    for name, device in partitions:
        if not device.get("consumesCounters"):
            continue
        kind = (attribute(device, pool.driver, name) or {}).get("string")
        if kind is None:
            text = f'device "{device["name"]}" {where} does not carry partition type attribute "{name}"'
            raise _ViewError(f"PartitionTypeMissing: {text}")
        alike = by_type.setdefault((name, kind), [])
        if alike and _cost(alike[0]) != _cost(device):
            text = f'devices of partition type "{kind}" {where} consume different counters'
            raise _ViewError(f"PartitionCostMismatch: {text}")
        alike.append(device)
    summary: list[JSON] = [
        {"attribute": name, "type": kind, "total": len(alike), "allocatable": _allocatable(pool, alike)}
        for (name, kind), alike in sorted(by_type.items())
    ]
    checked = pool.checked(summary, "PartitionSummaryOverCap", "partition types")
    return {"partitionSummary": checked} if checked else {}


def _cost(device: ReadOnlyJSON) -> list[tuple[str, str, Quantity]]:
    consumed = device.get("consumesCounters") or []
    return sorted((c["counterSet"], n, parse(v["value"])) for c in consumed for n, v in c["counters"].items())


def _allocatable(pool: _Pool, alike: Sequence[ReadOnlyJSON]) -> int:
    """Returns how many more devices of one type the counters allow, if no devices of other types are allocated."""
    rest, count = pool.available_counters(), 0
    for device in alike:
        fits = all((s, c) in rest and amount <= rest[s, c] for s, c, amount in _cost(device))
        if fits and device["name"] not in pool.in_use:
            consume(rest, device, 1)
            count += 1
    return count


def _shareable_summary(pool: _Pool) -> JSON:
    """Returns the capacity of the devices that claims share; empty for a pool without such devices."""
    shared = [device for device in pool.devices if device.get("allowMultipleAllocations")]
    if not shared:
        return {}
    total: dict[str, Quantity] = {}
    for name, capacity in ((n, c) for device in shared for n, c in (device.get("capacity") or {}).items()):
        total[name] = total.get(name, _ZERO) + parse(capacity["value"])
    consumed: dict[str, Quantity] = {}
    for name, amount in ((n, a) for r in pool.results for n, a in (r.get("consumedCapacity") or {}).items()):
        consumed[name] = consumed.get(name, _ZERO) + parse(amount)
    entries = [{"name": n, **_amounts("total", q, consumed.get(n, _ZERO))} for n, q in sorted(total.items())]
    partly = sum(device["name"] in pool.in_use for device in shared)
    summary: JSON = {"fullyAvailableDevices": len(shared) - partly, "partiallyAvailableDevices": partly}
    if capacities := pool.checked(entries, "ShareableSummaryOverCap", "shareable capacity keys"):
        summary["capacity"] = capacities
    return {"shareableSummary": summary}


def _amounts(name: str, whole: Quantity, consumed: Quantity) -> JSON:
    available = whole - consumed if consumed < whole else _ZERO
    return {name: whole.text, "consumed": consumed.text, "available": available.text}
