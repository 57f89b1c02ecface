"""The schemas of a Kubernetes 1.36.2 server, with the additions of 1.37 and the alpha kind PodGroup, loaded at first
use.

``tests/tools/server_types.py`` generates ``types.json``; the docstring of this script describes the content.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

Schema = Mapping[str, Any]


@functools.cache
def _tables() -> tuple[Mapping[str, str], Mapping[str, Schema]]:
    found = json.loads(resources.files(__package__).joinpath("types.json").read_text())
    return found["kinds"], found["types"]


def named(name: str) -> Schema:
    """Returns a type by its name, as used in references."""
    return _tables()[1][name]


def name_of(group: str, version: str, kind: str) -> str | None:
    """Returns the name of a kind's type, or None for an unknown kind."""
    return _tables()[0].get(f"{group}/{version}/{kind}")
