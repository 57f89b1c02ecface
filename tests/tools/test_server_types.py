"""The file ``types.json`` contains the types of all sources."""

from __future__ import annotations

import json

from dra_kubeletplugin.base.json_types import JSON
from tests.tools import protobuf_numbers, server_types, types_newer_fields, types_pod_groups


def without_numbers(types: JSON) -> JSON:
    """Returns types without the numbers of protobuf fields."""
    return {
        name: {k: without_numbers(v) if k == "properties" else v for k, v in schema.items() if k != "wire"}
        for name, schema in types.items()
    }


def test_the_file_contains_the_types_that_openapi_and_kubectl_lack() -> None:
    content = json.loads(server_types.OUT.read_text())
    kinds, types = content["kinds"], content["types"]
    for more_kinds, more_types in (types_pod_groups.kinds_and_types(), protobuf_numbers.discovery_types()):
        kinds, types = kinds | more_kinds, types | more_types
    wanted_kinds, wanted_types = types_newer_fields.extended(kinds, types)
    assert wanted_kinds == content["kinds"]
    assert without_numbers(wanted_types) == without_numbers(content["types"])
