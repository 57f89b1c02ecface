"""The schemas of a Kubernetes 1.36.2 server with what 1.37 added and the alpha kind PodGroup, read when they are first needed.

``types.json`` is made by ``tests/tools/server_types.py``; its docstring says what is in it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from . import newer_fields, pod_groups

Schema = Mapping[str, Any]


@functools.cache
def _tables() -> tuple[Mapping[str, str], Mapping[str, Schema]]:
    found = json.loads(resources.files(__package__).joinpath("types.json").read_text())
    kinds, types = pod_groups.kinds_and_types()
    return newer_fields.extended(found["kinds"] | kinds, found["types"] | types)


def named(name: str) -> Schema:
    """A type by its name, as references have it."""
    return _tables()[1][name]


def name_of(group: str, version: str, kind: str) -> str | None:
    """The name of a kind's type; None for a kind that is not in the tables."""
    return _tables()[0].get(f"{group}/{version}/{kind}")
