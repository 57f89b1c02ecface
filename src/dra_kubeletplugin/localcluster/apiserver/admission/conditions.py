"""What expressions of policies and webhooks see of a request, and whether all match conditions hold for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....scheduling.cel.expressions import MATCH_CONDITIONS_BUDGET, Budget, Expression
from ....scheduling.cel.library_authorizer import Authorizer, Check, ResourceCheck
from ....scheduling.cel.values import CelError
from ..access import Access, AccessRequest
from ..auth import User, account_user
from .attributes import View

JSON = dict[str, Any]
_NAMESPACE = {
    "metadata": {
        "name", "generateName", "labels", "annotations", "UID", "creationTimestamp", "deletionGracePeriodSeconds",
        "deletionTimestamp", "generation", "resourceVersion", "finalizers",
    },
    "spec": {"finalizers"},
    "status": {"phase"},
}  # fmt: skip


@dataclass(frozen=True)
class Condition:
    name: str
    expression: Expression


def holds(conditions: Sequence[Condition], values: Mapping[str, Any]) -> bool:
    """Whether all are true; one that is false outweighs errors of others.

    Raises :class:`CelError`.
    """
    budget = Budget(MATCH_CONDITIONS_BUDGET)
    failed: list[str] = []
    for condition in conditions:
        try:
            if not condition.expression.evaluate(values, budget):
                return False
        except CelError as e:
            failed.append(f"match condition {condition.name!r}: {e}")
    if failed:
        raise CelError("; ".join(failed))
    return True


def values(view: View, namespace: JSON | None, access: Access) -> dict[str, Any]:
    """The variables that every expression has."""
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

    def ask(user: str, check: Check) -> str:
        asker = _account(user) if user else attributes.user
        question = AccessRequest(
            check.verb, check.group, check.resource, check.subresource, check.namespace, check.name, check.path
        )
        return access.allowed(asker, question)

    plain = Authorizer(ask)
    asked = Check(
        group=view.kind.group,
        resource=view.kind.plural,
        subresource=attributes.target.sub,
        namespace=attributes.namespace,
        name=attributes.name,
    )
    return Authorizer(ask, fields={"requestResource": ResourceCheck(plain, asked)})


def _account(name: str) -> User:
    _, _, namespace, account = name.split(":")
    return account_user(namespace, account)
