"""What is kept and has no effect here, told to whoever makes it: nothing passes here in silence that Kubernetes would refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ....resourceapi.kubernetes_releases import Features
from ..kinds import ServedKind

_SERVICE = (
    "the local cluster has no network of services: webhook {} cannot be reached through its service, and its failure policy, {}, "
    "decides; clientConfig.url reaches one on this machine"
)
_AUDIT = "the local cluster has no audit log: what the action Audit would write there is told nowhere"
_COST = (
    "the local cluster estimates no costs of x-kubernetes-validations: Kubernetes may refuse a rule that goes over lists, maps or "
    "texts without maxItems, maxProperties or maxLength"
)
_CONVERSION = "the local cluster calls no conversion webhook: every version of the kind shows the same fields"
_TAINTS = (
    "the local cluster keeps DeviceTaintRules and taints no device by them: the feature gate DRADeviceTaintRules is off"
)
_LOOPS = re.compile(r"\.(all|exists|exists_one|filter|map|matches|find|findAll)\(")
_WEBHOOKS = {"validatingwebhookconfigurations", "mutatingwebhookconfigurations"}


def warnings(kind: ServedKind, obj: Mapping[str, Any], features: Features) -> Iterator[str]:
    """A sentence for each part of the object that has no effect."""
    if kind.storage == "devicetaintrules.resource.k8s.io" and not features.followed_rules:
        yield _TAINTS
    if kind.plural in _WEBHOOKS:
        for hook in obj.get("webhooks") or ():
            if (hook.get("clientConfig") or {}).get("service"):
                yield _SERVICE.format(hook.get("name"), hook.get("failurePolicy"))
    if kind.plural == "validatingadmissionpolicybindings" and "Audit" in obj["spec"].get("validationActions", ()):
        yield _AUDIT
    if kind.storage == "customresourcedefinitions.apiextensions.k8s.io":
        spec = obj.get("spec") or {}
        if any(_LOOPS.search(str(rule.get("rule") or "")) for rule in _rules(spec.get("versions"))):
            yield _COST
        if (spec.get("conversion") or {}).get("strategy") == "Webhook":
            yield _CONVERSION


def _rules(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every validation rule within a schema."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "x-kubernetes-validations" and isinstance(inner, list):
                yield from inner
            else:
                yield from _rules(inner)
    elif isinstance(value, list):
        for item in value:
            yield from _rules(item)
