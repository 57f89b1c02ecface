"""Renders the Helm chart: the unchanged templates of the source, and the files that Helm needs in addition.

The chart ``dra-driver`` deploys any driver; a driver's ``values.yaml`` configures it. The chart of a driver contains that driver's
values as its defaults. This module generates ``Chart.yaml``, ``values.yaml`` with the defaults, and ``values.schema.json``, with which
Helm rejects invalid values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.yaml import dump
from dra_kubeletplugin.driver import Driver

from ...schemas.shapes import Form, ListShape, MapShape, Shape, Struct, named
from . import option_validation
from .pod_fields import ALL
from .pod_values_validation import OWN_LABELS
from .source_reader import HEADER, MADE, PODS, SOURCE, TEMPLATES, ManifestSource, Parameter
from .values import Values
from .values_validation import OPTION, PCI_DEVICE, framework_options


@dataclass(frozen=True)
class Chart:
    """The identity of a chart.

    Args:
        version: a version of SemVer 2.
        app_version: the version of the driver.
        values: the defaults of the chart. With None, the chart is for all drivers.
    """

    name: str
    version: str
    app_version: str
    description: str
    values: Values | None = None


_PARTS = {"metadata": "apis.meta.v1.ObjectMeta", "spec": "core.v1.PodSpec", "container": "core.v1.Container"}
"""The Kubernetes types of the parts of a pod (``PodField.of``)."""


def shared_chart(version: str) -> Chart:
    """Returns the chart for all drivers."""
    text = "A DRA driver made with dra-kubeletplugin: the node plugin, and the controller if the driver has one."
    return Chart("dra-driver", version, version, text)


def chart_files(
    source: ManifestSource, identity: Chart, driver: type[Driver] | None = None
) -> Iterator[tuple[str, str]]:
    """Yields each file's path below the folder of charts and its content.

    With ``driver``, the chart's schema also checks the options that this driver defines.
    """
    chart = {
        "apiVersion": "v2",
        "name": identity.name,
        "description": identity.description,
        "type": "application",
        "version": identity.version,
        "appVersion": identity.app_version,
        "kubeVersion": ">=1.32.0-0",
    }
    name = identity.name
    yield f"{name}/Chart.yaml", HEADER + dump(chart)
    yield f"{name}/values.yaml", HEADER + _default_values(source, identity.values)
    yield f"{name}/values.schema.json", json.dumps(_values_schema(source, driver), indent=2) + "\n"
    yield f"{name}/parameters.yaml", HEADER + (SOURCE / "parameters.yaml").read_text()
    for path in sorted(TEMPLATES.iterdir()):
        head = (
            "" if path.suffix == ".txt" else HEADER
        )  # Helm prints NOTES.txt, so its own first line is a comment of the template
        yield f"{name}/templates/{path.name}", head + path.read_text()
    for d in source.distributions.values():
        below = f"{name}/" if identity.values else ""  # a driver's chart is published alone, so it contains them
        yield f"{below}distributions/{d.name}.yaml", f"# {d.help}\n" + HEADER + dump(d.values)


def _default_values(source: ManifestSource, values: Values | None) -> str:
    parameters: Mapping[str, str | int] = values.parameters if values else {}
    out = []
    for p in source.parameters.values():
        if p.name != "namespace":
            out.append(f"# {p.help}" + (" Default: the release's name." if p.name == "name" else ""))
            out.append(f"{p.name}: {json.dumps(parameters.get(p.name, p.default or ''))}")
    out.append("features:")
    for feature in source.features.values():
        if feature.name != "namespace":
            on = feature.name in values.features if values else feature.default
            out += [f"  # {feature.help}", f"  {feature.name}: {str(on).lower()}"]
    fields = source.pod_fields.values()
    out += [
        "# Options of the driver and of the framework (docs/settings.md): environment variables, as text.",
        *dump({"options": dict(values.options) if values else {}}).splitlines(),
        "# Specs of DeviceClasses, by name.",
        *dump({"deviceClasses": dict(values.classes) if values else {}}).splitlines(),
        "# Ids of PCI functions, VENDOR:DEVICE or VENDOR. Node feature discovery sets the label nodeLabel on nodes that have one.",
        *dump({"pciDevices": list(values.pci_devices) if values else []}).splitlines(),
        "# Kubernetes fields of the pods. These fields replace the values of the templates:",
        f"# {', '.join(f.name for f in fields if not f.adds)};",
        f"# these fields are added to the values of the templates: {', '.join(f.name for f in fields if f.adds)}.",
        "pods:",
        "  # Fields of all pods; the same field of a single pod below replaces a field here.",
        "  all: {}",
        *(f"  {line}" for line in dump({pod: dict(values.pods[pod]) if values else {} for pod in PODS}).splitlines()),
    ]
    return "\n".join(out) + "\n"


# --- values.schema.json -------------------------------------------------------------------------------


def _values_schema(source: ManifestSource, driver: type[Driver] | None) -> JSON:
    names = {"pattern": f"^{OPTION}$", "not": {"enum": sorted(source.variables)}}
    options = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "string"}}
    features = {f.name: {"type": "boolean", "description": f.help} for f in source.features.values()}
    # If a user sets null, Helm removes the default. The template would then fail or treat the feature as off.
    required = {"required": [name for name in features if name != "namespace"]}
    properties: JSON = {p.name: _parameter_schema(p) for p in source.parameters.values()} | {
        "features": _object_schema(features) | required,
        "options": options | option_validation.options_schema(driver, framework_options() - source.variables),
        "deviceClasses": {
            "type": "object",
            "additionalProperties": _shape_schema(named("resource.v1.DeviceClassSpec"), 20) | {"type": "object"},
        },
        "pciDevices": {"type": ["array", "null"], "items": {"type": "string", "pattern": f"^{PCI_DEVICE}$"}},
        "pods": _object_schema({pod: {"$ref": "#/definitions/pod"} for pod in (ALL, *PODS)}),
        "global": {"type": "object"},  # reserved by Helm
    }
    return {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "$comment": f"{MADE}: changes here will be lost.",
        **_object_schema(properties),
        "required": ["features"],
        "definitions": {"pod": _pod_schema(source)},
    }


def _object_schema(properties: JSON) -> JSON:
    """Returns the schema of an object that has only these properties."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _parameter_schema(p: Parameter) -> JSON:
    if isinstance(p.default, int):
        return {"type": "integer", "minimum": 1, "maximum": p.most, "description": p.help}
    if p.choices:
        return {"enum": list(p.choices), "description": p.help}
    empty = "" if p.default is not None else "|^$"
    longest = {"maxLength": p.longest} if p.longest else {}
    return {"type": "string", "pattern": f"^({p.pattern})${empty}", **longest, "description": p.help}


