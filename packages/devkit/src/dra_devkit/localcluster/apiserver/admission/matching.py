"""Decides whether a policy, binding or webhook applies to a request, from its resource rules and selectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

from ....label_selectors import selected
from ..kinds import Registry, ServedKind
from ..storage import Storage
from .attributes import DELETE, Attributes, View

Rule = Mapping[str, Any]
_OWN_GROUP = "admissionregistration.k8s.io"  # policies and webhooks do not apply to objects of this group


class Matcher:
    def __init__(self, storage: Storage, registry: Registry) -> None:
        self.storage, self.registry = storage, registry

    def view(self, resources: Mapping[str, Any], rules: Sequence[Rule], attributes: Attributes) -> View | None:
        """Returns the request as a request for the resource and version that a rule matches.

        Args:
            resources: an object with the selectors, ``matchPolicy`` and ``excludeResourceRules``.
            rules: the resource rules to match.

        Returns:
            None if no rule matches, or if a selector or an exclude rule excludes the request.
        """
        if attributes.target.kind.group == _OWN_GROUP:
            return None
        equivalent = resources.get("matchPolicy") != "Exact"
        if not self._namespace_selected(resources.get("namespaceSelector"), attributes):
            return None
        if not _object_selected(resources.get("objectSelector"), attributes):
            return None
        if self._by_rules(resources.get("excludeResourceRules") or (), attributes, equivalent=equivalent):
            return None
        return self._by_rules(rules, attributes, equivalent=equivalent)

    def _by_rules(self, rules: Sequence[Rule], attributes: Attributes, *, equivalent: bool) -> View | None:
        target = attributes.target
        candidates = [(target.kind, target.version)]
        if equivalent:
            candidates += [w for w in self._equivalents(target.kind) if w != candidates[0]]
        for kind, version in candidates:
            if any(_matches(rule, kind, version, attributes) for rule in rules):
                return View(attributes, kind, version)
        return None

    def _equivalents(self, kind: ServedKind) -> Iterator[tuple[ServedKind, str]]:
        """Yields every group and version that serves the same stored objects."""
        for other in self.registry:
            if other.storage == kind.storage:
                yield from ((other, version) for version in other.versions)

    def namespace_of(self, attributes: Attributes) -> JSON | None:
        """Returns the namespace of the request's object; None for a cluster-scoped request."""
        if not attributes.namespace:
            return None
        return self.storage.get("namespaces", "", attributes.namespace)

    def _namespace_selected(self, selector: Rule | None, attributes: Attributes) -> bool:
        if not selector or not attributes.namespace:
            return True
        if attributes.target.kind.storage == "namespaces" and attributes.operation != DELETE:
            found = attributes.object
        else:
            found = self.namespace_of(attributes)
        return selected(_labels(found), selector)


def _labels(obj: JSON | None) -> Mapping[str, str]:
    return ((obj or {}).get("metadata") or {}).get("labels") or {}


def _object_selected(selector: Rule | None, attributes: Attributes) -> bool:
    if not selector:
        return True
    return any(o is not None and selected(_labels(o), selector) for o in (attributes.object, attributes.old))


def _matches(rule: Rule, kind: ServedKind, version: str, attributes: Attributes) -> bool:
    def has(name: str, value: str) -> bool:
        found = rule.get(name) or ()
        return "*" in found or value in found

    if not (has("apiGroups", kind.group) and has("apiVersions", version) and has("operations", attributes.operation)):
        return False
    inside = bool(attributes.target.namespace)
    if rule.get("scope") not in {None, "*", "Namespaced" if inside else "Cluster"}:
        return False
    names = rule.get("resourceNames") or ()
    if names and attributes.name not in names:
        return False
    for resource in rule.get("resources") or ():
        plural, _, sub = resource.partition("/")
        if plural in {"*", kind.plural} and sub in {"*", attributes.target.sub}:
            return True
    return False
