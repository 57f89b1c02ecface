"""Withdraws the conclusion of an explanation if it depends on a part of the input that was not evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dra_devkit.near_names import impossible_keys
from dra_devkit.scheduling.framework.pod_info import PodInfo

from ..scheduler_view import SchedulerView, name_of, named_requests
from ..unevaluated.objects import not_evaluated
from ..unevaluated.parts import UnevaluatedPart, merged
from . import unread_objects
from .cluster_reasons import open_claims, open_claims_and_classes
from .model import NOT_TRIED, Explanation, ExplanationState
from .node_feasibility import Feasibility, unexamined_features
from .summary import summarize

_DECIDED = {ExplanationState.FITS, ExplanationState.WAITS}


def conclude(view: SchedulerView, pod: PodInfo, known: Explanation, feasibility: Feasibility) -> Explanation:
    """Returns the explanation of a waiting pod with its state and summary, after its nodes were examined.

    A part of a claim or its class that is not evaluated may change any result. A part of the pod or of a device only adds a condition, so a
    node that refuses the pod still refuses it.
    """
    known = replace(known, notes=(*known.notes, *dict.fromkeys(_impossible_keys(view, pod))))
    unseen = unread_objects.may_fit(view, pod, known)
    if unseen and set(known.reasons) <= set(feasibility.reasons):
        known = replace(known, reasons=())
    found = summarize(known, may_fit=unseen, may_not_fit=unread_objects.may_not_fit(view, pod))
    if found.groups and not found.nodes and not unread_objects.can_try(view):
        found = replace(found, notes=(*found.notes, NOT_TRIED))
    wanted = open_claims_and_classes(view, pod)
    of_claims = [part for obj in wanted for part in not_evaluated(view.snapshot, obj)]
    if of_claims and found.state in _DECIDED and set(known.reasons) <= set(feasibility.reasons):
        return replace(_undecided(found, of_claims), reasons=(), groups=(), changes=())
    if found.state is not ExplanationState.FITS:
        return found
    features = list(unexamined_features(pod, view.group_of(pod)))
    subject = f"Pod {pod.key}"
    conditions = [*feasibility.unevaluated, *not_evaluated(view.snapshot, pod.pod)]
    conditions += [UnevaluatedPart(subject, text.removeprefix("not examined: ")) for text in features]
    if not conditions:
        return found
    return _undecided(replace(found, notes=tuple(n for n in found.notes if n not in features)), conditions)


def _impossible_keys(view: SchedulerView, pod: PodInfo) -> Iterator[str]:
    """Yields a sentence for each key that no device can have, in the selectors of the pod's open claims and their classes."""
    for claim in open_claims(view, pod):
        for name, one in named_requests(claim["spec"]):
            device_class = view.cache.classes.get(str(one["deviceClassName"])) or {"spec": {}}
            for where, owner in (
                (f"claim {name_of(claim)}, request {name}", one),
                (f"class {one['deviceClassName']}", device_class["spec"]),
            ):
                for expression in (s["cel"]["expression"] for s in owner.get("selectors") or [] if s.get("cel")):
                    yield from (f"{where}: {sentence}" for sentence in impossible_keys(expression))


def _undecided(found: Explanation, parts: Sequence[UnevaluatedPart]) -> Explanation:
    unevaluated = merged(parts)
    first = unevaluated[0]
    return replace(
        found,
        state=ExplanationState.UNKNOWN,
        summary=f"it is not known whether it fits: {first}",
        unevaluated=unevaluated,
    )
