"""Loads YAML as kubectl and the API server do: only JSON values, string keys, and limits that protect the process.

Source: sigs.k8s.io/yaml, which contains go-yaml v2; the tests compare with its results. go-yaml's syntax of numbers differs from
YAML 1.1.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import yaml

_MAX_DEPTH = 200
# Limits on the number of values in a document. Below the first, up to 99 % of the values may come from aliases; above the second, up
# to 10 %.
_ALIAS_LIMIT_START, _ALIAS_LIMIT_END = 400_000, 4_000_000
_TAG = "tag:yaml.org,2002:"
_WORDS: dict[str, tuple[str, bool | None]] = dict.fromkeys(("", "~", "null", "Null", "NULL"), ("null", None))
for _boolean, _spellings in ((True, ("y", "yes", "true", "on")), (False, ("n", "no", "false", "off"))):
    _WORDS |= {form: ("bool", _boolean) for word in _spellings for form in (word, word.capitalize(), word.upper())}
_INT = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_IN_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_INT_LENGTH = 70  # characters of a 64 bit integer in base 2


@dataclass
class TextPart:
    """One document.

    Attributes:
        duplicate_keys: duplicate keys of a mapping: the key, and the lines (from 0) of its first and its repeated use.
    """

    node: yaml.Node
    value: Any
    duplicate_keys: list[tuple[str, int, int]] = field(default_factory=list)


def parts(text: str) -> Iterator[TextPart]:
    """Yields the documents of a text. At a faulty document, raises ``yaml.YAMLError`` after yielding those before it."""
    for node, loader in composed(text):
        # Searched before keys are merged, because merged keys would look like duplicates.
        duplicate_keys = list(_duplicate_keys(node, set()))
        yield TextPart(node, loader.construct_document(node), duplicate_keys)


def composed(text: str) -> Iterator[tuple[yaml.Node, Loader]]:
    """Yields the documents as nodes, before values are built. Raises as :func:`parts`."""
    if (deep := _too_deep(text)) is not None:
        mark: Any = deep.start_mark  # libyaml has its own type with the same fields
        raise yaml.MarkedYAMLError(problem=f"nested too deeply: more than {_MAX_DEPTH} levels", problem_mark=mark)
    loader = Loader(text)
    while loader.check_node():
        node = loader.get_node()
        _check_aliases(node)
        yield node, loader


class Dumper(yaml.SafeDumper):
    """Quotes text that Kubernetes or PyYAML would read as a value of another type. Writes a text of several lines as a block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if is_text(text) else "'"
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


Dumper.add_representer(str, _text)


def dump(value: object, width: int = 140, *, unicode: bool = False) -> str:
    """Returns the value as YAML that Kubernetes and PyYAML read as this value. Without ``unicode``, the text is ASCII."""
    text: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=unicode, width=width)
    return text


def is_text(text: str) -> bool:
    """Whether the text is a string also without quotes."""
    return _plain(text)[0] == "str"


