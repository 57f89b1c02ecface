"""The CEL variables of admission policies and webhooks, and the evaluation of match conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

from ....scheduling.cel.expressions import MATCH_CONDITIONS_BUDGET, Budget, Expression
from ....scheduling.cel.library_authorizer import Authorizer, Check, ResourceCheck
from ....scheduling.cel.values import CelError
from ..access import Access, AccessRequest
from ..auth import User, account_user
from .attributes import View

_NAMESPACE = {
    "metadata": {
        "name",
        "generateName",
        "labels",
        "annotations",
        "UID",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "resourceVersion",
        "finalizers",
    },
    "spec": {"finalizers"},
    "status": {"phase"},
}


def holds(conditions: Mapping[str, Expression], values: Mapping[str, Any]) -> bool:
    """Returns whether all conditions are true. If one condition is false, errors of other conditions are ignored.

    Raises:
        CelError: No condition is false and at least one failed.
    """
    budget = Budget(MATCH_CONDITIONS_BUDGET)
    failed: list[str] = []
    for name, expression in conditions.items():
        try:
            if not expression.evaluate(values, budget):
                return False
        except CelError as e:
            failed.append(f"match condition {name!r}: {e}")
    if failed:
        raise CelError("; ".join(failed))
    return True


def values(view: View, namespace: JSON | None, access: Access) -> dict[str, Any]:
    """Returns the variables that every expression can use."""
    return {
        "object": view.object,
        "oldObject": view.old,
        "request": view.request(),
        "namespaceObject": namespace and _namespace(namespace),
        "authorizer": _authorizer(view, access),
    }


def _namespace(namespace: JSON) -> JSON:
    return {
        part: {k: v for k, v in (namespace.get(part) or {}).items() if k in fields}
        for part, fields in _NAMESPACE.items()
    }


def _authorizer(view: View, access: Access) -> Authorizer:
    attributes = view.attributes

    def check_access(user: str, check: Check) -> str:
        subject = _account(user) if user else attributes.user
        question = AccessRequest(
            check.verb, check.group, check.resource, check.subresource, check.namespace, check.name, check.path
        )
        return access.allowed(subject, question)

    plain = Authorizer(check_access)
    request_check = Check(
        group=view.kind.group,
        resource=view.kind.plural,
        subresource=attributes.target.sub,
        namespace=attributes.namespace,
        name=attributes.name,
    )
    return Authorizer(check_access, fields={"requestResource": ResourceCheck(plain, request_check)})


def _account(name: str) -> User:
    _, _, namespace, account = name.split(":")
    return account_user(namespace, account)
