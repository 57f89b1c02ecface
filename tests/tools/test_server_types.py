"""The file ``types.json`` contains the types of all sources."""

from __future__ import annotations

import json

from dra_kubeletplugin.base.json_types import JSON
from tests.tools import server_types


def without_numbers(types: JSON) -> JSON:
    """Returns types without the numbers of protobuf fields."""
    return {
        name: {k: without_numbers(v) if k == "properties" else v for k, v in schema.items() if k != "wire"}
        for name, schema in types.items()
    }


def test_the_file_contains_the_types_that_openapi_and_kubectl_lack() -> None:
    content = json.loads(server_types.OUT.read_text())
    wanted_kinds, wanted_types = server_types.extended(content["kinds"], content["types"])
    assert wanted_kinds == content["kinds"]
    assert without_numbers(wanted_types) == without_numbers(content["types"])
