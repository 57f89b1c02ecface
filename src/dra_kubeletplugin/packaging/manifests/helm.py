"""Renders the Helm chart: one chart for all drivers, which a driver configures with its ``values.yaml``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import yaml

from ...base.yaml.loader import Dumper
from ...driver import Driver
from ...resourceapi.schemas.shapes import Form, ListShape, MapShape, Shape, Struct, kind_shape
from . import driver_options
from .kustomize import HEADER
from .pod_fields import ALL, CONTAINER, FIELDS, METADATA, PODS, SPEC
from .pod_values_validation import OWN_LABEL, REPLACES_NODE_LABEL
from .source import JSON, MADE, PARAMETER, Manifest, Parameter, Source
from .values_validation import CONFLICTS, OPTION, framework_options

CHART = "dra-driver"
_WHOLE = re.compile(r'(?<=: )"?\$\{(\w+)\}"?$')
_FIELD = """{{- define "dra.field" }}
{{- $pods := default dict (index . 0).Values.pods }}
{{- $given := index (default dict (index $pods (index . 1))) (index . 2) }}
{{- if kindIs "invalid" $given }}{{ $given = index (default dict $pods.all) (index . 2) }}{{ end }}
{{- if not (kindIs "invalid" $given) }}{{ toJson $given }}{{ end }}
{{- end }}
"""
_OPTIONS = """apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "dra.name" . }}-options
  namespace: {{ include "dra.namespace" . | quote }}
  labels:
    app.kubernetes.io/name: {{ include "dra.name" . | quote }}
data: {{- toYaml .Values.options | nindent 2 }}
"""
_CLASSES = """{{- range $name, $spec := .Values.deviceClasses }}
---
apiVersion: resource.k8s.io/{{ $.Values.resourceAPI }}
kind: DeviceClass
metadata:
  name: {{ $name | quote }}
spec:
  {{- /* Before Kubernetes 1.34, a DeviceClass did not have this field. */}}
  {{- if ne $.Values.resourceAPI "v1" }}{{ $spec = omit $spec "extendedResourceName" }}{{ end }}
  {{- toYaml $spec | nindent 2 }}
{{- end }}
"""


def files(source: Source, version: str, driver: type[Driver] | None = None) -> Iterator[tuple[str, str]]:
    """Yields each file's path below ``deploy/helm`` and its content.

    With ``driver``, the chart's schema also checks the options that this driver defines.
    """
    chart = {
        "apiVersion": "v2",
        "name": CHART,
        "description": "A DRA driver made with dra-kubeletplugin: the node plugin, and the controller if the driver has one.",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.32.0-0",
    }
    yield f"{CHART}/Chart.yaml", HEADER + yaml.dump(chart, Dumper=Dumper, sort_keys=False, width=140)
    yield f"{CHART}/values.yaml", HEADER + _values(source)
    yield f"{CHART}/values.schema.json", json.dumps(_schema(source, driver), indent=2) + "\n"
    yield f"{CHART}/templates/_helpers.tpl", _helpers(source)
    for name, manifests in source.manifests.items():
        shown = "".join(_template(m, source, PODS[name]) for m in manifests if m.feature != "namespace")
        yield f"{CHART}/templates/{name}.yaml", HEADER + (_refused() if name == "node" else "") + shown
    yield f"{CHART}/templates/options.yaml", HEADER + _OPTIONS
    yield f"{CHART}/templates/deviceclasses.yaml", HEADER + _CLASSES
    for d in source.distributions.values():
        yield (
            f"distributions/{d.name}.yaml",
            f"# {d.help}\n" + HEADER + yaml.dump(d.values, Dumper=Dumper, sort_keys=False),
        )


def _refused() -> str:
    """Returns template lines that stop the rendering if features conflict."""
    out = ""
    for together, why in CONFLICTS:
        conditions = (f".Values.features.{f}" if f[0] != "!" else f"(not .Values.features.{f[1:]})" for f in together)
        out += f'{{{{- if and {" ".join(conditions)} }}}}\n{{{{- fail "{why}" }}}}\n{{{{- end }}}}\n'
    why = f"pods.{PODS['node']}.affinity: {REPLACES_NODE_LABEL}"
    given = f"and .Values.features.nodeLabel ({_field(PODS['node'], 'affinity')})"
    return f'{out}{{{{- if {given} }}}}\n{{{{- fail "{why}" }}}}\n{{{{- end }}}}\n'


def _template(manifest: Manifest, source: Source, pod: str) -> str:
    lines = ["---"]
    for step, line in manifest.as_template():
        word, _, feature = step.partition(" ")
        match word:
            case "if":
                lines.append(f"{{{{- if .Values.features.{feature} }}}}")
            case "unless":
                lines.append(f"{{{{- if not .Values.features.{feature} }}}}")
            case "end":
                lines.append("{{- end }}")
            case "given":
                lines += [f"{{{{- $given := {_field(pod, feature)} }}}}", "{{- if not $given }}"]
            case "else":
                lines += ["{{- else }}", f"{line.partition(':')[0]}: {{{{ $given }}}}"]
            case "set":
                lines += [f"{{{{- with {_field(pod, feature)} }}}}", f"{line}{feature}: {{{{ . }}}}", "{{- end }}"]
            case "add":
                lines += _added(line, feature, _field(pod, feature))
            case _:
                lines.append(_with_values(line, source))
    if manifest.feature:
        lines = [f"{{{{- if .Values.features.{manifest.feature} }}}}", *lines, "{{- end }}"]
    return "\n".join(lines) + "\n"


def _field(pod: str, name: str) -> str:
    """Returns the template expression for a pod's field. Its value is JSON, or empty if the field is not set."""
    return f'include "dra.field" (list $ "{pod}" "{name}")'


