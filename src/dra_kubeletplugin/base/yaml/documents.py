"""Reads files as YAML and JSON documents. A document knows the line of each value; a fault has file, line and column."""

from __future__ import annotations

import codecs
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from . import stream

STDIN = Path("-")
_SUFFIXES = (".yaml", ".yml", ".json")


class YamlDocument:
    """One document, or one item of a list.

    Attributes:
        duplicate_keys: duplicate keys of mappings: the line and the message of each.
    """

    def __init__(
        self,
        file: str,
        value: Any,
        line: int,
        node: Callable[[], yaml.Node | None],
        duplicate_keys: Iterable[tuple[int, str]] = (),
    ) -> None:
        self.file, self.value, self._line, self._find = file, value, line, node
        self.duplicate_keys = list(duplicate_keys)

    @functools.cached_property
    def node(self) -> yaml.Node | None:
        """The YAML node with the positions, if known. Computed on demand, because most files have no faults."""
        return self._find()

    @property
    def faults(self) -> list[tuple[str, str]]:
        """Place and message of each duplicate key."""
        return [(f"{self.file}:{line}", text) for line, text in self.duplicate_keys]

    def place(self, path: str = "") -> str:
        """Returns ``file:line`` of the value at ``path``, such as ``spec.devices.requests[0].name``, or of its nearest existing parent."""
        return f"{self.file}:{self._line + _line_of(self.node, path) + 1}"

    def items(self, key: str) -> list[YamlDocument]:
        """Returns the items of the list at a key. A duplicate key belongs to the last item that begins before its line."""

        @functools.cache
        def nodes() -> list[yaml.Node | None]:
            entries = self.node.value if isinstance(self.node, yaml.MappingNode) else ()
            node = next((v for k, v in reversed(entries) if k.value == key), self.node)
            return node.value if isinstance(node, yaml.SequenceNode) else [node] * len(self.value[key])

        out = [
            YamlDocument(self.file, value, self._line, lambda i=i: nodes()[i])  # type: ignore[misc]
            for i, value in enumerate(self.value[key])
        ]
        for line, text in self.duplicate_keys if out else ():
            before = [d for d in out if d.node is not None and self._line + d.node.start_mark.line < line]
            (before or out[:1])[-1].duplicate_keys.append((line, text))
        return out


def files(paths: list[Path]) -> Iterator[Path]:
    """Yields each file, and for a folder its .yaml, .yml and .json files. Raises ``FileNotFoundError`` for a folder without any."""
    for path in paths:
        if path == STDIN or not path.is_dir():
            yield path
            continue
        found = sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES and p.is_file())
        if not found:
            raise FileNotFoundError(0, f"no file in it ends in {', '.join(_SUFFIXES)}", str(path))
        yield from found


def read(path: Path, faults: list[str]) -> list[YamlDocument]:
    """Returns the non-empty documents of a file. Faults are added to ``faults``; documents before a fault are returned."""
    name = "standard input" if path == STDIN else str(path)
    try:
        raw = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
    except OSError as e:
        faults.append(f"{name}: {e.strerror or e}")
        return []
    encoding = "UTF-16" if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "UTF-8"
    try:
        text = raw.decode("utf-8-sig" if encoding == "UTF-8" else encoding)
    except UnicodeDecodeError as e:
        line = raw[: e.start].count(b"\n") + 1
        faults.append(f"{name}:{line}: byte 0x{raw[e.start]:02x} is not {encoding}: save the file as UTF-8")
        return []
    out: list[YamlDocument] = []
    try:
        for part in stream.parts(text):
            if part.value is not None:
                out.append(YamlDocument(name, part.value, part.line, part.node, part.duplicate_keys))
    except stream.StreamFault as e:
        faults.append(f"{name}:{e}")
    return out


def _line_of(node: yaml.Node | None, path: str) -> int:
    """Returns the line, from 0, of the value at a path."""
    line = node.start_mark.line if node is not None else 0
    while path and node is not None:
        path = path.removeprefix(".")
        step = _step(node, path)
        if step is None:
            break
        line, node, path = step
    return int(line)


def _step(node: yaml.Node, path: str) -> tuple[int, yaml.Node, str] | None:
    """Resolves the first step of a path. Returns the line, the value, and the rest of the path; None if the value does not exist."""
    if isinstance(node, yaml.SequenceNode):
        index, bracket, rest = path[1:].partition("]")
        if path[:1] == "[" and bracket and index.isdigit() and int(index) < len(node.value):
            inner = node.value[int(index)]
            return inner.start_mark.line, inner, rest
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    found: tuple[int, yaml.Node, str] | None = None
    longest = -1
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        for written in (name, f"[{name}]"):  # keys may contain dots: the longest match wins
            after = path[len(written) :]
            fits = name and path.startswith(written) and (not after or after[0] in ".[")
            if fits and len(name) >= longest:  # after a merge, the mapping's own key wins
                found, longest = (key.start_mark.line, value, after), len(name)
    return found
