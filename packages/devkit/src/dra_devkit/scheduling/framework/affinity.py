"""Affinity and anti-affinity between pods: Filter and Score of Kubernetes' InterPodAffinity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from ...label_selectors import selected, with_keys
from .node_info import NodeInfo
from .pod_info import PodInfo
from .status import Plugin, Rejection

Place = tuple[str, str]  # topology key, its value
NamespaceLabels = Mapping[str, Mapping[str, str]]
_AFFINITY_REJECTION = Rejection.of(Plugin.POD_AFFINITY, "node(s) didn't match pod affinity rules")
_ANTI_AFFINITY_REJECTION = Rejection.of(
    Plugin.POD_AFFINITY, "node(s) didn't match pod anti-affinity rules", resolvable=True
)
_EXISTING_POD_REJECTION = Rejection.of(
    Plugin.POD_AFFINITY, "node(s) didn't satisfy existing pods anti-affinity rules", resolvable=True
)


@dataclass(frozen=True)
class _Term:
    key: str
    owner: PodInfo
    term: ReadOnlyJSON
    namespaces: NamespaceLabels

    def matches(self, pod: PodInfo) -> bool:
        return self._in_namespace(pod.namespace) and selected(pod.labels, self._selector())

    def _selector(self) -> ReadOnlyJSON | None:
        same, other = self.term.get("matchLabelKeys") or [], self.term.get("mismatchLabelKeys") or []
        return with_keys(self.term.get("labelSelector"), self.owner.labels, same, other)

    def _in_namespace(self, namespace: str) -> bool:
        named, selector = self.term.get("namespaces") or [], self.term.get("namespaceSelector")
        if not named and selector is None:
            return namespace == self.owner.namespace
        return namespace in named or selected(self.namespaces.get(namespace, {}), selector)


def _terms(pod: PodInfo, terms: Iterable[ReadOnlyJSON], namespaces: NamespaceLabels) -> list[_Term]:
    return [_Term(str(t["topologyKey"]), pod, t, namespaces) for t in terms]


class PodAffinity:
    """The effect of all placed pods on one new pod."""

    def __init__(self, pod: PodInfo, nodes: Iterable[NodeInfo], namespaces: NamespaceLabels) -> None:
        self._affinity = _terms(pod, pod.terms("podAffinity"), namespaces)
        self._anti_affinity = _terms(pod, pod.terms("podAntiAffinity"), namespaces)
        self._affinity_places: set[Place] = set()
        self._anti_affinity_places: set[Place] = set()
        self._repelling_places: set[Place] = set()
        for node in nodes:
            for other in node.pods_with_anti_affinity:
                for term in _terms(other, other.terms("podAntiAffinity"), namespaces):
                    if term.key in node.labels and term.matches(pod):
                        self._repelling_places.add((term.key, node.labels[term.key]))
            if self._affinity or self._anti_affinity:
                for other in node.pods.values():
                    self._add_pod(other, node)
        self._first = bool(self._affinity) and not self._affinity_places and all(t.matches(pod) for t in self._affinity)

    def _add_pod(self, other: PodInfo, node: NodeInfo) -> None:
        if self._affinity and all(t.matches(other) for t in self._affinity):
            self._affinity_places |= {(t.key, node.labels[t.key]) for t in self._affinity if t.key in node.labels}
        self._anti_affinity_places |= {
            (t.key, node.labels[t.key]) for t in self._anti_affinity if t.key in node.labels and t.matches(other)
        }

    @property
    def matters(self) -> bool:
        return bool(self._affinity or self._anti_affinity or self._repelling_places)

    def rejects(self, node: NodeInfo) -> Rejection | None:
        here = node.labels.items()
        for term in self._affinity:
            if term.key not in node.labels:
                return _AFFINITY_REJECTION
            if not self._first and (term.key, node.labels[term.key]) not in self._affinity_places:
                return _AFFINITY_REJECTION
        if any(place in self._anti_affinity_places for place in here):
            return _ANTI_AFFINITY_REJECTION
        return _EXISTING_POD_REJECTION if any(place in self._repelling_places for place in here) else None


def preference(pod: PodInfo, nodes: Iterable[NodeInfo], namespaces: NamespaceLabels) -> Counter[Place]:
    """Returns the score of each place: the preferences of the new pod for placed pods, and of placed pods for the new pod."""
    gains: Counter[Place] = Counter()
    preferences = [
        (
            _Term(str(w["podAffinityTerm"]["topologyKey"]), pod, w["podAffinityTerm"], namespaces),
            sign * int(w["weight"]),
        )
        for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1))
        for w in pod.affinity(kind).get("preferredDuringSchedulingIgnoredDuringExecution") or []
    ]
    for node in nodes:
        for other in node.pods.values() if preferences else ():
            for term, weight in preferences:
                if term.key in node.labels and term.matches(other):
                    gains[term.key, node.labels[term.key]] += weight
        for other in node.pods_with_affinity:
            _add_preferences_of(other, pod, node, namespaces, gains)
    return gains


def _add_preferences_of(
    other: PodInfo, pod: PodInfo, node: NodeInfo, namespaces: NamespaceLabels, gains: Counter[Place]
) -> None:
    for term in _terms(other, other.terms("podAffinity"), namespaces):
        if term.key in node.labels and term.matches(pod):
            gains[term.key, node.labels[term.key]] += 1
    for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
        for preferred in other.affinity(kind).get("preferredDuringSchedulingIgnoredDuringExecution") or []:
            [term] = _terms(other, [preferred["podAffinityTerm"]], namespaces)
            if term.key in node.labels and term.matches(pod):
                gains[term.key, node.labels[term.key]] += sign * int(preferred["weight"])
