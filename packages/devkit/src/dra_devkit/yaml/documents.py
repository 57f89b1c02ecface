"""One document of a file, which knows the line of each value in it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml


@dataclass
class YamlDocument:
    """One document, or one item of a list.

    Attributes:
        first_line: the line of the file, from 0, at which the lines of ``node`` start.
        find_node: returns the YAML node with the positions; None if the positions are unknown.
        duplicate_keys: duplicate keys of mappings: the key, and the lines of its first and its repeated use, from ``first_line``.
    """

    file: str
    value: Any
    first_line: int
    find_node: Callable[[], yaml.Node | None]
    duplicate_keys: list[tuple[str, int, int]] = field(default_factory=list)

    @functools.cached_property
    def node(self) -> yaml.Node | None:
        """The YAML node with the positions. Computed on demand, because most files have no faults."""
        return self.find_node()

    @property
    def faults(self) -> list[tuple[str, str]]:
        """Place and message of each duplicate key."""
        start = self.first_line + 1
        return [
            (
                f"{self.file}:{start + again}",
                f"the key {key!r} was already used in line {start + first}: one of the values is lost",
            )
            for key, first, again in self.duplicate_keys
        ]

    def place(self, path: str = "") -> str:
        """Returns ``file:line`` of the value at ``path``, such as ``spec.devices.requests[0].name``, or of its nearest existing parent."""
        return f"{self.file}:{self.first_line + _line_of(self.node, path) + 1}"

    def items(self, key: str) -> list[YamlDocument]:
        """Returns the items of the list at a key. A duplicate key belongs to the last item that begins before its line."""

        @functools.cache
        def nodes() -> list[yaml.Node | None]:
            entries = self.node.value if isinstance(self.node, yaml.MappingNode) else ()
            node = next((v for k, v in reversed(entries) if k.value == key), self.node)
            return node.value if isinstance(node, yaml.SequenceNode) else [node] * len(self.value[key])

        out = [
            YamlDocument(self.file, value, self.first_line, lambda i=i: nodes()[i])  # type: ignore[misc]
            for i, value in enumerate(self.value[key])
        ]
        for duplicate in self.duplicate_keys if out else ():
            before = [d for d in out if d.node is not None and d.node.start_mark.line <= duplicate[2]]
            (before or out[:1])[-1].duplicate_keys.append(duplicate)
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