def _added(indent: str, name: str, given: str) -> list[str]:
    if FIELDS[name].of == METADATA:
        each = f'range $key, $value := fromJson ({given} | default "{{}}")'
        item = "{{ toJson $key }}: {{ toJson $value }}"
    else:
        each, item = f'range fromJsonArray ({given} | default "[]")', "- {{ toJson . }}"
    return [f"{{{{- {each} }}}}", f"{indent}{item}", "{{- end }}"]


def _with_values(line: str, source: Source) -> str:
    def whole(match: re.Match[str]) -> str:
        number = isinstance(source.parameters[match[1]].default, int)
        return f'{{{{ include "dra.{match[1]}" . {"" if number else "| quote "}}}}}'

    line = _WHOLE.sub(whole, line)
    return PARAMETER.sub(lambda m: f'{{{{ include "dra.{m[1]}" . }}}}', line)


def _helpers(source: Source) -> str:
    out = [f"{{{{- /* {MADE}: changes here will be lost. */}}}}"]
    for p in source.parameters.values():
        out.append(f'{{{{- define "dra.{p.name}" }}}}{_value(p)}{{{{ end }}}}')
    return "\n".join(out) + "\n" + _FIELD


def _value(p: Parameter) -> str:
    if p.name == "name":
        return "{{ .Values.name | default .Release.Name }}"
    if p.name == "namespace":
        return "{{ .Release.Namespace }}"
    if p.default is None:
        return f"{{{{ required {json.dumps(f'{p.name}: {p.help}')} .Values.{p.name} }}}}"
    return f"{{{{ .Values.{p.name} }}}}"


def _values(source: Source) -> str:
    out = []
    for p in source.parameters.values():
        if p.name == "namespace":
            continue
        out.append(f"# {p.help}" + (" Default: the release's name." if p.name == "name" else ""))
        out.append(f"{p.name}: {json.dumps(p.default or '')}")
    out.append("features:")
    for f in source.features.values():
        if f.name != "namespace":
            out += [f"  # {f.help}", f"  {f.name}: {str(f.default).lower()}"]
    out += [
        "# Options of the driver and of the framework (docs/settings.md): environment variables, as text.",
        "options: {}",
    ]
    out += ["# Specs of DeviceClasses, by name.", "deviceClasses: {}"]
    out += [
        "# Kubernetes fields of the pods. These fields replace the values of the templates:",
        f"# {', '.join(name for name, field in FIELDS.items() if not field.adds)};",
        f"# these fields are added to the values of the templates: {', '.join(name for name, field in FIELDS.items() if field.adds)}.",
        "pods:",
        "  # Fields of all pods; the same field of a single pod below replaces a field here.",
        "  all: {}",
        *(f"  {pod}: {{}}" for pod in PODS.values()),
    ]
    return "\n".join(out) + "\n"


