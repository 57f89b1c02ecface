"""Creates the default roles, updates aggregated cluster roles, and prevents privilege escalation.

Source: Kubernetes' documentation, "Using RBAC Authorization" (default roles, aggregation, privilege escalation).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence

from dra_kubeletplugin.base.json_types import JSON

from ...label_selectors import selected
from .access import GROUP, Access, AccessRequest, Rule, covers
from .auth import User
from .kinds import Registry
from .requests import RequestInfo, forbidden, new_metadata
from .status_errors import StatusError
from .storage import Storage

CLUSTER_ROLES, _CLUSTER_BINDINGS = f"clusterroles.{GROUP}", f"clusterrolebindings.{GROUP}"
_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]
_AGGREGATED = "rbac.authorization.k8s.io/aggregate-to-{}".format
_PUBLIC = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_DISCOVERY = [*_PUBLIC, "/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"]
_REVIEWS = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
_EVERYTHING = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]
_BASIC = [
    {"apiGroups": ["authorization.k8s.io"], "resources": _REVIEWS, "verbs": ["create"]},
    {"apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"], "verbs": ["create"]},
]


def make_defaults(storage: Storage, registry: Registry) -> None:
    """Creates the missing roles and bindings that every cluster has by default."""
    _put_role(storage, "cluster-admin", _EVERYTHING, "system:masters")
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
    reviews = ["localsubjectaccessreviews"]
    local = {"apiGroups": ["authorization.k8s.io"], "resources": reviews, "verbs": ["create"]}
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
            others = (r for n, r in sorted(roles.items()) if n != name)
            parts = [r for r in others if any(selected(r["metadata"].get("labels") or {}, s) for s in selectors)]
            by_text = {json.dumps(r, sort_keys=True): r for part in parts for r in part.get("rules") or ()}
            rules = list(by_text.values())
            if rules != (role.get("rules") or []):
                roles[name] = storage.put(CLUSTER_ROLES, {**role, "rules": rules})
                changed = True


# --- privilege escalation ---------------------------------------------------------------------------


def check_grant(access: Access, user: User, target: RequestInfo, obj: JSON) -> None:
    """Checks that a user grants only permissions that the user holds.

    The writer of a role must hold its rules or the verb ``escalate``. The writer of a binding must hold the role's
    rules or the verb ``bind``.

    Raises:
        StatusError: The user does not hold all of the rules, or a bound role does not exist.
    """
    if user.is_master or target.kind.group != GROUP:
        return
    name, namespace = obj["metadata"].get("name", ""), target.namespace
    if target.kind.kind in {"Role", "ClusterRole"}:
        allows = AccessRequest("escalate", GROUP, target.kind.plural, "", namespace, name)
        rules: Sequence[Rule] = obj.get("rules") or ()
        if target.kind.kind == "ClusterRole" and obj.get("aggregationRule"):
            rules = _EVERYTHING
    else:
        reference = obj.get("roleRef") or {}
        plural = "clusterroles" if reference.get("kind") == "ClusterRole" else "roles"
        allows = AccessRequest("bind", GROUP, plural, "", namespace, reference.get("name", ""))
        found = access.role_rules(reference, namespace)
        if found is None and not access.allowed(user, allows):
            raise StatusError(404, "NotFound", f'{plural}.{GROUP} "{reference.get("name", "")}" not found')
        rules = found or ()
    if access.allowed(user, allows):
        return
    held = [rule for rule, _ in access.rules(user, namespace)]
    missing = [rule for rule in rules if not all(any(covers(h, q) for h in held) for q in _questions(rule))]
    if missing:
        shown = "\n".join(_shown(rule) for rule in missing)
        groups = ", ".join(f'"{g}"' for g in user.groups)
        why = f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:\n{shown}'
        raise forbidden(target, obj["metadata"], why)


def _questions(rule: Rule) -> Iterator[AccessRequest]:
    """Yields each combination of verb, group, resource and name in a rule. A user holds a wildcard only with a rule with this wildcard."""
    for verb in rule.get("verbs") or ():
        for path in rule.get("nonResourceURLs") or ():
            yield AccessRequest(verb, path=path)
        parts = (rule.get("apiGroups") or (), rule.get("resources") or (), rule.get("resourceNames") or ("",))
        for group, resource, name in itertools.product(*parts):
            plural, _, sub = resource.partition("/")
            yield AccessRequest(verb, group, plural, sub, "", name)


def _shown(rule: Rule) -> str:
    fields = ("apiGroups", "resources", "resourceNames", "nonResourceURLs", "verbs")
    titles = {"apiGroups": "APIGroups", "nonResourceURLs": "NonResourceURLs"}
    parts = [f"{titles.get(f, f[0].upper() + f[1:])}:{json.dumps(list(rule[f]))}" for f in fields if rule.get(f)]
    return "{" + ", ".join(parts) + "}"
