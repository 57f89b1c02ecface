"""Renders the kustomize form: a base, a component for each feature and distribution, and the component ``parameters``.

In the base, each text parameter is a placeholder such as DRIVER_NAME, so applying the base alone fails visibly. The component
``parameters``, which is listed last, replaces the placeholders with the values of the ConfigMap ``parameters``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from ...base.yaml import loader
from .patches import patch
from .replacements import ReplacementPath, places
from .source import JSON, MADE, PARAMETER, Manifest, Source, parse_yaml
from .values import merged

HEADER = f"# {MADE}: changes here will be lost.\n"
PARAMETERS = "parameters"
OPTIONS = "${name}-options"


def kebab(name: str) -> str:
    return re.sub(r"[A-Z]+", lambda m: f"-{m[0].lower()}", name)


def files(source: Source) -> Iterator[tuple[str, str]]:
    """Yields each file's path below ``deploy/kustomize`` and its content."""
    capitals = _Capitals(source)
    yield "base/kustomization.yaml", _dump(_kustomization("Kustomization", {"resources": ["node.yaml"]}))
    base = [m for m in source.manifests["node"] if not m.feature]
    yield "base/node.yaml", _objects(base, capitals)
    for feature in source.features.values():
        folder = f"components/{kebab(feature.name)}"
        if own := [m for m in source.all if m.feature == feature.name]:
            yield f"{folder}/objects.yaml", _objects(own, capitals)
        body: JSON = {"resources": ["objects.yaml"]} if own else {}
        changed = [m for m in source.all if feature.name in m.features]
        if changed:
            body["patches"] = [_patch(m, feature.name, capitals) for m in changed]
        if found := _replacements(_new_places(changed, feature.name), capitals):
            body["replacements"] = found
        yield f"{folder}/kustomization.yaml", f"# {feature.help}\n" + _dump(_kustomization("Component", body))
    for distribution in source.distributions.values():
        data = {k: v for k, v in distribution.values.items() if k in source.parameters}
        if not data:
            continue
        patches = [
            _patch_of({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PARAMETERS}}, {"data": data})
        ]
        if data.get("resourceAPI", "v1") != "v1":  # before Kubernetes 1.34, a DeviceClass did not have this field
            head = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": ".*"}}
            patches.append(_patch_of(head, {"spec": {"extendedResourceName": None}}))
        text = f"# {distribution.help}\n" + _dump(_kustomization("Component", {"patches": patches}))
        yield f"components/{distribution.name}/kustomization.yaml", text
    last = {"replacements": _replacements(_all_places(source), capitals)}
    yield (
        f"components/{PARAMETERS}/kustomization.yaml",
        "# Sets the parameters. A driver lists this component last.\n" + _dump(_kustomization("Component", last)),
    )


class _Capitals:
    """Replaces ``${driverName}`` with ``DRIVER_NAME``, and the parameter of a number with its default."""

    def __init__(self, source: Source) -> None:
        numbers = {p.name: p.default for p in source.parameters.values() if isinstance(p.default, int)}
        self._text = {name: str(numbers.get(name, kebab(name).replace("-", "_").upper())) for name in source.parameters}

    def __call__(self, text: str) -> str:
        return PARAMETER.sub(lambda m: self._text[m[1]], text)


def _objects(manifests: Iterable[Manifest], capitals: _Capitals) -> str:
    return HEADER + "---\n".join(capitals(m.with_features(frozenset())) for m in manifests)


def _kustomization(kind: str, body: JSON) -> JSON:
    version = "v1beta1" if kind == "Kustomization" else "v1alpha1"
    return {"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, **body}


class _Dumper(loader.Dumper):
    """Writes a text of several lines as a literal block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if loader.is_text(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _dump(value: JSON) -> str:
    return HEADER + yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=140)


# --- patches ------------------------------------------------------------------------------------------


def _patch(manifest: Manifest, feature: str, capitals: _Capitals) -> JSON:
    off, on = (parse_yaml(capitals(manifest.with_features(f))) for f in (frozenset(), frozenset({feature})))
    return _patch_of({k: off[k] for k in ("apiVersion", "kind", "metadata")}, patch(off, on))


def _patch_of(target: JSON, change: JSON) -> JSON:
    name = target["metadata"]["name"]
    head = {"apiVersion": target["apiVersion"], "kind": target["kind"], "metadata": {"name": name.replace(".*", "any")}}
    text = yaml.dump(merged(head, change), Dumper=loader.Dumper, sort_keys=False, width=140)
    return {"target": {"kind": target["kind"], "name": name}, "patch": text}


# --- replacements -------------------------------------------------------------------------------------

Found = tuple[JSON, ReplacementPath]


def _new_places(manifests: Iterable[Manifest], feature: str) -> Iterator[Found]:
    """Yields the parameters' places that exist only with the feature."""
    for manifest in manifests:
        off, on = (parse_yaml(manifest.with_features(f)) for f in (frozenset(), frozenset({feature})))
        known = set(places(off))
        yield from ((on, place) for place in places(on) if place not in known)


def _all_places(source: Source) -> Iterator[Found]:
    """Yields the parameters' places that exist with any features, because kustomize ignores a missing object, but not a missing field."""
    for manifest in source.all:
        plain = parse_yaml(manifest.with_features(frozenset()))
        yield from ((plain, place) for place in places(plain))
    options = {"kind": "ConfigMap", "metadata": {"name": OPTIONS, "namespace": "${namespace}"}}
    yield from ((options, place) for place in places(options))
    yield {"kind": "DeviceClass", "metadata": {}}, ReplacementPath("resourceAPI", "apiVersion", "/", 1)


def _replacements(found: Iterable[Found], capitals: _Capitals) -> list[JSON]:
    """Returns one replacement per parameter. Objects get their names last, because other replacements select them by name."""
    by_parameter: dict[str, list[JSON]] = {}
    for manifest, place in sorted(found, key=lambda f: f[1].path == "metadata.name"):
        targets = by_parameter.setdefault(place.parameter, [])
        targets.append(_target(manifest, place, capitals))
    order = sorted(by_parameter, key=lambda p: p == "name")
    return [
        {
            "source": {"kind": "ConfigMap", "name": PARAMETERS, "fieldPath": f"data.{parameter}"},
            "targets": _merge_targets(by_parameter[parameter]),
        }
        for parameter in order
    ]


def _target(manifest: JSON, place: ReplacementPath, capitals: _Capitals) -> JSON:
    name = manifest["metadata"].get("name")
    select = {"kind": manifest["kind"]} | ({"name": capitals(name)} if name else {})
    options: dict[str, Any] = {"delimiter": place.delimiter, "index": place.index} if place.delimiter else {}
    # a generated ConfigMap has no namespace yet
    if manifest["kind"] == "ConfigMap" and place.path == "metadata.namespace":
        options["create"] = True
    return {"select": select, "fieldPaths": [place.path]} | ({"options": options} if options else {})


def _merge_targets(targets: list[JSON]) -> list[JSON]:
    """Merges adjacent targets with the same object and options into one."""
    out: list[JSON] = []
    for target in targets:
        if out and all(out[-1].get(k) == target.get(k) for k in ("select", "options")):
            out[-1]["fieldPaths"] += target["fieldPaths"]
        else:
            out.append(target)
    return out
