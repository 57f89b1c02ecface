"""Fails when a class name occurs twice in a ring, or when a constructor has more than seven parameters.

The import contract in pyproject.toml defines the rings. Keyword-only parameters count, and `self` does not. Dataclasses and msgspec
structs have no explicit constructor, so they are exempt.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/dra_kubeletplugin"
MAX_PARAMETERS = 7
ALLOWED_DUPLICATES: Mapping[str, str] = {
    "Device": "public in dra_kubeletplugin, for drivers, and in dra_kubeletplugin.metadata, for programs in containers, which import one"
}
"""Class names that may occur twice in a ring, each with the reason."""


def rings(pyproject: Path = ROOT / "pyproject.toml") -> list[frozenset[str]]:
    """Returns the packages of each ring, from the import contract."""
    contracts = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (c["layers"] for c in contracts if c["name"].startswith("Rings"))
    return [frozenset(name.strip().rpartition(".")[2] for name in layer.split(":")) for layer in layers]


def classes(package: Path = PACKAGE) -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in sorted(package.rglob("*.py")):
        if "_proto" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    yield path.relative_to(package), node


def parameters(node: ast.ClassDef) -> int:
    """Returns the number of parameters of a class's constructor, or 0 without a constructor."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            args = member.args
            return len([*args.posonlyargs, *args.args, *args.kwonlyargs]) - 1
    return 0


def faults(found: Sequence[tuple[Path, ast.ClassDef]], ring_packages: Sequence[frozenset[str]]) -> Iterator[str]:
    places: dict[tuple[int, str], list[str]] = defaultdict(list)
    for path, node in found:
        if (count := parameters(node)) > MAX_PARAMETERS:
            yield f"{path}:{node.lineno}: the constructor of {node.name} has {count} parameters, more than {MAX_PARAMETERS}"
        for ring, packages in enumerate(ring_packages):
            if path.with_suffix("").parts[0] in packages:
                places[ring, node.name].append(f"{path}:{node.lineno}")
    for (_, name), where in places.items():
        if len(where) > 1 and name not in ALLOWED_DUPLICATES:
            yield f"{name} is the name of {len(where)} classes of one ring: {', '.join(where)}"


def main() -> int:
    out = list(faults(list(classes()), rings()))
    for fault in out:
        print(fault, file=sys.stderr)
    return int(bool(out))


if __name__ == "__main__":
    raise SystemExit(main())
