"""Finds the parts of a selector that exclude a device, and the device's values that these parts read, to explain a mismatch.

The parts are the operands of the selector's outermost ``&&``. Each part depends only on the device, so evaluated alone it has the
same result as in the whole selector.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_kubeletplugin.resourceapi.quantity import Quantity

from .ast import Expr, children
from .lexer import Source, Token, tokenize
from .mentions import Path, path_of
from .parser import Parser
from .selector import Device, Selector, compile_selector
from .values import CelError, CompileError

_OPEN, _CLOSE = {"(", "[", "{"}, {")", "]", "}"}
_SHOWN = 5  # the number of entries of a map or list that a text contains


@dataclass(frozen=True)
class SelectorPart:
    """A part of a selector that is not true for a device.

    Attributes:
        error: why the evaluation failed; empty if the part is false.
        values: the values of the device that the part reads, each with its name.
        guards: expressions to put before the part. Each tests that the device has a value that the part needs, such as
            ``"memory" in device.capacity["gpu.example.com"]``. Without the value, evaluating the part fails.
    """

    expression: str
    error: str
    values: tuple[tuple[str, str], ...]
    guards: tuple[str, ...] = ()

    @property
    def seen(self) -> str:
        """Returns a text such as ``memory is 16Gi, model is not published``; empty if the part reads no value of the device."""
        return ", ".join(f"{name} is {value}" for name, value in self.values)


def unmet(expression: str, device: Device) -> list[SelectorPart]:
    """Returns the parts that are false for ``device``; if no part is false, the parts whose evaluation fails.

    Returns an empty list if the device matches. Raises :class:`CompileError`.
    """
    false, failed = [], []
    for selector, paths in _parts(expression):
        try:
            if not selector.matches(device):
                false.append(SelectorPart(selector.expression, "", _values(paths, device)))
        except CelError as e:
            failed.append(
                SelectorPart(selector.expression, str(e), _values(paths, device), tuple(_guards(paths, device, str(e))))
            )
    return false or failed


def excludes_driver(expression: str, driver: str) -> bool:
    """Returns whether a selector is false for every device of a driver, because a part that reads only ``device.driver`` is false.

    Raises :class:`CompileError`.
    """
    device = Device(driver, {})
    for selector, paths in _parts(expression):
        if set(paths) == {("driver",)}:
            with contextlib.suppress(CelError):
                if not selector.matches(device):
                    return True
    return False


def without(expression: str, part: str) -> str:
    """Returns the selector without one of its parts."""
    return " && ".join(f"({s.expression})" for s, _ in _parts(expression) if s.expression != part) or "true"


@functools.lru_cache(maxsize=1024)
def _parts(expression: str) -> tuple[tuple[Selector, tuple[Path, ...]], ...]:
    found = []
    for text in _operands(expression):
        try:
            selector = compile_selector(text, list_attributes=True)
        except CompileError:
            return ((compile_selector(expression, list_attributes=True), _paths(expression)),)
        found.append((selector, _paths(text)))
    return tuple(found)


def _operands(expression: str) -> list[str]:
    """Returns the texts of the outermost operands of ``&&``, without enclosing parentheses."""
    tokens = tokenize(Source(expression))[:-1]
    while len(tokens) > 1 and tokens[0].text == "(" and _closes(tokens) == len(tokens) - 1:
        tokens = tokens[1:-1]
    if not tokens:
        return [expression]
    cuts, depth = [], 0
    for i, token in enumerate(tokens):
        if token.kind != "op":
            continue
        depth += (token.text in _OPEN) - (token.text in _CLOSE)
        if depth == 0 and token.text in {"||", "?"}:
            return [_text(expression, tokens)]  # || and ? have lower precedence than &&
        if depth == 0 and token.text == "&&":
            cuts.append(i)
    if not cuts:
        return [_text(expression, tokens)]
    pieces = [tokens[a + 1 : b] for a, b in zip([-1, *cuts], [*cuts, len(tokens)], strict=True)]
    return [text for piece in pieces for text in _operands(_text(expression, piece))]


def _closes(tokens: list[Token]) -> int:
    """Returns the index of the parenthesis that closes the first token's parenthesis."""
    depth = 0
    for i, token in enumerate(tokens):
        if token.kind == "op":
            depth += (token.text in _OPEN) - (token.text in _CLOSE)
            if depth == 0:
                return i
    return -1


def _text(expression: str, tokens: list[Token]) -> str:
    if not tokens:
        return ""
    return expression[tokens[0].pos : tokens[-1].pos + len(tokens[-1].text)]


# --- values that a part reads -------------------------------------------------------------------


def _paths(expression: str) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(_reads(Parser(Source(expression)).parse())))


def _reads(node: Expr) -> Iterator[Path]:
    path = path_of(node)
    if path:
        yield path
        return
    for child in children(node):
        yield from _reads(child)


def _values(paths: tuple[Path, ...], device: Device) -> tuple[tuple[str, str], ...]:
    return tuple((_name(path), _value(path, device.value)) for path in paths)


def _guards(paths: tuple[Path, ...], device: Device, error: str) -> Iterator[str]:
    for kind, domain, name in dict.fromkeys(p[:3] for p in paths if len(p) > 2):
        if error == f"no such key: {name}" and _read((kind, domain, name), device.value) is None:
            yield f"{_shown(name)} in device.{kind}[{_shown(domain)}]"


def _name(path: Path) -> str:
    """Returns ``memory`` for ``device.capacity["gpu.example.com"].memory``, and ``capacity of gpu.example.com`` for the whole map."""
    return path[-1] if len(path) != 2 else f"{path[0]} of {path[1]}"


def _value(path: Path, device: Any) -> str:
    found = _read(path, device)
    return "not published" if found is None else _shown(found)


def _read(path: Path, at: Any) -> Any:
    """Returns the value at a path; None if the path does not exist."""
    for key in path:
        if not isinstance(at, Mapping) or key not in at:
            return None
        at = at[key]
    return at


def _shown(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Quantity():
            return value.text
        case Mapping():
            more = ["..."] if len(value) > _SHOWN else []
            return "{" + ", ".join([*list(value)[:_SHOWN], *more]) + "}"
        case list():
            more = ["..."] if len(value) > _SHOWN else []
            return "[" + ", ".join([*map(_shown, value[:_SHOWN]), *more]) + "]"
        case _:
            return str(value)
