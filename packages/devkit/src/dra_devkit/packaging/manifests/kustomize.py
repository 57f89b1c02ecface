"""Renders the manifests for kustomize: a base, a component for each feature and distribution, and the component ``parameters``.

In the base, each text parameter is a placeholder such as DRIVER_NAME, so that applying the base alone fails visibly. A driver's
kustomization lists the component ``parameters`` last. This component replaces the placeholders with the values of the ConfigMap
``parameters``.

The patch of a feature is the difference between the objects with and without the feature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.yaml import dump

from .patches import merge_patch
from .replacements import MARKER, ReplacementPath, markers, places
from .source_reader import HEADER, ManifestSource, Parameter
from .values import merged

PARAMETERS = "parameters"
OFF: frozenset[str] = frozenset()


def kebab(name: str) -> str:
    return re.sub(r"[A-Z]+", lambda m: f"-{m[0].lower()}", name)


def placeholder(parameter: Parameter) -> str:
    """Returns the text that stands for a parameter in the base: its name in capitals, or its default if it is a number."""
    if isinstance(parameter.default, int):
        return str(parameter.default)
    return kebab(parameter.name).replace("-", "_").upper()


def base_and_component_files(source: ManifestSource) -> Iterator[tuple[str, str]]:
    """Yields each file's path below ``deploy/kustomize`` and its content."""
    for path, text in _files_with_markers(source):
        yield path, MARKER.sub(lambda found: placeholder(source.parameters[found[1]]), text)


def _files_with_markers(source: ManifestSource) -> Iterator[tuple[str, str]]:
    """Yields the files with a marker in each place of a parameter."""
    values = markers(source.parameters)
    yield "base/kustomization.yaml", _kustomization("Kustomization", {"resources": ["objects.yaml"]})
    yield "base/objects.yaml", _objects(source, "")
    for feature in source.features.values():
        folder = f"components/{kebab(feature.name)}"
        body: JSON = {}
        if any(m.feature == feature.name for m in source.all):
            yield f"{folder}/objects.yaml", _objects(source, feature.name)
            body["resources"] = ["objects.yaml"]
        # each object that the feature changes: the object without the feature, and with it
        changes = [
            (m.render(OFF, values), m.render({feature.name}, values)) for m in source.all if feature.name in m.features
        ]
        if changes:
            body["patches"] = [patch_entry(off, merge_patch(off, on)) for off, on in changes]
        # The component itself replaces the parameters in the fields that it adds. The component `parameters` cannot: kustomize fails if
        # a field does not exist because the feature is off.
        if found := _replacements((on, p) for off, on in changes for p in places(on) if p not in set(places(off))):
            body["replacements"] = found
        yield f"{folder}/kustomization.yaml", f"# {feature.help}\n" + _kustomization("Component", body)
    # The features that a distribution needs have components already, so its own component only sets parameters.
    for distribution in source.distributions.values():
        if data := {k: v for k, v in distribution.values.items() if k in source.parameters}:
            text = _kustomization("Component", {"patches": list(_distribution_patches(data))})
            yield f"components/{distribution.name}/kustomization.yaml", f"# {distribution.help}\n" + text
    last = _kustomization("Component", {"replacements": _replacements(_places_without_features(source))})
    head = "# Sets the parameters. A driver lists this component last.\n"
    yield f"components/{PARAMETERS}/kustomization.yaml", head + last


def _objects(source: ManifestSource, feature: str) -> str:
    """Returns the objects that the feature adds. If ``feature`` is empty, returns the objects that every driver has."""
    values = markers(source.parameters)
    return HEADER + "---\n".join(m.text(OFF, values) for m in source.all if m.feature == feature)


def _kustomization(kind: str, body: JSON) -> str:
    version = "v1beta1" if kind == "Kustomization" else "v1alpha1"
    return HEADER + dump({"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, **body})


# --- patches ------------------------------------------------------------------------------------------


def _distribution_patches(data: JSON) -> Iterator[JSON]:
    """Yields the patches that set the parameters of a distribution."""
    yield patch_entry({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PARAMETERS}}, {"data": data})
    if data.get("resourceAPI", "v1") != "v1":  # before Kubernetes 1.34, a DeviceClass did not have this field
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "any"}}
        yield patch_entry(head, {"spec": {"extendedResourceName": None}}, ".*")


def patch_entry(target: JSON, change: JSON, names: str = "") -> JSON:
    """Returns an entry of ``patches`` that applies ``change`` to ``target``.

    With ``names``, the patch applies to all objects of the same kind whose name matches this regular expression.
    """
    name = target["metadata"]["name"]
    head = {"apiVersion": target["apiVersion"], "kind": target["kind"], "metadata": {"name": name}}
    return {"target": {"kind": target["kind"], "name": names or name}, "patch": dump(merged(head, change))}


# --- replacements -------------------------------------------------------------------------------------


def _places_without_features(source: ManifestSource) -> Iterator[tuple[JSON, ReplacementPath]]:
    """Yields the places of parameters in all objects, each with its object. Leaves out the fields that a feature adds to an object."""
    values = markers(source.parameters)
    options = {"kind": "ConfigMap", "metadata": {"name": f"{values['name']}-options", "namespace": values["namespace"]}}
    for rendered in (*(m.render(OFF, values) for m in source.all), options):
        yield from ((rendered, place) for place in places(rendered))
    yield {"kind": "DeviceClass", "metadata": {}}, ReplacementPath("resourceAPI", "apiVersion", "/", 1)


def _replacements(found: Iterable[tuple[JSON, ReplacementPath]]) -> list[JSON]:
    """Returns one replacement per parameter. The names of objects are replaced last, because replacements select objects by name."""
    by_parameter: dict[str, list[JSON]] = {}
    for manifest, place in sorted(found, key=lambda f: f[1].path == "metadata.name"):
        targets = by_parameter.setdefault(place.parameter, [])
        target = _target(manifest, place)
        if targets and all(targets[-1].get(k) == target.get(k) for k in ("select", "options")):
            targets[-1]["fieldPaths"] += target["fieldPaths"]
        else:
            targets.append(target)
    return [
        {
            "source": {"kind": "ConfigMap", "name": PARAMETERS, "fieldPath": f"data.{parameter}"},
            "targets": by_parameter[parameter],
        }
        for parameter in sorted(by_parameter, key=lambda p: p == "name")
    ]


def _target(manifest: JSON, place: ReplacementPath) -> JSON:
    # The name of the only Namespace is replaced before its labels, so the name cannot select it.
    name = manifest["metadata"].get("name") if manifest["kind"] != "Namespace" else ""
    select = {"kind": manifest["kind"]} | ({"name": name} if name else {})
    options: JSON = {"delimiter": place.delimiter, "index": place.index} if place.delimiter else {}
    # the generated ConfigMap has no namespace yet, so kustomize must create the field
    if manifest["kind"] == "ConfigMap" and place.path == "metadata.namespace":
        options["create"] = True
    return {"select": select, "fieldPaths": [place.path]} | ({"options": options} if options else {})
