"""The documents of a text, taken apart as kubectl takes a file apart: JSON values, or YAML between lines of ``---``.

Source: k8s.io/apimachinery/pkg/util/yaml of Kubernetes 1.36 and cli-runtime, whose answers are in the tests. kubectl says nothing of
what it leaves out; here that is a fault.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from ...errors import clip, printable
from . import loader

_LINE = re.compile(r"[^\S\n]*\n?")
_BLANK = re.compile(r"[ \t\r\n]*")
_MARK = "\ufeff"  # of byte order: it begins a document as it begins a file, and is text anywhere else
_SEPARATOR = re.compile(r"^---(.*)(?:\n|\Z)", re.MULTILINE)
_STRAY = re.compile(rf"(?:^|(?<=[\r\n])){_MARK}")
_NOTHING = re.compile(r"(?:\s|#.*|\.\.\.(?=\s|\Z))*")
_INDENT = re.compile(r"[ \t]*")
# Which JSON has; no name of a field has it.
_NO_YAML = re.compile(r"\\u[dD][89a-fA-F]..|[^\n -~\xa0-\ud7ff\ue000-\ufffd]")
_SAID = {  # libyaml's words for the mistakes that are made most
    "mapping values are not allowed": "a ':' where none may stand: check the indentation, or put the text in quotes",
    "could not find expected ':'": "a key without ':' behind it, or a text that goes on in the next line without quotes",
    "did not find expected key": "neither a key nor the end of what is above: check the indentation",
    "did not find expected '-' indicator": "no item where the list above goes on: check the indentation",
    "block sequence entries are not allowed": "an item of a list where none may stand: check the indentation",
    "found unhashable key": "a key that is no text; what Helm has between {{ }} must be rendered first",
    "found undefined alias": "an alias without an anchor in this document: put a text that begins with * in quotes",
    "did not find expected ',' or ']'": "a '[' that is not closed",
    "did not find expected ',' or '}'": "a '{' that is not closed",
    "did not find expected node content": "nothing where a value belongs, or a '[' or '{' that is not closed",
    "found unexpected end of stream": "a quote that is not closed",
}
_DIRECTIVE = "did not find expected <document start>"  # and nothing of the document itself stands before


class StreamFault(Exception):
    """What is wrong with a text, and where: line and column, from 1."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(f"{line}:{column}: {text}")


@dataclass
class StreamPart:
    """One document.

    Attributes:
        line: of the text, from 0, where lines of ``node`` are counted from.
        node: where things stand; None where nothing tells.
        twice: lines (from 1, of the whole text) of keys that stand in one mapping again, each with a sentence.
    """

    value: Any
    line: int
    node: Callable[[], yaml.Node | None]
    twice: list[tuple[int, str]] = field(default_factory=list)


def parts(text: str) -> Iterator[StreamPart]:
    """The documents of a text, empty ones too. Raises :class:`StreamFault`, after those before it."""
    line = end = found = 0
    if text.lstrip().startswith("{"):
        try:
            for part, after in _of_json(text):
                yield part
                found, end = found + 1, after
            return
        except (ValueError, RecursionError) as e:
            rest = _LINE.match(text, end)
            assert rest is not None  # nothing is blank too
            same_line = not rest[0].endswith("\n") and not text.startswith(("---", "#"), rest.end())
            if found > 1 or (found and same_line):  # kubectl concludes from two that all of it is JSON
                why = getattr(e, "msg", None) or printable(e)
                raise _at(text, getattr(e, "pos", end), f"no JSON, which all before it is: {why}") from None
            line = text.count("\n", 0, rest.end())
            text = text[rest.end() :]
    for chunk, first in _chunks(text, line):
        yield from _of_yaml(chunk, first)


def _of_json(text: str) -> Iterator[tuple[StreamPart, int]]:
    """Each value, and where it ends. Raises ``ValueError`` and ``RecursionError`` for what is no JSON."""
    again: list[bool] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            again.append(True)
        return out

    decoder = json.JSONDecoder(parse_constant=_finite, parse_float=_finite, parse_int=_integer, object_pairs_hook=once)
    line = end = 0
    while (start := end + len(_BLANK.match(text, end)[0])) < len(text):  # type: ignore[index]
        line += text.count("\n", end, start)
        value, end = decoder.raw_decode(text, start)
        part = StreamPart(value, line, lambda start=start, end=end: _places(text[start:end])[0])  # type: ignore[misc]
        if again:
            part.twice += _again(line, _places(text[start:end])[1])
            again.clear()
        yield part, end
        line += text.count("\n", start, end)


def _finite(text: str) -> float:
    if not math.isfinite(found := float(text)):
        raise ValueError(f"{text} is no number in JSON")
    return found


