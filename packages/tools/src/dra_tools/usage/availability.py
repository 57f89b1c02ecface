"""Decides the use of each device of a pool: free, held, shared, blocked or unavailable, with the reason.

:class:`~.rows.DeviceUse` defines the words. The rules are those of the scheduler's allocator; a test compares them on
random clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.text import join_names
from dra_kubeletplugin.resourceapi import node_selectors
from dra_kubeletplugin.resourceapi.quantity import Quantity, QuantityError

from ..taints import BLOCKING_EFFECTS
from .published import Consumption, PublishedSlice, SliceDevice
from .rows import DeviceUse, Holder

NOTHING = Quantity(0)
# Taints of Kubernetes itself. Other taints reserve a node for pods that tolerate the taint, so the node does take new pods.
_PREFIXES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_CORDONED = "unschedulable"


def unschedulable(node: ReadOnlyJSON) -> str:
    """Returns why a node takes no new pods, for example ``cordoned`` or ``not ready, disk pressure``; empty if it takes new pods."""
    spec = node.get("spec") or {}
    states = ["cordoned"] if spec.get("unschedulable") else []
    for taint in spec.get("taints") or []:
        key = str(taint.get("key") or "")
        if taint.get("effect") in BLOCKING_EFFECTS and key.startswith(_PREFIXES):
            state = key.rpartition("/")[2]
            states.append("cordoned" if state == _CORDONED else state.replace("-", " "))
    return ", ".join(sorted(dict.fromkeys(states), key=lambda s: s == "cordoned"))


class NodeStates:
    """The nodes of a cluster.

    Args:
        nodes: all nodes; None if they are not known. Then each device counts as reachable.
    """

    def __init__(self, nodes: Iterable[ReadOnlyJSON] | None) -> None:
        self._nodes = None if nodes is None else {str(n["metadata"]["name"]): n for n in nodes}
        self._why = {name: unschedulable(node) for name, node in (self._nodes or {}).items()}
        # Reasons by the identity of a node selector. The selector is kept, so that no other object gets its identity.
        self._of_selector: dict[int, tuple[ReadOnlyJSON | None, str]] = {}

    def unreachable(self, owner: ReadOnlyJSON) -> str:
        """Returns why no new pod can reach the devices of a slice; empty if some pod can.

        Args:
            owner: the spec of the slice, or the device itself if its slice has ``perDeviceNodeSelection``.
        """
        if self._nodes is None:
            return ""
        if name := owner.get("nodeName"):
            if name not in self._nodes:
                return f"node {name} does not exist"
            return f"node {name} is {self._why[name]}" if self._why[name] else ""
        selector = None if owner.get("allNodes") else owner.get("nodeSelector")
        known = self._of_selector.get(id(selector))
        if known is None:
            known = self._of_selector[id(selector)] = selector, self._none_of(selector)
        return known[1]

    def _none_of(self, selector: ReadOnlyJSON | None) -> str:
        """Returns why none of the nodes that a selector matches takes new pods; empty if one does. None matches all nodes."""
        states = set()
        for name, node in (self._nodes or {}).items():
            if selector is None or node_selectors.selector_matches(node, selector):
                if not self._why[name]:
                    return ""
                states.add(self._why[name])
        if states:
            return f"each of its nodes is {' or '.join(sorted(states))}"
        return "no node matches its node selector" if selector is not None else "there is no node"


class PoolUsage:
    """A pool with the claims that hold its devices.

    Args:
        slices: the slices of the pool's newest generation.
        devices: the devices of these slices, each name once.
        held: holders by the name of a device.
    """

    def __init__(
        self,
        slices: Sequence[PublishedSlice],
        devices: Iterable[SliceDevice],
        held: Mapping[str, Sequence[Holder]],
        nodes: NodeStates,
    ) -> None:
        self._nodes = nodes
        self.fault = _fault(slices)
        """Why the scheduler uses no device of the pool; empty if the pool is complete and valid."""
        self.remaining: dict[str, dict[str, Quantity]] = {
            name: dict(counters) for sl in slices for name, counters in sl.sets.items()
        }
        """The amount of each counter that no claim holds. A shared device counts once; admin access uses nothing."""
        self._users: dict[str, list[tuple[SliceDevice, Holder]]] = {}
        for device in devices:
            if device.consumption and (holder := _first(held.get(device.row.name, ()))):
                self._consume(device, holder)

    def _consume(self, device: SliceDevice, holder: Holder) -> None:
        for name, counters in device.consumption.items():
            self._users.setdefault(name, []).append((device, holder))
            of = self.remaining.setdefault(name, {})
            for counter, amount in counters.items():
                of[counter] = of.get(counter, NOTHING) - amount

    def use_of(self, device: SliceDevice, holders: Sequence[Holder]) -> tuple[DeviceUse, str]:
        """Returns the use of a device, and why no further request can get it; empty if one can."""
        why = self._unavailable(device)
        if _first(holders):
            why = why or _used_up(device, holders)
            return (DeviceUse.SHARED, "") if not why else (DeviceUse.HELD, why)
        if why:
            return DeviceUse.UNAVAILABLE, why
        why = self._blocked(device)
        return (DeviceUse.BLOCKED, why) if why else (DeviceUse.FREE, "")

    def _unavailable(self, device: SliceDevice) -> str:
        if self.fault:
            return self.fault
        if why := self._nodes.unreachable(device.owner):
            return why
        return f"taint {join_names(device.taints)}" if device.taints else ""

    def _blocked(self, device: SliceDevice) -> str:
        """Returns which claims use up the counters of a device, or hold a device that it is not compatible with (KEP-5963)."""
        for name, counters in device.consumption.items():
            of = self.remaining.get(name, {})
            users = self._users.get(name, ())
            if any(amount > of.get(counter, NOTHING) for counter, amount in counters.items()):
                text = join_names((f"{user.row.name} of claim {holder.claim}" for user, holder in users), 2)
                return f"{name} is used by {text}" if text else f"{name} has too little for the device"
            groups = [user.groups.get(name, frozenset()) for user, _ in users]
            of_all = [device.groups.get(name, frozenset()), *groups]
            if users and any(of_all) and not frozenset.intersection(*of_all):
                text = join_names((user.row.name for user, _ in users), 2)
                return f"the device is not compatible with {text}, which claims hold"
        return ""


def _fault(slices: Sequence[PublishedSlice]) -> str:
    """Returns why the scheduler uses no device of a pool; empty if the pool is complete and valid.

    Args:
        slices: the slices of the pool's newest generation.
    """
    wanted = slices[0].wanted
    if len(slices) != wanted:
        return f"the pool has {len(slices)} of {wanted} slices"
    names = Counter(d.row.name for sl in slices for d in sl.devices)
    if twice := [name for name, n in names.items() if n > 1]:
        return f"the pool has {join_names(twice)} more than once"
    sets = Counter(name for sl in slices for name in sl.sets)
    if twice := [name for name, n in sets.items() if n > 1]:
        return f"the pool has counter set {join_names(twice)} more than once"
    totals: Consumption = {name: counters for sl in slices for name, counters in sl.sets.items()}
    for device in (d for sl in slices for d in sl.devices):
        for name, counters in device.consumption.items():
            if name not in totals or any(counter not in totals[name] for counter in counters):
                return f"{device.row.name} uses counters of {name} that the pool does not have"
    return ""


def _first(holders: Iterable[Holder]) -> Holder | None:
    """Returns the first claim that holds a device. Admin access does not hold a device."""
    return next((h for h in holders if not h.admin), None)


def _used_up(device: SliceDevice, holders: Sequence[Holder]) -> str:
    """Returns why no claim can get a share of a held device; empty if a claim can."""
    taking = [h for h in holders if not h.admin]
    whole = next((h for h in taking if not h.share), None)
    if not device.shared or whole:
        return f"claim {(whole or taking[0]).claim} holds it"
    for name, total in device.row.capacity.items():
        short = name.rpartition("/")[2]
        left = Quantity(total) - consumed(short, taking)
        least = device.least.get(short, NOTHING)
        if left < least or (not least and left <= NOTHING < Quantity(total)):
            return f"its claims use up the {short} of the device"
    return ""


def consumed(name: str, holders: Iterable[Holder]) -> Quantity:
    """Returns the amount of a capacity that claims consume.

    Args:
        name: the capacity's name without its domain.
    """
    total = NOTHING
    for h in holders:
        if not h.admin and (amount := h.amounts.get(name)):
            try:
                total = Quantity(amount) + total  # in the format of the claims' amounts
            except QuantityError:
                continue
    return total
