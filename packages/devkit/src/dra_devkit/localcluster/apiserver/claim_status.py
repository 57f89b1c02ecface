"""Checks who may write a part of a claim's status: the scheduler writes the allocation, a driver the status of its devices.

Source: KEP-4817; since 1.36, feature gate DRAResourceClaimGranularStatusAuthorization.
The subresources ``binding`` and ``driver`` exist in RBAC rules only.
"""

from __future__ import annotations

import json
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.conversion import GROUP
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, forbidden

from .access import Access, AccessRequest
from .auth import User

_NODE = "authentication.kubernetes.io/node-name"
_ACCOUNT = "system:serviceaccount:"


def status_faults(
    access: Access, user: User, verb: str, namespace: str, new: ReadOnlyJSON, old: ReadOnlyJSON
) -> list[FieldError]:
    """Returns an error for each status field that a user changes without permission.

    Args:
        verb: update or patch.
    """
    if user.is_master:
        return []
    out: list[FieldError] = []
    if any((new.get(f) or None) != (old.get(f) or None) for f in ("allocation", "reservedFor")):
        question = AccessRequest(verb, GROUP, "resourceclaims", "binding")
        if not access.decide(user, question):
            needs = f'requires resource="resourceclaims/binding", verb="{verb}" permission'
            why = f"changing status.allocation or status.reservedFor {needs}: {_denied(user, question)}"
            out.append(forbidden("status", why))
    verbs = [f"arbitrary-node:{verb}"]
    if _node_of(user) == _allocated_node(new.get("allocation")) != "":
        verbs.insert(0, f"associated-node:{verb}")
    for driver in _changed_drivers(new.get("devices") or (), old.get("devices") or ()):
        questions = [AccessRequest(v, GROUP, "resourceclaims", "driver", namespace, driver) for v in verbs]
        if not access.decide(user, *questions):
            needs = f'requires resource="resourceclaims/driver", verb="[{" ".join(verbs)}]" permission'
            why = f"changing status.devices {needs}: {_denied(user, questions[0])}"
            out.append(forbidden("status.devices", why))
    return out


def _denied(user: User, question: AccessRequest) -> str:
    name = f' "{question.name}"' if question.name else ""
    return f'resourceclaims.{GROUP}{name} is forbidden: User "{user.name}" {question.denial}'


def _changed_drivers(new: Any, old: Any) -> list[str]:
    """Returns the drivers whose entries were added, removed or changed, sorted."""

    def by_device(entries: Any) -> dict[tuple[str, ...], str]:
        keys = ("driver", "pool", "device", "shareID")
        return {tuple(str(e.get(k) or "") for k in keys): json.dumps(e, sort_keys=True) for e in entries}

    now, before = by_device(new), by_device(old)
    return sorted({key[0] for key in now.keys() | before.keys() if now.get(key) != before.get(key)})


def _node_of(user: User) -> str:
    """Returns the node to which the token of a service account is bound; empty if it is bound to no node."""
    nodes = user.extra.get(_NODE, ())
    return nodes[0] if user.name.startswith(_ACCOUNT) and len(nodes) == 1 else ""


def _allocated_node(allocation: ReadOnlyJSON | None) -> str:
    """Returns the node of an allocation whose node selector has the form that the scheduler writes; empty for another form."""
    terms = ((allocation or {}).get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    if len(terms) != 1 or terms[0].get("matchExpressions"):
        return ""
    fields = terms[0].get("matchFields") or []
    if len(fields) != 1 or (fields[0].get("key"), fields[0].get("operator")) != ("metadata.name", "In"):
        return ""
    values = fields[0].get("values") or []
    return str(values[0]) if len(values) == 1 else ""
