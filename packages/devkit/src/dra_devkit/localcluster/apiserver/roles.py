"""Creates the default roles, and updates aggregated cluster roles.

Source: Kubernetes' documentation, "Using RBAC Authorization" (default roles, aggregation).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from dra_kubeletplugin.base.json_types import JSON

from ...label_selectors import selected
from .access import GROUP, Rule
from .kinds import Registry
from .requests import new_metadata
from .storage import Storage

CLUSTER_ROLES, _CLUSTER_BINDINGS = f"clusterroles.{GROUP}", f"clusterrolebindings.{GROUP}"
_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]
_AGGREGATED = "rbac.authorization.k8s.io/aggregate-to-{}".format
_PUBLIC = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_DISCOVERY = [*_PUBLIC, "/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"]
_REVIEWS = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
_BASIC = [
    {"apiGroups": ["authorization.k8s.io"], "resources": _REVIEWS, "verbs": ["create"]},
    {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"], "verbs": ["create"]},
]


def make_defaults(storage: Storage, registry: Registry) -> None:
    """Creates the missing roles and bindings that every cluster has by default."""
    everything = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        {"nonResourceURLs": ["*"], "verbs": ["*"]},
    ]
    _put_role(storage, "cluster-admin", everything, "system:masters")
    _put_role(storage, "system:basic-user", _BASIC, "system:authenticated")
    discovery = [{"nonResourceURLs": _DISCOVERY, "verbs": ["get"]}]
    _put_role(storage, "system:discovery", discovery, "system:authenticated")
    public = [{"nonResourceURLs": _PUBLIC, "verbs": ["get"]}]
    _put_role(storage, "system:public-info-viewer", public, "system:authenticated", "system:unauthenticated")
    read, write, administer = _user_rules(registry)
    for name, rules, wider in (("view", read, "edit"), ("edit", write, "admin"), ("admin", administer, "")):
        _put_role(storage, f"system:aggregate-to-{name}", rules, labels={_AGGREGATED(name): "true"})
        labels = {_AGGREGATED(wider): "true"} if wider else {}
        _put_role(storage, name, [], labels=labels, aggregates=_AGGREGATED(name))
    aggregate(storage)


def _user_rules(registry: Registry) -> tuple[list[Rule], list[Rule], list[Rule]]:
    """Returns the rules for namespaced kinds in the roles view, edit and admin. Each role adds rules to the previous role.

    The role view can read everything except secrets, edit can also write, and admin can also manage roles and bindings.
    """
    groups: dict[str, list[str]] = {}
    for kind in registry:
        if kind.namespaced and not kind.virtual and kind.group != GROUP:
            groups.setdefault(kind.group, []).append(kind.plural)
    read: list[Rule] = []
    write: list[Rule] = []
    for group, plurals in groups.items():
        shown = [p for p in plurals if p != "secrets"]
        status = [f"{p}/status" for p in shown]
        extra = ["pods/log"] if not group else []
        read.append({"apiGroups": [group], "resources": [*shown, *status, *extra], "verbs": _READ})
        write.append({"apiGroups": [group], "resources": plurals, "verbs": _WRITE})
    core = ["pods/attach", "pods/exec", "pods/portforward", "secrets"]
    write.append({"apiGroups": [""], "resources": core, "verbs": _READ})
    made = ["pods/attach", "pods/eviction", "pods/exec", "pods/portforward", "serviceaccounts/token"]
    write.append({"apiGroups": [""], "resources": made, "verbs": ["create"]})
    grants = {"apiGroups": [GROUP], "resources": ["rolebindings", "roles"], "verbs": [*_READ, *_WRITE]}
    local = {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["localsubjectaccessreviews"],
        "verbs": ["create"],
    }
    return read, write, [grants, local]


def _put_role(
    storage: Storage,
    name: str,
    rules: Sequence[Rule],
    *groups: str,
    labels: Mapping[str, str] | None = None,
    aggregates: str = "",
) -> None:
    if storage.get(CLUSTER_ROLES, "", name) is None:
        meta = new_metadata(
            {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults", **(labels or {})}}
        )
        role: JSON = {"metadata": meta, "rules": list(rules)}
        if aggregates:
            role["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {aggregates: "true"}}]}
        storage.put(CLUSTER_ROLES, role)
    if groups and storage.get(_CLUSTER_BINDINGS, "", name) is None:
        subjects = [{"apiGroup": GROUP, "kind": "Group", "name": g} for g in groups]
        reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
        storage.put(
            _CLUSTER_BINDINGS, {"metadata": new_metadata({"name": name}), "roleRef": reference, "subjects": subjects}
        )


def aggregate(storage: Storage) -> None:
    """Updates the rules of aggregated roles.

    Repeats the update until no rule changes, because an aggregated role may be part of another aggregated role.
    """
    roles = {r["metadata"]["name"]: r for r in storage.list(CLUSTER_ROLES)}
    changed = True
    while changed:
        changed = False
        for name, role in roles.items():
            selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors")
            if selectors is None:
                continue
            parts = [r for n, r in sorted(roles.items()) if n != name and _selected(selectors, r)]
            rules = _distinct(rule for part in parts for rule in part.get("rules") or ())
            if rules != (role.get("rules") or []):
                roles[name] = storage.put(CLUSTER_ROLES, {**role, "rules": rules})
                changed = True


def _selected(selectors: Iterable[JSON], role: JSON) -> bool:
    return any(selected(role["metadata"].get("labels") or {}, s) for s in selectors)


def _distinct(rules: Iterable[Rule]) -> list[Rule]:
    return list({json.dumps(rule, sort_keys=True): rule for rule in rules}.values())
