"""Strict creates and updates of objects as the API server handles them, without a server."""

from __future__ import annotations

from typing import Any

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver import dropped_fields, strategy
from dra_devkit.localcluster.apiserver.kinds import KINDS
from dra_devkit.validation import defaulting
from dra_kubeletplugin.base.json_types import JSON

KIND = {k.kind: k for k in KINDS}
RELEASE = Features.of("1.36")


def _decoded(obj: JSON) -> JSON:
    kind, version = KIND[obj["kind"]], obj["apiVersion"].rpartition("/")[2]
    decoded, unknown = strategy.incoming(kind, version, obj, RELEASE)
    if unknown:
        listed = ", ".join(f'unknown field "{path}"' for path in unknown)
        raise strategy.BadObject(kind, version, f"strict decoding error: {listed}")
    return decoded


def post(obj: JSON) -> tuple[int, Any]:
    """Returns the result of a strict create: 201 and the stored object, 422 and causes, or 400 and a message."""
    kind = KIND[obj["kind"]]
    try:
        decoded = _decoded(obj)
        stored = strategy.prepare(kind, decoded, None, status=False)
        dropped_fields.drop(kind, stored, None, RELEASE)
        strategy.validate(kind, defaulting.apply(stored, kind.kind), None, {}, RELEASE, status=False)
    except strategy.BadObject as e:
        return 400, str(e)
    except strategy.InvalidObject as e:
        return 422, e.faults
    return 201, strategy.for_storage(kind, stored)


def put(old: JSON, new: JSON, *, status: bool) -> tuple[int, Any]:
    """Returns the result of a strict update: 200 and the stored object, 422 and causes, or 400 and a message."""
    kind = KIND[new["kind"]]
    before = {k: v for k, v in old.items() if k not in {"apiVersion", "kind"}}
    try:
        decoded = _decoded(new)
        stored = strategy.prepare(kind, decoded, before, status=status)
        strategy.remove_deallocated(kind, stored, before)
        dropped_fields.drop(kind, stored, before, RELEASE)
        strategy.validate(kind, stored, before, {}, RELEASE, status=status)
    except strategy.BadObject as e:
        return 400, str(e)
    except strategy.InvalidObject as e:
        return 422, e.faults
    return 200, strategy.for_storage(kind, stored)
