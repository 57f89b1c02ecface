"""Explains that a ResourceQuota refuses a pod or a claim: what it wants, the use of the quota, and the command that raises the quota."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from ..scheduler_view import SchedulerView, name_of
from .model import Reason, ReasonKind


def reasons(view: SchedulerView, kind: str, obj: ReadOnlyJSON, what: str) -> Iterator[Reason]:
    """Yields a reason for each quota that refuses a new object.

    Args:
        kind: the name of the object's kind in quotas.
        what: words for the object, such as ``the pod``.
    """
    for quota, over in view.quotas.exceeded(kind, obj):
        meta = quota["metadata"]
        amounts = "; ".join(f"{e.resource}: {e.wanted} wanted, {e.used} of {e.hard} used" for e in over)
        patch = json.dumps({"spec": {"hard": {e.resource: str(e.used + e.wanted) for e in over}}})
        yield Reason(
            ReasonKind.QUOTA,
            f"ResourceQuota {name_of(quota)} refuses {what} ({amounts})",
            f"delete pods and claims of namespace {meta['namespace']} that are no longer needed, or raise the quota",
            command=f"kubectl -n {meta['namespace']} patch resourcequota {meta['name']} -p {shlex.quote(patch)}",
        )
