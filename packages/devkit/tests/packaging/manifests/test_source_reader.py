"""Tests of how templates are read, and of what kustomize cannot express."""

from __future__ import annotations

import pytest

from dra_devkit.packaging.manifests import source_reader
from dra_devkit.packaging.manifests.patches import merge_patch
from dra_devkit.packaging.manifests.replacements import places
from packages.devkit.tests.packaging.manifests.rendering import (
    SOURCE,
)

TEMPLATES = """{{- include "x" . }}
{{- define "dra.plugin" }}
kind: DaemonSet
spec:
  {{- if .Values.features.probes }}
  port: {{ .Values.httpPort }}
  {{- else }}
  port: none
  {{- end }}
{{- end }}
---
kind: Role
name: {{ include "dra.name" . }}-{{ .Values.logLevel }}
namespace: {{ .Release.Namespace | quote }}
{{- if .Values.features.events }}
---
{{- include "dra.workload" (list . "plugin") }}
{{- end }}
"""


def test_the_source_reader_renders_a_template_like_helm() -> None:
    role, workload = source_reader.parse_manifests(TEMPLATES)
    assert (role.feature, role.features, workload.feature, workload.features) == ("", set(), "events", {"probes"})
    values = {"name": "n", "namespace": "1", "httpPort": 8080, "logLevel": "info"}
    assert role.render(set(), values) == {"kind": "Role", "name": "n-info", "namespace": "1"}
    assert workload.render(set(), values) == {"kind": "DaemonSet", "spec": {"port": "none"}}
    assert workload.render({"probes"}, values) == {"kind": "DaemonSet", "spec": {"port": 8080}}


def test_a_condition_that_kustomize_cannot_express_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"source_reader\.py cannot read '\{\{- if eq \.Values\.logLevel \"info\" \}\}'"
    ):
        list(source_reader.parse_manifests('---\n{{- if eq .Values.logLevel "info" }}\na: 1\n{{- end }}\n'))


def test_templates_use_only_declared_features_and_parameters() -> None:
    values = dict.fromkeys(SOURCE.parameters, "1")
    for manifest in SOURCE.all:
        assert {manifest.feature, *manifest.features} <= {"", *SOURCE.features}
        for on in ({*SOURCE.features}, set[str]()):
            assert manifest.render(on, values)["kind"] == manifest.kind


def test_a_parameter_that_kustomize_cannot_replace_is_refused() -> None:
    with pytest.raises(ValueError, match=r"spec\.x: none of the characters"):
        list(places({"spec": {"x": "a${name}b"}}))


def test_a_patch_of_a_list_without_names_is_refused() -> None:
    with pytest.raises(ValueError, match="items have no names"):
        merge_patch({"rules": [1]}, {"rules": [2]})


def test_a_patch_adds_changes_and_removes_by_name() -> None:
    before = {"a": 1, "b": 2, "env": [{"name": "X", "value": "1"}, {"name": "Y"}]}
    after = {"a": 3, "env": [{"name": "X", "value": "2"}, {"name": "Z"}]}
    assert merge_patch(before, after) == {
        "a": 3,
        "b": None,
        "env": [{"name": "Y", "$patch": "delete"}, {"name": "X", "value": "2"}, {"name": "Z"}],
    }
