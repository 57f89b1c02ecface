"""Reads objects from files as kubectl does: YAML or JSON, several documents, lists split into items."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

JSON = dict[str, Any]


def from_files(paths: Iterable[Path]) -> list[JSON]:
    """Returns the objects of all files. In a directory, it reads the files that end in .yaml, .yml or .json.

    Raises:
        QuestionError: a file is invalid; ``faults`` has a sentence for each fault, with file and line.
    """
    from ..base.yaml import manifests  # imports YAML, which questions about a live cluster do not need

    return [m.value for m in manifests.objects(paths)]
