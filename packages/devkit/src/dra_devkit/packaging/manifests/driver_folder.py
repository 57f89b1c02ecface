"""Renders the files of a driver's folder ``deploy`` from its ``values.yaml``: the kustomization, DeviceClasses, a NodeFeatureRule."""

from __future__ import annotations

from collections.abc import Iterator

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.yaml import dump

from . import pod_fields
from .kustomize import PARAMETERS, kebab, patch_entry, placeholder
from .source_reader import MADE, ManifestSource
from .values import Values

HEADER = f"# {MADE} from values.yaml: change values.yaml instead.\n"
CLASSES, FEATURE_RULE = "deviceclass.yaml", "nodefeaturerule.yaml"


def driver_files(source: ManifestSource, values: Values, base: str) -> Iterator[tuple[str, str]]:
    """Yields each file's path below the folder and its content.

    Args:
        base: the folder ``kustomize`` of :func:`.writer.shared_files`: a path relative to the driver's folder, or a URL.
    """
    yield "kustomization.yaml", HEADER + dump(_kustomization(source, values, base))
    if values.classes:
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
        labels = _labels(values)
        classes = (
            head | {"metadata": {"name": name, "labels": labels}, "spec": spec} for name, spec in values.classes.items()
        )
        yield CLASSES, HEADER + "---\n".join(map(dump, classes))
    if values.pci_devices:
        yield FEATURE_RULE, HEADER + dump(_node_feature_rule(values))


def _labels(values: Values, **more: str) -> JSON:
    return {f"app.kubernetes.io/{key}": value for key, value in {"name": values.parameters["name"], **more}.items()}


def _node_feature_rule(values: Values) -> JSON:
    """Returns the object with which node feature discovery sets the label ``nodeLabel`` on nodes that have one of the PCI functions."""
    name = values.parameters["name"]
    alternatives = []
    for device in values.pci_devices:
        ids = dict(zip(("vendor", "device"), device.split(":"), strict=False))
        expressions = {key: {"op": "In", "value": [value]} for key, value in ids.items()}
        alternatives.append({"matchFeatures": [{"feature": "pci.device", "matchExpressions": expressions}]})
    rule = {"name": name, "labels": {values.parameters["nodeLabel"]: "true"}, "matchAny": alternatives}
    return {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeatureRule",
        "metadata": {"name": name, "labels": _labels(values)},
        "spec": {"rules": [rule]},
    }


def component_names(source: ManifestSource, values: Values) -> list[str]:
    """Returns the names of the components that the driver's kustomization lists, in order."""
    adding = {m.feature for m in source.all}
    # A component that changes an object comes after the component that adds the object.
    wanted = sorted((f for f in source.features if f in values.features), key=lambda f: f not in adding)
    out = [kebab(name) for name in wanted]
    if (version := values.parameters["resourceAPI"]) != "v1":  # a DeviceClass has fewer fields in older API versions
        out.insert(0, next(d.name for d in source.distributions.values() if d.values.get("resourceAPI") == version))
    return [*out, PARAMETERS]


def _kustomization(source: ManifestSource, values: Values, base: str) -> JSON:
    root, _, ref = base.partition("?")
    query = f"?{ref}" if ref else ""
    local = {"config.kubernetes.io/local-config": "true"}  # kustomize does not apply such objects
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [
            f"{root}/base{query}",
            *([CLASSES] if values.classes else []),
            *([FEATURE_RULE] if values.pci_devices else []),
        ],
        "configMapGenerator": [
            {
                "name": PARAMETERS,
                "options": {"disableNameSuffixHash": True, "annotations": local},
                "literals": [f"{name}={value}" for name, value in values.parameters.items()],
            },
            {
                "name": f"{placeholder(source.parameters['name'])}-options",  # the component `parameters` replaces the placeholder
                "options": {"labels": _labels(values, component="plugin")},
                "literals": [f"{name}={value}" for name, value in values.options.items()],
            },
        ],
        **({"patches": patches} if (patches := list(_patches(source, values))) else {}),
        "components": [f"{root}/components/{name}{query}" for name in component_names(source, values)],
    }


def _patches(source: ManifestSource, values: Values) -> Iterator[JSON]:
    """Yields the patches that set fields of the pods. kustomize applies them after the components."""
    for pod, manifest in pod_fields.workloads(source):
        if (fields := values.pods[pod]) and manifest.feature in {"", *values.features}:
            workload = manifest.render(values.features, values.parameters)
            yield patch_entry(workload, pod_fields.template_patch(source, workload["spec"]["template"], fields))
