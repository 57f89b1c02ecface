"""What is kept and has no effect here, told to whoever makes it: nothing passes here in silence that Kubernetes would refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....resources.releases import Features
from ..kinds import Kind

_WEBHOOKS = "the local cluster keeps webhook configurations and calls no webhook: what it would refuse or change is admitted as it is"
_POLICIES = "the local cluster keeps admission policies and does not evaluate them: what they would deny is admitted"
_RULES = "the local cluster does not evaluate x-kubernetes-validations: objects that they would refuse are admitted"
_CONVERSION = "the local cluster calls no conversion webhook: every version of the kind shows the same fields"
_TAINTS = (
    "the local cluster keeps DeviceTaintRules and taints no device by them: the feature gate DRADeviceTaintRules is off"
)
_BY_KIND = {
    "validatingadmissionpolicies.admissionregistration.k8s.io": _POLICIES,
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": _POLICIES,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _WEBHOOKS,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _WEBHOOKS,
}


def warnings(kind: Kind, obj: Mapping[str, Any], features: Features) -> Iterator[str]:
    """A sentence for each part of the object that has no effect."""
    if kind.storage == "devicetaintrules.resource.k8s.io" and not features.followed_rules:
        yield _TAINTS
    if sentence := _BY_KIND.get(kind.storage):
        yield sentence
    if kind.storage == "customresourcedefinitions.apiextensions.k8s.io":
        spec = obj.get("spec") or {}
        if _has(spec.get("versions"), "x-kubernetes-validations"):
            yield _RULES
        if (spec.get("conversion") or {}).get("strategy") == "Webhook":
            yield _CONVERSION


def _has(value: Any, name: str) -> bool:
    if isinstance(value, Mapping):
        return name in value or any(_has(v, name) for v in value.values())
    return isinstance(value, list) and any(_has(v, name) for v in value)
