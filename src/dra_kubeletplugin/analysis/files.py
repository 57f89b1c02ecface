"""Reads objects from files as kubectl does: YAML or JSON, several documents, lists split into items."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

JSON = dict[str, Any]


def from_files(paths: Iterable[Path]) -> list[JSON]:
    """Returns all objects of all files; of a directory, its files that end in .yaml, .yml or .json.

    Raises:
        QuestionError: a file is invalid; ``faults`` has a sentence for each fault, with file and line.
    """
    from ..base.yaml import manifests  # with YAML, which questions about a live cluster do not need

    return [m.value for m in manifests.objects(paths)]
