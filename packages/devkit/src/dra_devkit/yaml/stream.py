"""Reads files, and splits them into documents as kubectl does: JSON values, or YAML between lines of ``---``.

Source: k8s.io/apimachinery/pkg/util/yaml of Kubernetes 1.36 and cli-runtime; the tests compare with their results. kubectl
silently ignores some text; this module reports such text as a fault.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dra_devkit.yaml import loader
from dra_devkit.yaml.documents import YamlDocument
from dra_devkit.yaml.loader import Builder
from dra_kubeletplugin.base.files import read_input
from dra_kubeletplugin.errors import clip, printable

STDIN = Path("-")
_LARGEST = 256 << 20  # bytes of a file; the objects of a large cluster fit
_SUFFIXES = (".yaml", ".yml", ".json")
_LINE = re.compile(r"[^\S\n]*\n?")
_BLANK = re.compile(r"[ \t\r\n]*")
_MARK = "\ufeff"  # byte order mark: ignored at the start of a document, text anywhere else
_SEPARATOR = re.compile(r"^---(.*)(?:\n|\Z)", re.MULTILINE)
_STRAY = re.compile(rf"(?:^|(?<=[\r\n])){_MARK}")
_NOTHING = re.compile(r"(?:\s|#.*|\.\.\.(?=\s|\Z))*")
_INDENT = re.compile(r"[ \t]*")
# Text that is valid in JSON but not in YAML. Names of fields never contain it.
_JSON_ONLY = re.compile(r"\\u[dD][89a-fA-F]..|[^\n -~\xa0-\ud7ff\ue000-\ufffd]")
_MESSAGES = {  # texts of libyaml for the most common mistakes
    "mapping values are not allowed": "a ':' in a place where none is allowed: check the indentation, or put the text in quotes",
    "could not find expected ':'": "a key without ':' after it, or a text that continues in the next line without quotes",
    "did not find expected key": "this line is neither a key nor the end of the mapping above: check the indentation",
    "did not find expected '-' indicator": "this line is not an item of the list above: check the indentation",
    "block sequence entries are not allowed": "a list item in a place where none is allowed: check the indentation",
    "found unhashable key": "a key is not text; a Helm template with {{ }} must be rendered first",
    "found undefined alias": "an alias without an anchor in this document: put a text that begins with * in quotes",
    "did not find expected ',' or ']'": "a '[' that is not closed",
    "did not find expected ',' or '}'": "a '{' that is not closed",
    "did not find expected node content": "a value is missing, or a '[' or '{' is not closed",
    "found unexpected end of stream": "a quote that is not closed",
    "exceeded maximum nesting depth": "nested too deeply",  # from libyaml 0.2.6 on
}
_DIRECTIVE = "did not find expected <document start>"  # libyaml's text for a %YAML or %TAG directive


class StreamFault(Exception):
    """A fault of a text, with line and column from 1."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(f"{line}:{column}: {text}")


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


def read_one(path: Path, faults: list[str], of: type[Builder] = Builder) -> YamlDocument | None:
    """Like :func:`read`, for a file with one document. A duplicate key and a second document are faults. None if the file is empty."""
    return _only(read(path, faults, of), faults)


def parse_one(text: str, name: str, faults: list[str], of: type[Builder]) -> YamlDocument | None:
    """Like :func:`read_one`, for a text with a name."""
    return _only(_documents(text, name, faults, of), faults)


def _only(found: list[YamlDocument], faults: list[str]) -> YamlDocument | None:
    faults += [": ".join(fault) for document in found for fault in document.faults]
    if len(found) > 1:
        faults.append(f"{found[1].place()}: a second document: put everything into one document")
    return found[0] if found else None


def name_of(path: Path) -> str:
    """Returns the name of a given file in messages."""
    return "standard input" if path == STDIN else str(path)


def read(path: Path, faults: list[str], of: type[Builder] = Builder) -> list[YamlDocument]:
    """Returns the non-empty documents of a file. Faults are added to ``faults``; documents before a fault are returned.

    Args:
        of: how to build the values.
    """
    name = name_of(path)
    try:
        raw = sys.stdin.buffer.read() if path == STDIN else read_input(path, _LARGEST)
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
    return _documents(text, name, faults, of)


def _documents(text: str, name: str, faults: list[str], of: type[Builder]) -> list[YamlDocument]:
    out: list[YamlDocument] = []
    try:
        for document in parts(text, name, of):
            if document.value is not None:
                out.append(document)
    except StreamFault as e:
        faults.append(f"{name}:{e}")
    return out


def parts(text: str, file: str = "", of: type[Builder] = Builder) -> Iterator[YamlDocument]:
    """Yields the documents of a text, also empty ones. Raises :class:`StreamFault` after the documents before the fault."""
    line = end = found = 0
    if text.lstrip().startswith("{"):
        try:
            for part, after in _json_parts(text, file):
                yield part
                found, end = found + 1, after
            return
        except (ValueError, RecursionError) as e:
            rest = _LINE.match(text, end)
            assert rest is not None  # matches an empty text too
            same_line = not rest[0].endswith("\n") and not text.startswith(("---", "#"), rest.end())
            if found > 1 or (found and same_line):  # after two JSON values, kubectl expects only JSON
                why = getattr(e, "msg", None) or printable(e)
                raise _at(text, getattr(e, "pos", end), f"not JSON, but all text before it is JSON: {why}") from None
            line = text.count("\n", 0, rest.end())
            text = text[rest.end() :]
    for chunk, first in _chunks(text, line):
        yield from _yaml_parts(chunk, first, file, of)