def _schema(source: Source, driver: type[Driver] | None) -> dict[str, object]:
    properties: dict[str, object] = {}
    for p in source.parameters.values():
        if isinstance(p.default, int):
            properties[p.name] = {"type": "integer", "minimum": 1, "maximum": p.most, "description": p.help}
        elif p.choices:
            properties[p.name] = {"enum": list(p.choices), "description": p.help}
        else:
            empty = "" if p.default is not None else "|^$"
            longest = {"maxLength": p.longest} if p.longest else {}
            form = {"type": "string", "pattern": f"^({p.pattern})${empty}"}
            properties[p.name] = form | longest | {"description": p.help}
    features = {f.name: {"type": "boolean", "description": f.help} for f in source.features.values()}
    properties["features"] = {"type": "object", "additionalProperties": False, "properties": features}
    names = {"pattern": f"^{OPTION}$", "not": {"enum": sorted(source.variables)}}
    options = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "string"}}
    properties["options"] = options | driver_options.schema(driver, framework_options() - set(source.variables))
    spec = (
        _of_shape(shape.fields["spec"].shape) if (shape := kind_shape("resource.k8s.io", "v1", "DeviceClass")) else {}
    )
    properties["deviceClasses"] = {"type": "object", "additionalProperties": spec | {"type": "object"}}
    properties["pods"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {pod: {"$ref": "#/definitions/pod"} for pod in (ALL, *PODS.values())},
    }
    properties["global"] = {"type": "object"}  # reserved by Helm
    return {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "$comment": f"{MADE}: changes here will be lost.",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "definitions": {"pod": _pod(source)},
    }


def _pod(source: Source) -> JSON:
    """Returns the JSON Schema of the fields of a pod. The schema checks three levels; the API server checks the rest."""
    pod = kind_shape("", "v1", "Pod")
    assert isinstance(pod, Struct)
    meta, spec = (pod.fields[name].shape for name in (METADATA, SPEC))
    assert isinstance(meta, Struct) and isinstance(spec, Struct)
    containers = spec.fields["containers"].shape
    assert isinstance(containers, ListShape) and isinstance(containers.item.shape, Struct)
    owners = {METADATA: meta, SPEC: spec, CONTAINER: containers.item.shape}
    fields = {name: _of_shape(owners[f.of].fields[name].shape, 3) for name, f in FIELDS.items()}
    fields["labels"]["propertyNames"] = {"not": {"const": OWN_LABEL}}
    named: JSON = {"type": "object", "properties": {"name": {"not": {"enum": sorted(source.variables)}}}}
    fields["env"] = {"allOf": [fields["env"], {"items": named}]}
    return {"type": ["object", "null"], "additionalProperties": False, "properties": fields}


def _of_shape(shape: Shape, depth: int = 20) -> JSON:
    """Returns a Kubernetes type as JSON Schema, so that Helm reports wrong types before the API server does."""
    if not depth:
        return {}
    if isinstance(shape, MapShape):
        return {"type": ["object", "null"], "additionalProperties": _of_shape(shape.value.shape, depth - 1)}
    if isinstance(shape, Struct):
        fields = {name: _of_shape(field.shape, depth - 1) for name, field in shape.fields.items()}
        return {"type": ["object", "null"], "additionalProperties": False, "properties": fields}
    if isinstance(shape, ListShape):
        return {"type": ["array", "null"], "items": _of_shape(shape.item.shape, depth - 1)}
    return {"type": ["string", "null"]} if shape is Form.STRING else {}
