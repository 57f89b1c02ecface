"""Objects from files, as kubectl writes and reads them: YAML or JSON, several documents, lists taken apart."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

JSON = dict[str, Any]


def from_files(paths: Iterable[Path]) -> list[JSON]:
    """All objects of all files; of a folder, of the files in it that end in .yaml, .yml or .json.

    Raises :class:`QuestionError`, whose ``faults`` have a sentence for everything that is wrong, with file and line.
    """
    from ..base.yaml import manifests  # with YAML, which a question about a cluster does without

    return [m.value for m in manifests.objects(paths)]
