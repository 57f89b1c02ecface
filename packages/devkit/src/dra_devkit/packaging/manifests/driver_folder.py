"""Renders the kustomization of one driver from its ``values.yaml``, and the DeviceClasses, for the driver's folder ``deploy``."""

from __future__ import annotations

from collections.abc import Iterator

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.yaml import dump

from . import pod_fields
from .kustomize import PARAMETERS, kebab, patch_entry, placeholder
from .source_reader import MADE, ManifestSource
from .values import Values

HEADER = f"# {MADE} from values.yaml: change values.yaml instead.\n"
CLASSES = "deviceclass.yaml"


def driver_files(source: ManifestSource, values: Values, base: str) -> Iterator[tuple[str, str]]:
    """Yields each file's path below the folder and its content.

    Args:
        base: the folder ``kustomize`` of :func:`.writer.write_shared`: a path relative to the driver's folder, or a URL.
    """
    yield "kustomization.yaml", HEADER + dump(_kustomization(source, values, base))
    if values.classes:
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
        classes = (head | {"metadata": {"name": name}, "spec": spec} for name, spec in values.classes.items())
        yield CLASSES, HEADER + "---\n".join(map(dump, classes))


def component_names(source: ManifestSource, values: Values) -> list[str]:
    """Returns the names of the components that the driver's kustomization lists, in order."""
    adding = {m.feature for m in source.all}
    wanted = sorted((f for f in source.features if f in values.features), key=lambda f: f not in adding)
    out = [
        kebab(name) for name in wanted
    ]  # a component that changes an object comes after the component that adds the object
    if (version := values.parameters["resourceAPI"]) != "v1":  # a DeviceClass has fewer fields in older API versions
        out.insert(0, next(d.name for d in source.distributions.values() if d.values.get("resourceAPI") == version))
    return [*out, PARAMETERS]


def _kustomization(source: ManifestSource, values: Values, base: str) -> JSON:
    root, _, ref = base.partition("?")
    at = f"?{ref}" if ref else ""
    local = {"config.kubernetes.io/local-config": "true"}  # kustomize does not apply such objects
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{root}/base{at}", *([CLASSES] if values.classes else [])],
        "configMapGenerator": [
            {
                "name": PARAMETERS,
                "options": {"disableNameSuffixHash": True, "annotations": local},
                "literals": [f"{name}={value}" for name, value in values.parameters.items()],
            },
            {
                "name": f"{placeholder(source.parameters['name'])}-options",  # the component `parameters` replaces the placeholder
                "options": {"labels": {"app.kubernetes.io/name": values.parameters["name"]}},
                "literals": [f"{name}={value}" for name, value in values.options.items()],
            },
        ],
        **({"patches": patches} if (patches := list(_patches(source, values))) else {}),
        "components": [f"{root}/components/{name}{at}" for name in component_names(source, values)],
    }


def _patches(source: ManifestSource, values: Values) -> Iterator[JSON]:
    """Yields the patches that set fields of the pods. kustomize applies them after the components."""
    for pod, manifest in pod_fields.workloads(source):
        if (fields := values.pods[pod]) and manifest.feature in {"", *values.features}:
            workload = manifest.render(values.features, values.parameters)
            yield patch_entry(workload, pod_fields.template_patch(source, workload["spec"]["template"], fields))