def _json_parts(text: str, file: str) -> Iterator[tuple[YamlDocument, int]]:
    """Yields each value and its end. Raises ``ValueError`` and ``RecursionError`` for invalid JSON."""
    again: list[bool] = []

    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            again.append(True)
        return out

    decoder = json.JSONDecoder(
        parse_constant=_finite, parse_float=_finite, parse_int=_integer, object_pairs_hook=build_object
    )
    line = end = 0
    while (start := end + len(_BLANK.match(text, end)[0])) < len(text):  # type: ignore[index]
        line += text.count("\n", end, start)
        value, end = decoder.raw_decode(text, start)
        part = YamlDocument(file, value, line, lambda start=start, end=end: _places(text[start:end]).node)  # type: ignore[misc]
        if again:
            part.duplicate_keys = _places(text[start:end]).duplicate_keys
            again.clear()
        yield part, end
        line += text.count("\n", start, end)


def _finite(text: str) -> float:
    if not math.isfinite(found := float(text)):
        raise ValueError(f"{text} is not a number in JSON")
    return found


def _integer(text: str) -> int | float:
    """Returns an integer as the API server stores it: beyond 64 bits as a floating-point number.

    Below 1e21 the number is written without an exponent.
    """
    if len(text) <= 20 and -(2**63) <= (value := int(text)) < 2**64:
        return value
    found = _finite(text)
    return int(found) if abs(found) < 1e21 else found


def _places(text: str) -> YamlDocument:
    """Returns a JSON text as YAML, with its positions and duplicate keys. YAML accepts all of JSON, except for a few characters."""
    try:
        return next(loader.parts(_JSON_ONLY.sub("?", text.replace("\t", " "))))
    except yaml.YAMLError:
        return YamlDocument("", None, 0, lambda: None)


def _chunks(text: str, line: int) -> Iterator[tuple[str, int]]:
    """Yields each text between lines of ``---``, and the number of its first line.

    A separator with no text before it is part of the next document, as in kubectl. A byte order mark after such a separator
    is therefore not at the start of its document.
    """
    start = 0
    for found in _SEPARATOR.finditer(text):
        if (rest := found[1].strip()) and not rest.startswith("#"):
            raise StreamFault(
                line + text.count("\n", start, found.start()) + 1,
                4,
                f"{clip(printable(rest), 60)!r} follows '---', which begins a document only on a line of its own",
            )
        if found.start() > start:
            yield text[start : found.start()], line
            line += text.count("\n", start, found.end())
            start = found.end()
    yield text[start:], line


def _yaml_parts(chunk: str, line: int, file: str, of: type[Builder]) -> Iterator[YamlDocument]:
    chunk = chunk.removeprefix(_MARK)
    if stray := _STRAY.search(chunk):
        raise _at(
            chunk, stray.start(), "a byte order mark inside a document, which kubectl reads as text: delete it", line
        )
    found = loader.parts(chunk, of, file, line)
    try:
        part = next(found, None)
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise _parse_fault(chunk, e, line) from None
    if part is None:
        return
    yield part
    try:
        if next(found, None) is None:
            return
    except (yaml.YAMLError, ValueError, RecursionError):
        pass
    assert part.node is not None
    end = _NOTHING.match(chunk, part.node.end_mark.index)
    assert end is not None  # matches an empty text too
    raise _at(chunk, end.end(), "kubectl ignores this text: begin a document with '---' on a line of its own", line)


def _at(text: str, index: int, message: str, line: int = 0) -> StreamFault:
    """Returns a fault at the character ``index`` of the text. ``line`` is the text's first line, from 0."""
    return StreamFault(line + text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index), message)


def _parse_fault(chunk: str, e: Exception, line: int) -> StreamFault:
    """Converts a parser's exception into a message for the author of the text. ``line`` is the text's first line, from 0."""
    if isinstance(e, yaml.reader.ReaderError):
        index = len(chunk.encode(errors="surrogatepass")[: e.position].decode(errors="ignore"))
        code = e.character if isinstance(e.character, int) else ord(e.character)
        return _at(chunk, index, f"the character U+{code:04X} is not allowed in YAML", line)
    mark = e.problem_mark or e.context_mark if isinstance(e, yaml.MarkedYAMLError) else None
    problem = printable(getattr(e, "problem", None) or getattr(e, "context", None) or e)
    if mark is None:
        return StreamFault(
            line + 1, 1, f"not valid YAML: {'nested too deeply' if isinstance(e, RecursionError) else problem}"
        )
    lines = chunk.splitlines() or [""]
    written = lines[min(mark.line, len(lines) - 1)]
    if problem == _DIRECTIVE:
        at = next((i for i in range(mark.line, -1, -1) if lines[i : i + 1] and lines[i].startswith("%")), mark.line)
        return StreamFault(line + at + 1, 1, "kubectl does not accept YAML directives: remove the line")
    if "\t" in _INDENT.match(written)[0]:  # type: ignore[index]
        message = "a tab: YAML is indented with spaces"
    else:
        message = next((words for start, words in _MESSAGES.items() if problem.startswith(start)), problem)
    return StreamFault(line + mark.line + 1, mark.column + 1, f"not valid YAML: {message}")