def _too_deep(text: str) -> yaml.Event | None:
    """Returns the event where a text is nested too deeply. Such a text would crash the process, because libyaml is recursive in C."""
    marks = max((sum(map(line.count, "-?:")) + len(line) - len(line.lstrip()) for line in text.splitlines()), default=0)
    if text.count("[") + text.count("{") + marks <= _MAX_DEPTH:
        return None  # the usual case, decided fast
    depth = 0
    try:
        for event in yaml.parse(text, Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                return event
    except yaml.YAMLError:
        pass  # the fault is reported when the document is loaded
    return None


def _plain(text: str) -> tuple[str, Any]:
    """Returns tag and value of an unquoted text."""
    if text in _WORDS:
        return _WORDS[text]
    if text == "<<":
        return "merge", text
    if text[0] in "+-.0123456789":
        number = _number(text.replace("_", ""))
        if number is not None:
            return ("int" if isinstance(number, int) else "float"), number
        if _NOT_IN_JSON.fullmatch(text):
            return "float", math.nan
    return "str", text


def _number(text: str) -> int | float | None:
    if len(text) <= _MAX_INT_LENGTH and _INT.fullmatch(text):
        octal = re.fullmatch(r"([-+]?)0([0-7]+)", text)
        value = int(f"{octal[1]}{octal[2]}", 8) if octal else int(text, 0)
        if -(2**63) <= value < 2**64:
            return value
    if _FLOAT.fullmatch(text) and math.isfinite(found := float(text)):
        return int(found) if found.is_integer() and abs(found) < 1e21 else found  # as Go writes it in JSON
    return None


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loads one document; :mod:`.stream` splits files with several."""

    yaml_constructors: ClassVar[dict[Any, Any]] = {}
    yaml_multi_constructors: ClassVar[dict[Any, Any]] = {}

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _TAG + (_plain(value or "")[0] if implicit[0] else "str")
        return _TAG + ("map" if kind is yaml.MappingNode else "seq")

    def construct_scalar(self, node: yaml.ScalarNode) -> Any:
        name = node.tag.removeprefix(_TAG)
        if name == "binary":
            return _decoded(node)
        if name not in {"null", "bool", "int", "float"}:
            return node.value  # Kubernetes ignores custom tags
        tag, value = _plain(node.value)
        if tag != name and {tag, name} != {"int", "float"}:
            raise _fault(node, f"the text {node.value!r} is not of type {name}")
        if isinstance(value, float) and math.isnan(value):
            raise _fault(node, f"{node.value} is not a number in JSON")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        return {_key(self, key): self.construct_object(value, deep=deep) for key, value in node.value}


def _key(loader: Loader, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _fault(node, "found unhashable key")
    value = loader.construct_scalar(node) if not _NOT_IN_JSON.fullmatch(node.value) else node.value
    if value is None:
        raise _fault(node, "the key is null: put it in quotes")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _any(loader: Loader, suffix: str, node: yaml.Node) -> Iterator[Any]:
    if isinstance(node, yaml.MappingNode):
        made: dict[Hashable, Any] = {}
        yield made
        made.update(loader.construct_mapping(node))
    elif isinstance(node, yaml.SequenceNode):
        items: list[Any] = []
        yield items
        items.extend(loader.construct_sequence(node))
    elif isinstance(node, yaml.ScalarNode):
        yield loader.construct_scalar(node)


Loader.add_multi_constructor("", _any)


def _decoded(node: yaml.ScalarNode) -> str:
    try:
        return base64.b64decode(node.value).decode(errors="replace")
    except (binascii.Error, ValueError):
        raise _fault(node, "the value of !!binary is not base64") from None


def _fault(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _duplicate_keys(node: yaml.Node, seen: set[int]) -> Iterator[tuple[str, int, int]]:
    """Yields duplicate keys of mappings, because all values of such a key but the last would be lost."""
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _duplicate_keys(item, seen)
        return
    first: dict[str, int] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
            line = key.start_mark.line
            if key.value in first:
                yield key.value, first[key.value], line
            first.setdefault(key.value, line)
        yield from _duplicate_keys(value, seen)


def _check_aliases(node: yaml.Node) -> None:
    """Raises an error in the same cases as go-yaml: a few lines of aliases can expand beyond the memory, or contain themselves."""
    known: dict[int, int] = {}
    values = _values(node, known)
    allowed = 0.99 - 0.89 * min(max((values - _ALIAS_LIMIT_START) / (_ALIAS_LIMIT_END - _ALIAS_LIMIT_START), 0), 1)
    if values > 1000 and values - len(known) > max(100, allowed * values):
        raise _fault(node, f"aliases expand {len(known)} values to {values}: write the values out")


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Returns the number of values of a node with aliases expanded. Raises for an alias inside its own target."""
    if id(node) not in known:
        known[id(node)] = 0  # marks a node whose count is in progress
        inner = (part for pair in node.value for part in pair) if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + (0 if isinstance(node, yaml.ScalarNode) else sum(_values(part, known) for part in inner))
    elif not known[id(node)]:
        raise _fault(node, "an alias is inside its own anchor")
    return known[id(node)]
