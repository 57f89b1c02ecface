"""What an API server would refuse in an object, without a server: types, unknown fields, rules and CEL of the usual release."""

from __future__ import annotations

from typing import Any

from ...resources.releases import Features
from . import disabled, strategy
from .kinds import Registry

JSON = dict[str, Any]
_ADMIN = {"resource.kubernetes.io/admin-access": "true"}  # which labels a namespace has is not known here


def faults(document: JSON) -> list[str]:
    """A sentence for each fault of an object with ``apiVersion``, ``kind`` and a name, as for ``kubectl create`` in a server where
    nothing else is. Raises ``KeyError`` for a kind that the local cluster does not serve."""
    features = Features.of()
    kind = Registry(features).by_kind(document["apiVersion"], document["kind"])
    if kind is None:
        raise KeyError(f"{document['apiVersion']} {document['kind']}")
    if kind.refused:
        return [kind.refused]
    version = document["apiVersion"].rpartition("/")[2]
    out: list[str] = []
    try:
        obj = strategy.incoming(kind, version, document, features, strict=False, warnings=out)
        meta = obj["metadata"]
        if kind.namespaced:
            meta.setdefault("namespace", "default")
        else:
            meta.pop("namespace", None)  # a server clears it
        obj = strategy.prepare(kind, obj, None, status=False)
        if not meta.get("name"):
            obj["metadata"]["name"] = f"{meta['generateName']}x"
        disabled.drop(kind, obj, None, features)
        strategy.validate(kind, obj, None, _ADMIN, features, status=False)
    except strategy.BadObject as e:
        out.append(str(e))
    except strategy.InvalidObject as e:
        out += map(str, e.faults)
    return out
