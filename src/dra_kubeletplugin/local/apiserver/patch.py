"""Patches: JSON merge patch (RFC 7386), JSON patch (RFC 6902), and strategic merge for the lists that pods have."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

# List field → key by which its items are the same; from the struct tags of the Kubernetes API.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "resourceClaims": "name",
    "claims": "name",
    "conditions": "type",
    "ownerReferences": "uid",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "addresses": "type",
    "reservedFor": "uid",
}
_SETS = {"finalizers"}


class PatchError(ValueError):
    """The patch cannot be applied."""


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    out = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


def strategic(target: Any, patch: Any, field: str = "") -> Any:
    """Like :func:`merge`, but known lists are merged by key, with ``$patch`` and ``$setElementOrder`` directives."""
    if isinstance(patch, Mapping):
        if patch.get("$patch") == "replace":
            return {k: v for k, v in patch.items() if k != "$patch"}
        out = dict(target) if isinstance(target, Mapping) else {}
        for key, value in patch.items():
            if key.startswith(("$setElementOrder/", "$retainKeys")):
                continue
            if key.startswith("$deleteFromPrimitiveList/"):
                name = key.partition("/")[2]
                out[name] = [v for v in out.get(name) or [] if v not in value]
            elif value is None:
                out.pop(key, None)
            else:
                out[key] = strategic(out.get(key), value, key)
        return out
    if isinstance(patch, list) and isinstance(target, list):
        if field in _SETS:
            return target + [v for v in patch if v not in target]
        if key := _MERGE_KEYS.get(field):
            return _merge_lists(target, patch, key, field)
    return copy.deepcopy(patch)


def _merge_lists(target: list[Any], patch: list[Any], key: str, field: str) -> list[Any]:
    if any(isinstance(p, Mapping) and p.get("$patch") == "replace" for p in patch):
        return [p for p in patch if "$patch" not in p]
    out = list(target)
    for item in patch:
        same = [i for i, t in enumerate(out) if t.get(key) == item.get(key)]
        if item.get("$patch") == "delete":
            out = [t for i, t in enumerate(out) if i not in same]
        elif same:
            out[same[0]] = strategic(out[same[0]], item)
        else:
            out.append(copy.deepcopy(item))
    del field
    return out


def json_patch(target: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """RFC 6902.

    Raises :class:`PatchError`.
    """
    doc = {"": copy.deepcopy(target)}
    for op in operations:
        path = [p.replace("~1", "/").replace("~0", "~") for p in str(op["path"]).split("/")]
        match op["op"]:
            case "add":
                _put(doc, path, copy.deepcopy(op["value"]), insert=True)
            case "replace":
                _take(doc, path, remove=False)
                _put(doc, path, copy.deepcopy(op["value"]), insert=False)
            case "remove":
                _take(doc, path, remove=True)
            case "test":
                if _take(doc, path, remove=False) != op["value"]:
                    raise PatchError(f"test failed at {op['path']}")
            case "move" | "copy":
                source = [p.replace("~1", "/").replace("~0", "~") for p in str(op["from"]).split("/")]
                value = copy.deepcopy(_take(doc, source, remove=op["op"] == "move"))
                _put(doc, path, value, insert=True)
            case other:
                raise PatchError(f"unknown operation {other!r}")
    return doc[""]


def _parent(doc: Any, path: list[str]) -> Any:
    node = doc
    for part in path[:-1]:
        try:
            node = node[int(part)] if isinstance(node, list) else node[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise PatchError(f"path {'/'.join(path)} does not exist") from None
    return node


def _put(doc: Any, path: list[str], value: Any, *, insert: bool) -> None:
    node, last = _parent(doc, path), path[-1]
    if isinstance(node, list):
        index = len(node) if last == "-" else int(last)
        if insert:
            node.insert(index, value)
        else:
            node[index] = value
    else:
        node[last] = value


def _take(doc: Any, path: list[str], *, remove: bool) -> Any:
    node, last = _parent(doc, path), path[-1]
    try:
        key = int(last) if isinstance(node, list) else last
        value = node[key]
        if remove:
            del node[key]
    except (KeyError, IndexError, ValueError):
        raise PatchError(f"path {'/'.join(path)} does not exist") from None
    return value
