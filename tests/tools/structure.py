"""Fails when a class name occurs twice in a package, or when a constructor has more than seven parameters.

Keyword-only parameters count, and `self` does not. Dataclasses and msgspec structs have no explicit constructor, so they are exempt.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.tools.tree import ROOT, modules, package_of

MAX_PARAMETERS = 7
ALLOWED_DUPLICATES: Mapping[str, str] = {
    "Device": "public in dra_kubeletplugin, for drivers, and in dra_kubeletplugin.metadata, for programs in containers, which import one"
}
"""Class names that may occur twice in a package, each with the reason."""


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield path.relative_to(ROOT), node


def parameters(node: ast.ClassDef) -> int:
    """Returns the number of parameters of a class's constructor, or 0 without a constructor."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            args = member.args
            return len([*args.posonlyargs, *args.args, *args.kwonlyargs]) - 1
    return 0


def faults(found: Iterable[tuple[Path, ast.ClassDef]]) -> Iterator[str]:
    places: dict[tuple[str, str], list[str]] = defaultdict(list)  # by package and name
    for path, node in found:
        if (count := parameters(node)) > MAX_PARAMETERS:
            yield f"{path}:{node.lineno}: the constructor of {node.name} has {count} parameters, more than {MAX_PARAMETERS}"
        places[package_of(ROOT / path).name, node.name].append(f"{path}:{node.lineno}")
    for (_, name), where in places.items():
        if len(where) > 1 and name not in ALLOWED_DUPLICATES:
            yield f"{name} is the name of {len(where)} classes of a package: {', '.join(where)}"


def main() -> int:
    out = list(faults(classes()))
    for fault in out:
        print(fault, file=sys.stderr)
    return int(bool(out))


if __name__ == "__main__":
    raise SystemExit(main())
