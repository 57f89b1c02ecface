"""A definition of a custom resource with a schema and rules."""

from __future__ import annotations

from typing import Any

from dra_kubeletplugin.base.json_types import JSON


def definition(spec: JSON, rules: list[JSON] | None = None, **version: Any) -> JSON:
    """Returns a definition. ``spec`` is the schema of the objects' spec; ``rules`` are the rules of the root."""
    schema = {
        "type": "object",
        "properties": {"spec": spec, "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}},
    }
    if rules:
        schema["x-kubernetes-validations"] = rules
    served_version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
    names = {"plural": "foos", "kind": "Foo"}
    return {
        "metadata": {"name": "foos.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": names, "versions": [served_version]},
    }
