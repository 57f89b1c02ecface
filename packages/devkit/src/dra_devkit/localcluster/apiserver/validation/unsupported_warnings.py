"""Warns the client about parts of an object that have no effect in the local cluster, or that Kubernetes may reject."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....kubernetes_releases import Features
from ..kinds import ServedKind

_SERVICE = (
    "the local cluster has no service network: it cannot call webhook {} through its service, so the failure policy {} applies; use "
    "clientConfig.url for a webhook on this machine"
)
_AUDIT = "the local cluster has no audit log: the action Audit has no effect"
_RULES = "the local cluster does not evaluate x-kubernetes-validations: it accepts objects that these rules reject"
_SCALE = "the local cluster has no subresource scale of custom resources"
_CONVERSION = "the local cluster does not call conversion webhooks: every version of the kind has the same fields"
_JOB = "the local cluster ignores {} of Jobs"
_JOB_FIELDS = ("podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "maxFailedIndexes")
_TAINTS = "the local cluster stores DeviceTaintRules but ignores them: the feature gate {} is off"
_WEBHOOKS = {"validatingwebhookconfigurations", "mutatingwebhookconfigurations"}


def warnings(kind: ServedKind, obj: Mapping[str, Any], features: Features) -> Iterator[str]:
    """Yields a warning for each part of the object that has no effect in the local cluster, or that Kubernetes may reject."""
    if kind.storage == "devicetaintrules.resource.k8s.io" and not features.enforced_taint_rules:
        yield _TAINTS.format(features.taint_rules_gate)
    if kind.plural in _WEBHOOKS:
        for hook in obj.get("webhooks") or ():
            if (hook.get("clientConfig") or {}).get("service"):
                yield _SERVICE.format(hook.get("name"), hook.get("failurePolicy"))
    if kind.storage == "jobs.batch" and (ignored := [f for f in _JOB_FIELDS if obj["spec"].get(f) is not None]):
        yield _JOB.format(", ".join(ignored))
    if kind.plural == "validatingadmissionpolicybindings" and "Audit" in obj["spec"].get("validationActions", ()):
        yield _AUDIT
    if kind.storage == "customresourcedefinitions.apiextensions.k8s.io":
        spec = obj.get("spec") or {}
        versions = spec.get("versions") or ()
        if any("x-kubernetes-validations" in str(version.get("schema")) for version in versions):
            yield _RULES
        if any("scale" in (version.get("subresources") or {}) for version in versions):
            yield _SCALE
        if (spec.get("conversion") or {}).get("strategy") == "Webhook":
            yield _CONVERSION
