"""Warns the client about parts of an object that have no effect in the local cluster, or that Kubernetes may reject."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ....kubernetes_releases import Features
from ..custom_rules import RULES, nodes
from ..kinds import ServedKind

_SERVICE = (
    "the local cluster has no service network: it cannot call webhook {} through its service, so the failure policy {} applies; use "
    "clientConfig.url for a webhook on this machine"
)
_AUDIT = "the local cluster has no audit log: the action Audit has no effect"
_COST = (
    "the local cluster does not estimate the cost of x-kubernetes-validations: Kubernetes may reject a rule over lists, maps or "
    "strings without maxItems, maxProperties or maxLength"
)
_CONVERSION = "the local cluster does not call conversion webhooks: every version of the kind has the same fields"
_TAINTS = "the local cluster stores DeviceTaintRules but ignores them: the feature gate {} is off"
_NETWORK_POLICY = "the local cluster has no pod network: it stores NetworkPolicies but does not enforce them"
_LOOPS = re.compile(r"\.(all|exists|exists_one|filter|map|matches|find|findAll)\(")
_WEBHOOKS = {"validatingwebhookconfigurations", "mutatingwebhookconfigurations"}


def warnings(kind: ServedKind, obj: Mapping[str, Any], features: Features) -> Iterator[str]:
    """Yields a warning for each part of the object that has no effect in the local cluster, or that Kubernetes may reject."""
    if kind.storage == "devicetaintrules.resource.k8s.io" and not features.enforced_taint_rules:
        yield _TAINTS.format(features.taint_rules_gate)
    if kind.storage == "networkpolicies.networking.k8s.io":
        yield _NETWORK_POLICY
    if kind.plural in _WEBHOOKS:
        for hook in obj.get("webhooks") or ():
            if (hook.get("clientConfig") or {}).get("service"):
                yield _SERVICE.format(hook.get("name"), hook.get("failurePolicy"))
    if kind.plural == "validatingadmissionpolicybindings" and "Audit" in obj["spec"].get("validationActions", ()):
        yield _AUDIT
    if kind.storage == "customresourcedefinitions.apiextensions.k8s.io":
        spec = obj.get("spec") or {}
        schemas = [(v.get("schema") or {}).get("openAPIV3Schema") or {} for v in spec.get("versions") or ()]
        rules = [r for schema in schemas for node, *_ in nodes(schema, "") for r in node.get(RULES) or ()]
        if any(_LOOPS.search(str(rule.get("rule") or "")) for rule in rules):
            yield _COST
        if (spec.get("conversion") or {}).get("strategy") == "Webhook":
            yield _CONVERSION
