"""Finds the parts of a snapshot that are stored and not evaluated: features without an evaluator, and fields that are not known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dra_devkit.scheduling.framework.claim_cache import is_allocated
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.base.text import counted

from ..snapshot import Snapshot
from .fields import unevaluated_features, unevaluated_fields, unknown_fields, with_device
from .parts import UnevaluatedPart, merged, subject_of

_NAMES = {field.name for _, field in unevaluated_fields()}


def not_evaluated(snapshot: Snapshot, obj: ReadOnlyJSON) -> Iterator[UnevaluatedPart]:
    """Yields the parts of one object that decide which devices a pod gets and are not evaluated."""
    for feature in (*unevaluated_features(obj), *_unknown_fields(snapshot, obj)):
        yield UnevaluatedPart(subject_of(obj), feature)


def not_evaluated_of_device(
    snapshot: Snapshot, slices: Iterable[ReadOnlyJSON], device: str
) -> Iterator[UnevaluatedPart]:
    """Like :func:`not_evaluated`, for one device and the slices of its pool."""
    for sl in slices:
        if any(d["name"] == device for d in sl["spec"].get("devices") or []):
            for found in not_evaluated(snapshot, with_device(sl, device)):
                yield UnevaluatedPart(f"{found.subject}, device {device}", found.why)


def all_not_evaluated(snapshot: Snapshot) -> tuple[UnevaluatedPart, ...]:
    """Returns the parts of all objects that are not evaluated. Slices of one driver with the same feature are one part."""
    found: list[UnevaluatedPart] = []
    by_driver: dict[tuple[str, str], list[str]] = {}
    for sl in snapshot.slices:
        for feature in (*unevaluated_features(sl), *_unknown_fields(snapshot, sl)):
            by_driver.setdefault((str(sl["spec"]["driver"]), feature), []).append(subject_of(sl))
    for (_, feature), subjects in by_driver.items():
        more = f" and {counted(len(subjects) - 1, 'more slice')} of its driver" if len(subjects) > 1 else ""
        found.append(UnevaluatedPart(subjects[0] + more, feature))
    open_claims = (c for c in snapshot.claims if not is_allocated(c))
    for obj in (
        *open_claims,
        *snapshot.templates,
        *snapshot.classes,
        *snapshot.pods,
        *snapshot.rules,
        *snapshot.groups,
    ):
        features = (*unevaluated_features(obj), *_unknown_fields(snapshot, obj))
        found += (UnevaluatedPart(subject_of(obj), feature) for feature in features)
    return merged(found)


def _unknown_fields(snapshot: Snapshot, obj: ReadOnlyJSON) -> Iterator[str]:
    for path in (*snapshot.unknown.get(str(obj["metadata"].get("uid")), ()), *unknown_fields(obj)):
        if _NAMES.isdisjoint(re.split(r"\W+", path)):  # a field of such a feature is not named again
            yield f"the field {path}, which is not known here"