def _pod_schema(source: ManifestSource) -> JSON:
    """Returns the JSON Schema of the fields of a pod. It describes three levels of fields; the API server checks the deeper levels."""
    fields = {field.name: _field_schema(_PARTS[field.of], field.name) for field in source.pod_fields.values()}
    fields["labels"]["propertyNames"] = {"not": {"enum": list(OWN_LABELS)}}
    own_name: JSON = {"type": "object", "properties": {"name": {"not": {"enum": sorted(source.variables)}}}}
    fields["env"] = {"allOf": [fields["env"], {"items": own_name}]}
    return {"type": ["object", "null"], "additionalProperties": False, "properties": fields}


def _field_schema(of: str, name: str) -> JSON:
    shape = named(of)
    assert isinstance(shape, Struct)
    return _shape_schema(shape.fields[name].shape, 3)


def _shape_schema(shape: Shape, depth: int) -> JSON:
    """Returns the JSON Schema of a Kubernetes type, down to ``depth`` levels, so that Helm reports wrong types before installation."""
    if not depth:
        return {}
    if isinstance(shape, MapShape):
        return {"type": ["object", "null"], "additionalProperties": _shape_schema(shape.value.shape, depth - 1)}
    if isinstance(shape, Struct):
        fields = {name: _shape_schema(field.shape, depth - 1) for name, field in shape.fields.items()}
        return {"type": ["object", "null"], "additionalProperties": False, "properties": fields}
    if isinstance(shape, ListShape):
        return {"type": ["array", "null"], "items": _shape_schema(shape.item.shape, depth - 1)}
    return {"type": ["string", "null"]} if shape is Form.STRING else {}
