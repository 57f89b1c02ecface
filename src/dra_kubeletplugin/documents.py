"""YAML and JSON as people write them: documents that know where each of their values stands, and what is wrong with a text in a
sentence with file, line and column."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from . import kubectl_yaml
from .errors import printable

STDIN = Path("-")
_SUFFIXES = (".yaml", ".yml", ".json")
_BLANK = re.compile(r"[ \t\r\n]*")
# Which JSON has; no name of a field has it.
_NO_YAML = re.compile(r"\\u[dD][89a-fA-F]..|[^\n -~\xa0-\ud7ff\ue000-\ufffd]")
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


@dataclass(frozen=True)
class Document:
    """One document, or one item of a list.

    Attributes:
        twice: lines of keys that stand in one mapping again, each with a sentence.
    """

    file: str
    value: Any
    node: yaml.Node | None = field(repr=False)
    twice: list[tuple[int, str]] = field(default_factory=list)

    @property
    def faults(self) -> list[tuple[str, str]]:
        """Keys that stand in one mapping again: place and sentence."""
        return [(f"{self.file}:{line}", text) for line, text in self.twice]

    def place(self, path: str = "") -> str:
        """``file:line`` of the value at ``path``, such as ``spec.devices.requests[0].name``; of the innermost that there is."""
        return f"{self.file}:{_mark(self.node, path) + 1}"

    def items(self, key: str) -> list[Document]:
        """Those of the list that stands at a key. What is said of a line goes to the last item that begins before it."""
        entries = self.node.value if isinstance(self.node, yaml.MappingNode) else ()
        node = next((v for k, v in reversed(entries) if k.value == key), self.node)
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node] * len(self.value[key])
        out = [Document(self.file, value, inner) for value, inner in zip(self.value[key], nodes, strict=True)]
        for line, text in self.twice if out else ():
            before = [d for d in out if d.node is not None and d.node.start_mark.line < line]
            (before or out[:1])[-1].twice.append((line, text))
        return out


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
    out: list[Document] = []
    try:
        for part in _of_json(text) or kubectl_yaml.parts(text):
            if part.value is not None:
                out.append(Document(name, part.value, part.node, part.twice))
    except yaml.MarkedYAMLError as e:
        faults.append(_told(name, text, e))
    except yaml.reader.ReaderError as e:
        line = text[: e.position].count("\n") + 1
        faults.append(f"{name}:{line}: the character {e.character!r} may not stand in YAML")
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        why = "nested too deeply" if isinstance(e, RecursionError) else printable(e)
        faults.append(f"{name}: no YAML: {why}")
    return out


def _of_json(text: str) -> list[kubectl_yaml.Part]:
    """Documents of JSON, one after the other as kubectl takes them; none where it is no JSON. YAML has all of it but a few characters,
    and tells where things stand."""
    out: list[kubectl_yaml.Part] = []
    if not text.lstrip().startswith("{"):
        return out
    decoder = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)
    line = end = 0
    try:
        while (start := end + len(_BLANK.match(text, end)[0])) < len(text):  # type: ignore[index]  # nothing is blank too
            line += text.count("\n", end, start)
            value, end = decoder.raw_decode(text, start)
            out.append(_with_places(text[start:end], line, value))
            line += text.count("\n", start, end)
    except (ValueError, RecursionError):
        return []
    return out


def _finite(text: str) -> float:
    if not math.isfinite(found := float(text)):
        raise ValueError(text)
    return found


def _with_places(text: str, line: int, value: Any) -> kubectl_yaml.Part:
    """``line``: of the text's beginning, from 0."""
    plain = "\n" * line + _NO_YAML.sub("?", text.replace("\t", " "))
    with contextlib.suppress(yaml.YAMLError):
        for part in kubectl_yaml.parts(plain):
            return kubectl_yaml.Part(part.node, value, part.twice)
    return kubectl_yaml.Part(None, value)


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
            fits = name and path.startswith(written) and (not after or after[0] in ".[")
            if fits and len(name) >= longest:  # of one that was merged, its own
                found, longest = (key.start_mark.line, value, after), len(name)
    return found
