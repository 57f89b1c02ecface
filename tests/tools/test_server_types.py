"""The file ``types.json`` contains the types of all sources."""

from __future__ import annotations

import json

from tests.tools import server_types, types_newer_fields, types_pod_groups


def test_the_file_contains_the_types_that_openapi_and_kubectl_lack() -> None:
    content = json.loads(server_types.OUT.read_text())
    kinds, types = types_pod_groups.kinds_and_types()
    wanted = types_newer_fields.extended(content["kinds"] | kinds, content["types"] | types)
    assert wanted == (content["kinds"], content["types"])
