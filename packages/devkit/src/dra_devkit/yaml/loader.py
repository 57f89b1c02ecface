"""Loads YAML as kubectl and the API server do: only JSON values, string keys, and limits that protect the process.

Source: sigs.k8s.io/yaml, which contains go-yaml v2; the tests compare with its results. go-yaml's syntax of numbers differs from
YAML 1.1.

PyYAML composes a text into nodes, which have tags and positions. :class:`Builder` builds the values from the nodes.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from dra_kubeletplugin.base.yaml import FLOAT, INT, NOT_IN_JSON, WORDS

from .documents import YamlDocument

_MAX_DEPTH = 200
# Characters that the aliases of a document may repeat; a value counts as one more. A few lines could otherwise exceed the memory.
_MAX_FROM_ALIASES = 1_000_000
_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"  # the tag of the key ``<<``
_MAX_INT_LENGTH = 70  # characters of a 64 bit integer in base 2


def parts(text: str, of: type[Builder] | None = None, file: str = "", line: int = 0) -> Iterator[YamlDocument]:
    """Yields the documents of a text. At a faulty document, raises ``yaml.YAMLError`` after it has yielded the documents before.

    Args:
        of: how to build the values; by default as kubectl does.
        file: the name of the file that contains the text.
        line: the text's first line in the file, from 0.
    """
    loader = _Composer(text)
    while loader.check_node():
        node, builder = loader.get_node(), (of or Builder)()
        value = builder.build(node)
        yield YamlDocument(file, value, line, lambda node=node: node, builder.duplicate_keys)  # type: ignore[misc]


class _Composer(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Composes nodes with the tags of kubectl. Refuses deep nesting, which would crash libyaml: it is recursive in C."""

    _depth = 0

    def descend_resolver(self, parent: yaml.Node | None, index: Any) -> None:
        self._depth += 1
        if parent is not None and self._depth > _MAX_DEPTH + 1:
            raise _fault(parent, f"nested too deeply: more than {_MAX_DEPTH} levels")

    def ascend_resolver(self) -> None:
        self._depth -= 1

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _TAG + (_plain(value or "")[0] if implicit[0] else "str")
        return _TAG + ("map" if kind is yaml.MappingNode else "seq")


class Builder:
    """Builds the value of one document. Nodes that aliases share have one value."""

    def __init__(self) -> None:
        self.duplicate_keys: list[tuple[str, int, int]] = []
        self._built: dict[int, tuple[Any, int]] = {}  # value and size, by node
        self._open: set[int] = set()
        self._size = self._from_aliases = 0

    def build(self, node: yaml.Node) -> Any:
        key = id(node)
        if key in self._built:
            value, size = self._built[key]
            self._size += size
            self._from_aliases += size
            if self._from_aliases > _MAX_FROM_ALIASES:
                raise _fault(node, f"aliases repeat more than {_MAX_FROM_ALIASES} characters: write the values out")
            return value
        before = self._size
        self._size += 1
        if isinstance(node, yaml.ScalarNode):
            self._size += len(node.value)
            value = self.scalar(node)
        elif key in self._open:
            raise _fault(node, "an alias is inside its own anchor")
        else:
            self._open.add(key)
            value = self._mapping(node) if isinstance(node, yaml.MappingNode) else [self.build(i) for i in node.value]
            self._open.remove(key)
        self._built[key] = value, self._size - before
        return value

    def _mapping(self, node: yaml.MappingNode) -> dict[Any, Any]:
        """Returns the value of a mapping. Puts the pairs that ``<<`` merges before the mapping's own pairs, also in the node."""
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        own: list[tuple[yaml.Node, yaml.Node]] = []
        first: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                merged += self._merged(value)
                continue
            own.append((key, value))
            if isinstance(key, yaml.ScalarNode):
                if key.value in first:
                    self.duplicate_keys.append((key.value, first[key.value], key.start_mark.line))
                first.setdefault(key.value, key.start_mark.line)
        node.value = merged + own
        return {self.key(key): self.build(value) for key, value in node.value}

    def _merged(self, value: yaml.Node) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yields the pairs of a mapping or of several mappings, of which the first one wins."""
        for source in reversed(value.value) if isinstance(value, yaml.SequenceNode) else [value]:
            if not isinstance(source, yaml.MappingNode):
                raise _fault(source, "'<<' merges only mappings")
            self.build(source)
            yield from source.value

    def scalar(self, node: yaml.ScalarNode) -> Any:
        return _scalar(node)

    def key(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise _fault(node, "found unhashable key")
        value = _scalar(node) if not NOT_IN_JSON.fullmatch(node.value) else node.value
        if value is None:
            raise _fault(node, "the key is null: put it in quotes")
        return str(value).lower() if isinstance(value, bool) else str(value)


class PlainBuilder(Builder):
    """Builds values in which every scalar is text, except decimal and hexadecimal integers, decimal fractions, bools and null.

    YAML 1.1 would read the address ``0000:17:00.0`` as a number with base sixty.
    """

    _INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+)")
    _FRACTION = re.compile(r"[-+]?[0-9]+\.[0-9]+")
    _PLAIN_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}

    def scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        if node.style:  # quoted
            return text
        if text in self._PLAIN_WORDS:
            return self._PLAIN_WORDS[text]
        if self._INTEGER.fullmatch(text):
            return int(text, 0)
        return float(text) if self._FRACTION.fullmatch(text) else text

    def key(self, node: yaml.Node) -> Any:
        return self.scalar(node) if isinstance(node, yaml.ScalarNode) else super().key(node)


def _scalar(node: yaml.ScalarNode) -> Any:
    name = node.tag.removeprefix(_TAG)
    if name == "binary":
        try:
            return base64.b64decode(node.value).decode(errors="replace")
        except (binascii.Error, ValueError):
            raise _fault(node, "the value of !!binary is not base64") from None
    if name not in {"null", "bool", "int", "float"}:
        return node.value  # Kubernetes ignores custom tags
    tag, value = _plain(node.value)
    if tag != name and {tag, name} != {"int", "float"}:
        raise _fault(node, f"the text {node.value!r} is not of type {name}")
    if isinstance(value, float) and math.isnan(value):
        raise _fault(node, f"{node.value} is not a number in JSON")
    return value


def _plain(text: str) -> tuple[str, Any]:
    """Returns tag and value of an unquoted text."""
    if text in WORDS:
        return WORDS[text]
    if text == "<<":
        return "merge", text
    if text[0] in "+-.0123456789":
        number = _number(text.replace("_", ""))
        if number is not None:
            return ("int" if isinstance(number, int) else "float"), number
        if NOT_IN_JSON.fullmatch(text):
            return "float", math.nan
    return "str", text


def _number(text: str) -> int | float | None:
    if len(text) <= _MAX_INT_LENGTH and INT.fullmatch(text):
        octal = re.fullmatch(r"([-+]?)0([0-7]+)", text)
        value = int(f"{octal[1]}{octal[2]}", 8) if octal else int(text, 0)
        if -(2**63) <= value < 2**64:
            return value
    if FLOAT.fullmatch(text) and math.isfinite(found := float(text)):
        return int(found) if found.is_integer() and abs(found) < 1e21 else found  # as Go writes it in JSON
    return None


def _fault(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
