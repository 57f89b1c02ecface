"""Objects from files, as kubectl writes and reads them: YAML or JSON, several documents, lists taken apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..errors import QuestionError
from .objects import kind_of

JSON = dict[str, Any]


def from_files(paths: Iterable[Path]) -> list[JSON]:
    """All objects of all files; of a folder, of the files in it that end in .yaml, .yml or .json.

    Raises :class:`QuestionError` with the file and the place in it.
    """
    return [obj for path in paths for file in _files(path) for obj in _objects(file)]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    from .. import documents  # with YAML, which a question about a cluster does without

    try:
        return list(documents.files([path]))
    except OSError as e:  # none in it, or a folder below that went meanwhile
        raise QuestionError(f"{e.filename or path}: {e.strerror or e}") from None


def _objects(file: Path) -> Iterator[JSON]:
    try:
        text = file.read_text("utf-8")
    except OSError as e:
        raise QuestionError(f"{file}: {e.strerror or e}") from None
    except UnicodeDecodeError:
        raise QuestionError(f"{file} is no text") from None
    for number, document in enumerate(_documents(file, text), 1):
        if document is not None:
            yield from _apart(f"{file}, document {number}", document)


def _documents(file: Path, text: str) -> list[Any]:
    if text.lstrip().startswith("{"):
        try:
            return [msgspec.json.decode(text)]
        except (ValueError, RecursionError):
            pass  # YAML can begin so too
    import yaml

    from .. import kubectl_yaml

    try:
        return [part.value for part in kubectl_yaml.parts(text)]
    except yaml.MarkedYAMLError as e:
        line = f", line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise QuestionError(f"{file}{line}: no YAML: {e.problem or e.context or e}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise QuestionError(f"{file}: no YAML: {e}") from None


def _apart(place: str, document: object) -> Iterator[JSON]:
    if not isinstance(document, dict):
        raise QuestionError(f"{place}: {type(document).__name__} in place of an object with apiVersion and kind")
    kind, items = document.get("kind"), document.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        for i, item in enumerate(items):
            head = (
                {} if kind == "List" else {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")}
            )
            yield from _apart(f"{place}, items[{i}]", {**head, **item} if isinstance(item, dict) else item)
        return
    try:
        kind_of(document)
    except QuestionError as e:
        raise QuestionError(f"{place}: {e}") from None
    yield document
