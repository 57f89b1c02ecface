"""YAML and JSON as people write them: documents that know where each of their values stands, and what is wrong with a text in a
sentence with file, line and column."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .errors import describe, printable

STDIN = Path("-")
_DEEPEST = 200
_SUFFIXES = (".yaml", ".yml", ".json")
_SAID = {  # libyaml's words for the mistakes that are made most
    "mapping values are not allowed": "a ':' where none may stand: check the indentation, or put the text in quotes",
    "could not find expected ':'": "a key without ':' behind it, or a text that goes on in the next line without quotes",
    "did not find expected key": "neither a key nor the end of what is above: check the indentation",
    "did not find expected '-' indicator": "no item where the list above goes on: check the indentation",
    "block sequence entries are not allowed": "an item of a list where none may stand: check the indentation",
    "found unhashable key": "a key that is no text; what Helm has between {{ }} must be rendered first",
    "found undefined alias": "an alias without an anchor: put a text that begins with * in quotes",
    "did not find expected ',' or ']'": "a '[' that is not closed",
    "did not find expected ',' or '}'": "a '{' that is not closed",
    "did not find expected node content": "nothing where a value belongs, or a '[' or '{' that is not closed",
    "found unexpected end of stream": "a quote that is not closed",
}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Leaves times as text, as Kubernetes does."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
    for first, found in _Loader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Document:
    """One document, or one item of a list.

    Attributes:
        faults: keys that stand twice, each a sentence with its place.
    """

    file: str
    value: Any
    node: yaml.Node | None = field(repr=False)
    faults: list[str] = field(default_factory=list)

    def place(self, path: str = "") -> str:
        """``file:line`` of the value at ``path``, such as ``spec.devices.requests[0].name``; of the innermost that there is."""
        return f"{self.file}:{_mark(self.node, path) + 1}"

    def item(self, key: str, index: int) -> Document:
        """An item of a list that stands at a key."""
        entries = self.node.value if isinstance(self.node, yaml.MappingNode) else ()
        node = next((v for k, v in entries if k.value == key), None)
        inner = node.value[index] if isinstance(node, yaml.SequenceNode) else self.node
        return Document(self.file, self.value[key][index], inner)


def files(paths: list[Path]) -> Iterator[Path]:
    """Each file; of a folder, those in it that end in .yaml, .yml or .json. Raises ``FileNotFoundError`` for a folder without one."""
    for path in paths:
        if path == STDIN or not path.is_dir():
            yield path
            continue
        found = sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES and p.is_file())
        if not found:
            raise FileNotFoundError(0, f"no file in it ends in {', '.join(_SUFFIXES)}", str(path))
        yield from found


def read(path: Path, faults: list[str]) -> list[Document]:
    """The documents of a file that have something in them. What is wrong with it is added to ``faults``; documents before that are
    read."""
    name = "standard input" if path == STDIN else str(path)
    try:
        raw = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        why = "it is UTF-16" if raw[:2] in {b"\xff\xfe", b"\xfe\xff"} else f"byte 0x{raw[e.start]:02x} is no UTF-8"
        line = raw[: e.start].count(b"\n") + 1
        faults.append(f"{name}:{line}: {why}: save the file as UTF-8")
        return []
    except OSError as e:
        faults.append(f"{name}: {e.strerror or e}")
        return []
    if text.lstrip()[:1] in {"{", "["}:
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(text)
            text = text.replace("\t", " ")  # JSON may be indented so, YAML may not
    out: list[Document] = []
    try:
        if too_deep(text):
            faults.append(f"{name}: no YAML: nested too deeply")
            return []
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            if _holds_itself(node, {}):
                faults.append(
                    f"{name}:{node.start_mark.line + 1}: no YAML for an object: an alias stands within what it names"
                )
                continue
            value = loader.construct_document(node)
            if value is not None:
                out.append(Document(name, value, node, list(_twice(name, node, set()))))
    except yaml.MarkedYAMLError as e:
        faults.append(_told(name, text, e))
    except yaml.reader.ReaderError as e:
        line = text[: e.position].count("\n") + 1
        faults.append(f"{name}:{line}: the character {e.character!r} may not stand in YAML")
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as e:
        why = "nested too deeply" if isinstance(e, RecursionError) else printable(describe(e))
        faults.append(f"{name}: no YAML: {why}")
    return out


def too_deep(text: str) -> bool:
    """Whether a text is nested more deeply than objects are: libyaml, which is recursive in C, would end the process."""
    brackets = text.count("[") + text.count("{")
    if (
        brackets + max((len(line) - len(line.lstrip()) + line.count("- ") for line in text.splitlines()), default=0)
        <= _DEEPEST
    ):
        return False  # nearly always, and quickly seen
    depth = 0
    with contextlib.suppress(yaml.YAMLError):  # which is told when it is read
        for event in yaml.parse(text, _Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                return True
    return False


def _told(name: str, text: str, e: yaml.MarkedYAMLError) -> str:
    mark = e.problem_mark or e.context_mark
    problem = printable(e.problem or e.context or e)
    if mark is None:
        return f"{name}: no YAML: {problem}"
    lines = text.splitlines() or [""]
    line = lines[min(mark.line, len(lines) - 1)]
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent:
        said = "a tab: YAML is indented with spaces"
    else:
        said = next((words for start, words in _SAID.items() if problem.startswith(start)), problem)
    return f"{name}:{mark.line + 1}:{mark.column + 1}: no YAML: {said}"


def _twice(name: str, node: yaml.Node, seen: set[int]) -> Iterator[str]:
    """Keys that stand in one mapping more than once: all but the last would be lost."""
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _twice(name, item, seen)
        return
    first: dict[str, int] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
            line = key.start_mark.line + 1
            if key.value in first:
                yield f"{name}:{line}: the key {key.value!r} stands here again, first in line {first[key.value]}: one of them is lost"
            first.setdefault(key.value, line)
        yield from _twice(name, value, seen)


def _holds_itself(node: yaml.Node, ended: dict[int, bool]) -> bool:
    """Whether an alias makes a value endless. ``ended``: of nodes that were begun, whether all in them is seen."""
    if isinstance(node, yaml.ScalarNode):
        return False
    if id(node) in ended:
        return not ended[id(node)]
    ended[id(node)] = False
    inner = (part for pair in node.value for part in pair) if isinstance(node, yaml.MappingNode) else node.value
    found = any(_holds_itself(part, ended) for part in inner)
    ended[id(node)] = True
    return found


def _mark(node: yaml.Node | None, path: str) -> int:
    """The line, from 0, where a path leads to."""
    line = node.start_mark.line if node is not None else 0
    while path and node is not None:
        path = path.removeprefix(".")
        step = _step(node, path)
        if step is None:
            break
        line, node, path = step
    return int(line)


def _step(node: yaml.Node, path: str) -> tuple[int, yaml.Node, str] | None:
    """One step along a path: the line, the value, and the rest of the path."""
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
        for written in (name, f"[{name}]"):  # keys may have dots in them: the longest that fits
            after = path[len(written) :]
            if name and path.startswith(written) and (not after or after[0] in ".[") and len(name) > longest:
                found, longest = (key.start_mark.line, value, after), len(name)
    return found
