"""Formats the result of ``dra inspect`` as text: each pool with its counter sets, and each device with its health on a few lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.text import counted

from .output_models import InspectedHealth, InspectedPool, Inspection
from .style import Style, wrapped

_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]*)")


def text(found: Inspection, style: Style) -> Iterator[str]:
    """Yields the pools, then the devices that are not published, then errors of ``health()``."""
    for pool in found.pools:
        yield from _pool(pool, style)
    if not found.pools and not found.rejected:
        yield "no devices"
    for name, fault in found.rejected.items():
        yield style.red(f"not published: {name}: {fault}")
    yield from map(style.red, found.faults)


def _pool(pool: InspectedPool, style: Style) -> Iterator[str]:
    numbers = [counted(len(pool.devices), "device")]
    if pool.counter_sets:
        numbers.append(counted(len(pool.counter_sets), "counter set"))
    if pool.health is None:
        numbers.append("health is not reported")
    yield from wrapped(f"{style.bold(f'pool {pool.name}')} on {_nodes(pool.nodes)}: {', '.join(numbers)}", 0)
    for counter_set in pool.counter_sets:
        yield from wrapped(f"counter set {counter_set['name']}: {_amounts(counter_set['counters'])}", 2)
    for device in pool.devices:
        name = device["name"]
        health = "" if pool.health is None else f"  {_health(pool.health[name], style)}"
        yield f"  {style.bold(name)}{health}"
        for line in _device(device):
            yield from wrapped(line, 6)


def _nodes(nodes: ReadOnlyJSON) -> str:
    if "nodeName" in nodes:
        return str(nodes["nodeName"])
    if nodes.get("allNodes"):
        return "all nodes"
    return f"nodes that match {json.dumps(nodes.get('nodeSelector', nodes))}"


def _health(health: InspectedHealth, style: Style) -> str:
    if health.healthy is None:
        return style.yellow(f"health unknown: {health.message}")
    if health.healthy:
        return style.green("healthy")
    return style.red(f"unhealthy: {health.message or 'no reason given'}")


def _device(device: ReadOnlyJSON) -> Iterator[str]:
    """Yields a line for each field of a device, as in a ResourceSlice."""
    for field, value in device.items():
        match field:
            case "name":
                pass
            case "attributes":
                own_first = sorted(value.items(), key=lambda item: "/" in item[0])
                yield "attributes: " + ", ".join(f"{name}={_value(typed)}" for name, typed in own_first)
            case "capacity":
                yield "capacity: " + _amounts(value)
            case "consumesCounters":
                for consumed in value:
                    yield f"consumes from {consumed['counterSet']}: {_amounts(consumed['counters'])}"
            case "taints":
                yield "taints: " + ", ".join(map(_taint, value))
            case _:
                yield f"{field}: {value if isinstance(value, str) else json.dumps(value)}"


def _value(typed: ReadOnlyJSON) -> str:
    """Returns an attribute's value without its type, for example ``N4`` for ``{"string": "N4"}``."""
    [value] = typed.values()
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _taint(taint: ReadOnlyJSON) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _amounts(amounts: Mapping[str, ReadOnlyJSON]) -> str:
    """Returns ``memory=64Gi, slot-0..3=1 each``: numbered names that follow each other and have the same amount are one item."""
    runs: list[tuple[str, int, int, str]] = []  # name without its number, first and last number (-1 if none), amount
    for name, amount in amounts.items():
        shown = f"{amount['value']}{_policy(amount.get('requestPolicy'))}"
        numbered = _NUMBERED.fullmatch(name)
        stem, number = (numbered[1], int(numbered[2])) if numbered else (name, -1)
        before = runs[-1] if runs else None
        if before and number > 0 and (before[0], before[2], before[3]) == (stem, number - 1, shown):
            runs[-1] = (stem, before[1], number, shown)
        else:
            runs.append((stem, number, number, shown))
    return ", ".join(_run(*run) for run in runs)


def _run(stem: str, first: int, last: int, shown: str) -> str:
    if first == last:
        return f"{stem}{'' if first < 0 else first}={shown}"
    return f"{stem}{first}..{last}={shown} each"


def _policy(policy: ReadOnlyJSON | None) -> str:
    """Returns which amounts a claim may request of a shared capacity."""
    if not policy:
        return ""
    return f" ({'; '.join(_rules(policy))})"


def _rules(policy: ReadOnlyJSON) -> Iterable[str]:
    if "default" in policy:
        yield f"default {policy['default']}"
    if values := policy.get("validValues"):
        yield f"one of {', '.join(map(str, values))}"
    if limits := policy.get("validRange"):
        yield ", ".join(f"{name} {limits[name]}" for name in ("min", "max", "step") if name in limits)
