"""Names a free card for a placed pod whose card has other shared state, such as another firmware or mode.

The scheduler does not know shared steps of drivers, and a pod that has a node does not move. So the pod waits until the other claims of
its card end, although other cards may be free. A pod that is created again gets the first free device, often of the same card. Only a
selector for another card helps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from dra_devkit.scheduling.allocator.pools import DeviceId
from dra_devkit.scheduling.framework import extended
from dra_devkit.scheduling.framework.pod_info import PodInfo
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import join_names
from dra_kubeletplugin.errors import SharedStepError
from dra_kubeletplugin.resourceapi.allocation import results_of

from ..scheduler_view import SchedulerView
from ..snapshot import Snapshot
from ..waiting_pods import claim_name, entries
from .cluster_reasons import claims_of
from .placement import devices_in

_KEY = re.compile(r"the shared step \S+ of (?P<key>.+?) is set up for claim ")
_WAIT = "wait until the pods of that claim have stopped, or delete them"
_IDENTIFIERS = ("serial", "uuid", "pcibusid", "address", "id")  # parts of attribute names, best first
_Card = tuple[str, str, str]
"""Driver, pool, and a counter set or the value of the attribute that identifies cards."""


def change_for(view: SchedulerView, pod: PodInfo, message: str) -> str:
    """Returns which free card would do and how the pod gets it; empty if the message is not about shared state of a card."""
    key = _KEY.search(message)
    if f"[{SharedStepError.code}]" not in message or key is None:
        return ""
    of_resources = view.cache.claims.extended_of(pod.uid)
    claims = [*claims_of(view, pod), *([of_resources] if of_resources else [])]
    cards = _Cards(view, claims, key["key"])
    if not cards.blocked:
        missing = (
            f"neither an attribute with this value nor a common counter set shows which devices share {key['key']}"
        )
        return f"{_WAIT}; whether another card would do is not known: {missing}"
    placed = devices_in(cards.with_free_cards_only(of_resources), pod.pod)
    if placed is None:
        return f"{_WAIT}; whether another card would do is not known, because the search for one failed"
    if not placed:
        return f"{_WAIT}; no other free card would do"

    blocked = {(str(c["metadata"]["name"]), _request(r)) for c, r in cards.blocked}
    by_resource = any(c is of_resources for c, _ in cards.blocked)
    free = [r for name, r in placed if (name, _request(r)) in blocked or (by_resource and name == extended.DRAFT)]
    shown = join_names([f"{r['pool']}/{r['device']}" for r in free])
    would_do = f"{shown} would do: {'its card is' if len(free) == 1 else 'their cards are'} free"
    selector = cards.selector({_id(r) for r in free})
    if not selector:
        how = "but no selector can name it, because no attribute has a value that only devices of this card have"
        return f"{would_do}, {how}. So {_WAIT}"
    how = (
        _with_claim(of_resources) if of_resources and by_resource else _again(pod, {name for name, _ in blocked}, free)
    )
    return f"{would_do}. {how}: {selector}. Or {_WAIT}"


def _with_claim(of_resources: JSON) -> str:
    """Returns how to create a pod with extended resources again, up to the selector."""
    classes = sorted({str(r["exactly"]["deviceClassName"]) for r in of_resources["spec"]["devices"]["requests"]})
    return (
        "An extended resource cannot name a card, and a new pod can get the same card again. Delete the pod, and create it "
        f"without the resource and with a claim of class {join_names(classes)} that has this selector"
    )


def _again(pod: PodInfo, claims: set[str], free: list[JSON]) -> str:
    """Returns how to create a pod with claims again, up to the selector."""
    used = [e for e in entries(pod) if claim_name(pod, e) in claims]
    request = f"this selector in request {join_names(sorted({str(r['request']) for r in free}))}"
    same = "A new pod can get the same card again without a selector"
    if named := sorted({str(e["resourceClaimName"]) for e in used if e.get("resourceClaimName")}):
        return f"{same}. Delete the pod and claim {join_names(named)}, and create both with {request}"
    templates = sorted({str(e["resourceClaimTemplateName"]) for e in used})
    return f"{same}. Delete the pod, and create it with a copy of template {join_names(templates)} that has {request}"


@dataclass(frozen=True)
class _Cards:
    """The cards of the drivers, as far as the cluster shows them.

    Args:
        claims: the claims of the pod that waits.
        key: the key of the shared step.
    """

    view: SchedulerView
    claims: list[JSON]
    key: str

    @cached_property
    def devices(self) -> Mapping[DeviceId, JSON]:
        return {
            DeviceId(s["spec"]["driver"], s["spec"]["pool"]["name"], d["name"]): d
            for s in self.view.snapshot.tainted_slices
            for d in s["spec"].get("devices") or []
        }

    @cached_property
    def identifying(self) -> set[str]:
        """The attributes of the pod's devices whose value is the key."""
        allocated = (self.devices.get(_id(r), {}) for c in self.claims for r in results_of(c))
        return {n for d in allocated for n, v in _attributes(d) if self._is_key(n, v)}

    def cards(self, device: DeviceId, found: JSON) -> set[_Card]:
        """Returns the device itself, its counter sets, and its values of attributes that identify cards."""
        parts = [device.device, *(c["counterSet"] for c in found.get("consumesCounters") or [])]
        parts += [str(value) for name, value in _attributes(found) if name in self.identifying]
        return {(device.driver, device.pool, part) for part in parts}

    def _cards_of(self, devices: Iterable[DeviceId]) -> set[_Card]:
        return {card for i in devices if i in self.devices for card in self.cards(i, self.devices[i])}

    @cached_property
    def _held(self) -> set[_Card]:
        """The cards of which other claims hold devices."""
        return self._cards_of(i for i in self.devices if not all(map(self._is_own, self.view.holders(i))))

    def _is_own(self, claim: JSON) -> bool:
        return claim["metadata"]["uid"] in {c["metadata"]["uid"] for c in self.claims}

    @cached_property
    def blocked(self) -> list[tuple[JSON, JSON]]:
        """The pod's devices on the card with the other state, each with its claim; empty if the card is not known."""
        every = [(c, r) for c in self.claims for r in results_of(c) if _id(r) in self.devices]
        if self.identifying:
            return [(c, r) for c, r in every if any(self._is_key(n, v) for n, v in _attributes(self.devices[_id(r)]))]
        return [(c, r) for c, r in every if self._held & self._cards_of([_id(r)])]

    def _is_key(self, attribute: str, value: str | int) -> bool:
        """Returns whether the key is the value, or the attribute's name and its value, such as ``iommu-group-20`` for ``iommuGroup``.

        An integer alone can equal the key by chance.
        """
        named = _letters(f"{attribute.rpartition('/')[2]}{value}") == _letters(self.key)
        return named or (isinstance(value, str) and value.lower() == self.key.lower())

    def with_free_cards_only(self, of_resources: JSON | None) -> Snapshot:
        """Returns the snapshot in which the pod's claims are open, and the blocked devices' drivers have only cards without a holder."""
        drivers = {r["driver"] for _, r in self.blocked}
        used = self._held | self._cards_of(_id(r) for _, r in self.blocked)
        slices = []
        for s in self.view.snapshot.slices:
            driver, pool = s["spec"]["driver"], s["spec"]["pool"]["name"]
            if driver in drivers and "devices" in s["spec"]:
                ids = ((DeviceId(driver, pool, d["name"]), d) for d in s["spec"]["devices"] or [])
                s = {**s, "spec": {**s["spec"], "devices": [d for i, d in ids if used.isdisjoint(self.cards(i, d))]}}
            slices.append(s)
        others = (c for c in self.view.claims if c is not of_resources)
        claims = ({k: v for k, v in c.items() if k != "status"} if self._is_own(c) else c for c in others)
        return replace(self.view.snapshot, slices=tuple(slices), claims=tuple(claims))

    def selector(self, wanted: set[DeviceId]) -> str:
        """Returns a CEL expression that only devices on the cards of ``wanted`` match; empty if no attribute has such values."""
        drivers = {i.driver for i in wanted}
        if len(drivers) != 1:
            return ""
        (driver,) = drivers
        cards = self._cards_of(wanted)
        values = {i: dict(_attributes(d)) for i, d in self.devices.items() if i.driver == driver}
        for name in sorted(set.intersection(*(set(values[i]) for i in wanted)), key=self._rank):
            found = {values[i][name] for i in wanted}
            if all(cards & self.cards(i, self.devices[i]) for i, has in values.items() if has.get(name) in found):
                return _equals(driver, name, found, guarded=any(name not in has for has in values.values()))
        return ""

    def _rank(self, attribute: str) -> tuple[bool, int, str]:
        short = attribute.rpartition("/")[2].lower()
        named = next((n for n, part in enumerate(_IDENTIFIERS) if part in short), len(_IDENTIFIERS))
        return attribute not in self.identifying, named, attribute


def _equals(driver: str, attribute: str, values: set[str | int], *, guarded: bool) -> str:
    domain, _, name = attribute.rpartition("/")
    attributes = f'device.attributes["{domain or driver}"]'
    texts = [json.dumps(v, ensure_ascii=False) for v in sorted(values, key=str)]
    expression = (
        f"{attributes}.{name} == {texts[0]}" if len(texts) == 1 else f"{attributes}.{name} in [{', '.join(texts)}]"
    )
    return f'"{name}" in {attributes} && {expression}' if guarded else expression


def _id(result: JSON) -> DeviceId:
    return DeviceId(result["driver"], result["pool"], result["device"])


def _request(result: JSON) -> str:
    """Returns the name of a result's request without the alternative."""
    return str(result["request"]).partition("/")[0]


def _letters(text: str) -> str:
    """Returns the letters and digits of a text in lower case."""
    return "".join(filter(str.isalnum, text)).lower()


def _attributes(device: JSON) -> Iterator[tuple[str, str | int]]:
    for name, value in (device.get("attributes") or {}).items():
        if "string" in value:
            yield name, str(value["string"])
        elif "int" in value:
            yield name, int(value["int"])