def _integer(text: str) -> int | float:
    """An integer as the API server stores it: outside 64 bits it is a floating-point number, written without exponent below 1e21."""
    if len(text) <= 20 and -(2**63) <= (value := int(text)) < 2**64:
        return value
    found = _finite(text)
    return int(found) if abs(found) < 1e21 else found


def _again(line: int, twice: list[tuple[str, int, int]]) -> Iterator[tuple[int, str]]:
    """``line``: of the document's beginning, from 0."""
    for key, first, again in twice:
        said = f"the key {key!r} stands here again, first in line {line + first + 1}: one of them is lost"
        yield line + again + 1, said


def _places(text: str) -> tuple[yaml.Node | None, list[tuple[str, int, int]]]:
    """Where things stand in JSON, and its keys that stand twice. YAML has all of it but a few characters."""
    try:
        part = next(loader.parts(_NO_YAML.sub("?", text.replace("\t", " "))))
    except yaml.YAMLError:
        return None, []
    return part.node, part.twice


def _chunks(text: str, line: int) -> Iterator[tuple[str, int]]:
    """What stands between lines of ``---``, and its first line. One with nothing before it is part of what follows, as in kubectl,
    which shows where a byte order mark is behind it."""
    start = 0
    for found in _SEPARATOR.finditer(text):
        if (rest := found[1].strip()) and not rest.startswith("#"):
            raise StreamFault(
                line + text.count("\n", start, found.start()) + 1,
                4,
                f"{clip(printable(rest), 60)!r} stands behind '---', which begins a document only in a line of its own",
            )
        if found.start() > start:
            yield text[start : found.start()], line
            line += text.count("\n", start, found.end())
            start = found.end()
    yield text[start:], line


def _of_yaml(chunk: str, line: int) -> Iterator[StreamPart]:
    chunk = chunk.removeprefix(_MARK)
    if _MARK in chunk and (stray := _stray(chunk)) is not None:
        raise _at(chunk, stray, "a byte order mark within a document, where kubectl takes it for text: delete it", line)
    found = loader.parts(chunk)
    try:
        part = next(found, None)
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise told(chunk, e, line) from None
    if part is None:
        return
    node = part.node
    yield StreamPart(part.value, line, lambda: node, list(_again(line, part.twice)))
    try:
        if next(found, None) is None:
            return
    except (yaml.YAMLError, ValueError, RecursionError):
        pass
    end = _NOTHING.match(chunk, node.end_mark.index)
    assert end is not None  # nothing is blank too
    raise _at(
        chunk, end.end(), "kubectl leaves out what stands here: begin a document with '---' in a line of its own", line
    )


def _stray(chunk: str) -> int | None:
    """The first byte order mark at the beginning of a line that is no part of a text in quotes or a block."""
    marks = [m.start() for m in _STRAY.finditer(chunk)]
    if not marks:
        return None
    inside: list[tuple[int, int]] = []
    try:
        for token in yaml.scan(chunk, loader.Loader):
            if isinstance(token, yaml.ScalarToken) and token.style:
                inside.append((token.start_mark.index, token.end_mark.index))
    except yaml.YAMLError:
        pass  # and so what stands behind it is told of
    return next((m for m in marks if not any(start <= m < end for start, end in inside)), None)


def _at(text: str, index: int, said: str, line: int = 0) -> StreamFault:
    """``line``: of the text's beginning, from 0."""
    return StreamFault(line + text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index), said)


def told(chunk: str, e: Exception, line: int = 0) -> StreamFault:
    """A reader's exception in words for whoever wrote the text; its first line is ``line``, from 0."""
    if isinstance(e, yaml.reader.ReaderError):
        index = len(chunk.encode(errors="surrogatepass")[: e.position].decode(errors="ignore"))
        code = e.character if isinstance(e.character, int) else ord(e.character)
        return _at(chunk, index, f"the character U+{code:04X} may not stand in YAML", line)
    mark = e.problem_mark or e.context_mark if isinstance(e, yaml.MarkedYAMLError) else None
    problem = printable(getattr(e, "problem", None) or getattr(e, "context", None) or e)
    if mark is None:
        return StreamFault(line + 1, 1, f"no YAML: {'nested too deeply' if isinstance(e, RecursionError) else problem}")
    lines = chunk.splitlines() or [""]
    written = lines[min(mark.line, len(lines) - 1)]
    if problem == _DIRECTIVE:
        at = next((i for i in range(mark.line, -1, -1) if lines[i : i + 1] and lines[i].startswith("%")), mark.line)
        return StreamFault(line + at + 1, 1, "no YAML to kubectl, which takes no directives: remove the line")
    if "\t" in _INDENT.match(written)[0]:  # type: ignore[index]
        said = "a tab: YAML is indented with spaces"
    else:
        said = next((words for start, words in _SAID.items() if problem.startswith(start)), problem)
    return StreamFault(line + mark.line + 1, mark.column + 1, f"no YAML: {said}")
