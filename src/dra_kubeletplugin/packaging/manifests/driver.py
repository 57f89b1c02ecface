"""Renders the folder ``deploy`` of one driver: a kustomization made from ``values.yaml``, and the DeviceClasses."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from ...base.yaml.loader import Dumper
from . import pod_fields
from .kustomize import OPTIONS, PARAMETERS, kebab
from .source import MADE, Source, parse_yaml
from .values import Values

HEADER = f"# {MADE} from values.yaml: change values.yaml instead.\n"
CLASSES = "deviceclass.yaml"


def files(source: Source, values: Values, base: str) -> Iterator[tuple[str, str]]:
    """Yields each file's path below the folder and its content.

    Args:
        base: the folder ``kustomize`` of :func:`.writer.write_shared`: a path relative to the driver's folder, or a URL.
    """
    yield (
        "kustomization.yaml",
        HEADER + yaml.dump(_kustomization(source, values, base), Dumper=Dumper, sort_keys=False, width=140),
    )
    if values.classes:
        yield (
            CLASSES,
            HEADER
            + "---\n".join(
                yaml.dump(
                    {
                        "apiVersion": "resource.k8s.io/v1",
                        "kind": "DeviceClass",
                        "metadata": {"name": name},
                        "spec": spec,
                    },
                    Dumper=Dumper,
                    sort_keys=False,
                    width=140,
                )
                for name, spec in values.classes.items()
            ),
        )


def components(source: Source, values: Values) -> list[str]:
    """Returns the names of the components that the driver's kustomization lists, in order."""
    adding = {m.feature for m in source.all}
    wanted = sorted((f for f in source.features if f in values.features), key=lambda f: f not in adding)
    out = [kebab(name) for name in wanted]  # components that change objects come after the components that add them
    if (version := values.parameters["resourceAPI"]) != "v1":  # a DeviceClass has fewer fields in older API versions
        out.insert(0, next(d.name for d in source.distributions.values() if d.values.get("resourceAPI") == version))
    return [*out, PARAMETERS]


def _kustomization(source: Source, values: Values, base: str) -> dict[str, object]:
    root, _, ref = base.partition("?")
    at = f"?{ref}" if ref else ""
    options = OPTIONS.replace("${name}", "NAME")
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
                "name": options,
                "options": {"labels": {"app.kubernetes.io/name": values.parameters["name"]}},
                "literals": [f"{name}={value}" for name, value in values.options.items()],
            },
        ],
        **({"patches": patches} if (patches := list(_patches(source, values))) else {}),
        "components": [f"{root}/components/{name}{at}" for name in components(source, values)],
    }


def _patches(source: Source, values: Values) -> Iterator[dict[str, object]]:
    """Yields the patches for fields of the pods. kustomize applies the patches of a kustomization after its components."""
    for file, manifest in pod_fields.workloads(source):
        if (fields := values.pods[file]) and manifest.feature in {"", *values.features}:
            found = parse_yaml(manifest.with_features(values.features))
            name = found["metadata"]["name"].replace("${name}", values.parameters["name"])
            head = {"apiVersion": found["apiVersion"], "kind": manifest.kind, "metadata": {"name": name}}
            change = head | pod_fields.patch(found["spec"]["template"], fields)
            text = yaml.dump(change, Dumper=Dumper, sort_keys=False, width=140)
            yield {"target": {"kind": manifest.kind, "name": name}, "patch": text}
