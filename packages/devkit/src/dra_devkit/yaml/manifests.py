"""Reads the objects in users' manifests, splits lists as kubectl does, and reports documents that are not objects.

Every command reads manifests with this module, so that the same mistake has the same message and place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_devkit.yaml.documents import YamlDocument
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.terminal import on_one_line
from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.errors import QuestionError, printable

from . import stream

_KUSTOMIZE = "it is a file of kustomize: use the output of `kubectl kustomize`"


@dataclass(frozen=True)
class PlacedText:
    """A sentence about the value at ``path``; about the whole object or file if ``path`` is empty."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


class ManifestError(QuestionError):
    """Raised if files cannot be read or are not manifests. ``faults`` contains a sentence with file and line for each fault."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


@dataclass(frozen=True)
class Manifest:
    """One object of a file, or a document that is not a valid object.

    Attributes:
        faults: why it is not an object with ``apiVersion``, ``kind`` and a name; empty for a valid object.
    """

    document: YamlDocument
    faults: tuple[str, ...]

    @property
    def value(self) -> Any:
        """A JSON object if there are no ``faults``."""
        return self.document.value

    @property
    def name(self) -> str:
        """Kind, namespace and name, as far as they are known."""
        if not isinstance(self.value, dict):
            return ""
        meta = self.value.get("metadata")
        meta = meta if isinstance(meta, dict) else {}
        name = str(meta.get("name") or meta.get("generateName") or "")
        whole = f"{meta['namespace']}/{name}" if meta.get("namespace") else name
        return on_one_line(f"{self.value.get('kind', '')} {whole}".strip())

    @property
    def of_kustomize(self) -> bool:
        """Whether the document is an input of kustomize, such as a kustomization.yaml."""
        return self.faults == (_KUSTOMIZE,)

    def located(self, text: str | PlacedText) -> tuple[str, str]:
        """Returns the place to which a sentence about the object refers, and the sentence."""
        path = text.path if isinstance(text, PlacedText) else _path(text)
        return self.document.place(path), printable(str(text))

    def sentence(self, located: tuple[str, str]) -> str:
        place, text = located
        return f"{place}: {self.name + ': ' if self.name else ''}{text}"


def read(paths: Iterable[Path], unreadable: list[str]) -> list[Manifest]:
    """Reads all files, and the files in folders. Adds a sentence with file and line for each fault to ``unreadable``.

    Raises ``OSError`` for a folder without files.
    """
    return [
        m
        for file in stream.files(list(paths))
        for document in stream.read(file, unreadable)
        for m in _split_lists(document, whole=True)
    ]


def objects(paths: Iterable[Path]) -> list[Manifest]:
    """Like :func:`read`, but raises :class:`ManifestError` with all faults."""
    found = documents(paths)
    if faults := [m.sentence(m.located(text)) for m in found for text in m.faults]:
        raise ManifestError(*faults)
    return found


def documents(paths: Iterable[Path]) -> list[Manifest]:
    """Like :func:`read`, but raises :class:`ManifestError` for files that cannot be read. A document may have ``faults``."""
    faults: list[str] = []
    try:
        found = read(paths, faults)
    except OSError as e:  # an empty folder, or a file deleted in the meantime
        raise ManifestError(f"{e.filename}: {e.strerror or e}") from None
    if faults:
        raise ManifestError(*faults, *(m.sentence(m.located(text)) for m in found for text in m.faults))
    return found


def _split_lists(document: YamlDocument, *, whole: bool) -> Iterator[Manifest]:
    """Splits lists. ``whole`` is True for a document of a file, False for an item of a list."""
    value = document.value
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or not kind.endswith("List") or "items" not in value:
        yield Manifest(document, tuple(_faults(value)))
    elif not whole:
        yield Manifest(
            document,
            ("this list is inside another list, so kubectl does not split it: put its items into the outer list",),
        )
    elif value["items"] is not None and not isinstance(value["items"], list):
        yield Manifest(document, (f"items: {_described(value['items'])} in place of a list",))
    else:
        head = {} if kind == "List" else {"apiVersion": value.get("apiVersion"), "kind": kind.removesuffix("List")}
        for item in document.items("items") if value["items"] else ():
            if isinstance(item.value, dict) and not item.value.get("apiVersion") and not item.value.get("kind"):
                item.value = head | item.value  # in a server's list, only the list has apiVersion and kind
            yield from _split_lists(item, whole=False)


def _faults(value: Any) -> Iterator[str]:
    """Yields the missing and invalid fields that every object needs."""
    if not isinstance(value, dict):
        yield f"{_described(value)} in place of an object with apiVersion and kind"
        return
    if str(value.get("apiVersion")).startswith("kustomize.config.k8s.io/"):
        yield _KUSTOMIZE
        return
    for key in ("apiVersion", "kind"):
        if not isinstance(value.get(key), str):
            yield _lacks("", key, value)
    meta = value.get("metadata")
    if not isinstance(meta, dict):
        yield _lacks("", "metadata", value)
    elif not isinstance(meta.get("name") or meta.get("generateName"), str):
        yield _lacks("metadata", "name", meta)


def _described(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return "nothing" if value is None else "text" if isinstance(value, str) else printable(value)


def _lacks(path: str, key: str, value: JSON) -> str:
    where = f"{path}.{key}" if path else key
    if key in value:
        given = "nothing" if value[key] is None else printable(value[key])
        return f"{where}: {given} in place of {'an object' if key == 'metadata' else 'text'}"
    similar = [str(k) for k in value if did_you_mean(str(k), [key])]
    return f"{path}.{similar[0]}: unknown field, did you mean {key!r}?".lstrip(".") if similar else f"{where}: missing"


def _path(text: str) -> str:
    """Returns the path to which a sentence refers: the text before the first colon, and the parameter that the sentence names."""
    path, _, rest = text.partition(": ")
    if " " in path:
        return ""
    if rest.startswith("parameters") and " " not in (inner := rest.partition(": ")[0]):
        path += f".{inner}"
    named = re.search(r"unknown field '([^']+)'", rest)
    return f"{path}.{named[1]}" if named else path
