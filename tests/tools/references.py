"""Fails when a docstring or comment refers to a name, or names a module, that does not exist.

References are ``:class:`Name```, ``:meth:`Name.method``` and the like, and paths that end with ``.py``, also in the pages of docs/.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.tools.tree import ROOT, modules

_REFERENCE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`[~.]*([^`]+)`")
_PATH = re.compile(r"`((?:[\w-]+/)*[\w-]+\.py)`")
_PLACEHOLDER = re.compile(r"[A-Z]{3,}|^(?:folder/file|src/\w+/driver|acme)\.py$")
"""Paths with a word to replace, and those of a driver that a reader writes."""

_FOLDERS = ("src", "packages", "tests", "drivers", "docs", "examples", "bench")
_LIBRARIES = {*sys.stdlib_module_names, "msgspec"}


def names(trees: Iterable[ast.Module]) -> dict[str, set[str]]:
    """Returns the attributes of each class, also of its base classes, and under "" the names that modules define."""
    own: dict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = defaultdict(set)
    for tree in trees:
        own[""] |= {name for node in tree.body for name in _defined(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                own[""].add(node.name)
                own[node.name] |= {name for member in ast.walk(node) for name in _defined(member)}
                bases[node.name] |= {base.id for base in node.bases if isinstance(base, ast.Name)}
    for _ in range(3):  # levels of inheritance
        for name, parents in bases.items():
            own[name] |= {attribute for parent in parents for attribute in own.get(parent, ())}
    return own


def _defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for part in (part for target in targets for part in ast.walk(target)):
        if isinstance(part, ast.Name | ast.Attribute):
            yield part.id if isinstance(part, ast.Name) else part.attr


def exists(reference: str, known: dict[str, set[str]], here: Iterable[str], dotted: set[str]) -> bool:
    """Whether a reference names a module, a name of a module, or an attribute of a class. ``here`` are the classes of its module."""
    if any(f".{name}".endswith(f".{reference}") for name in dotted):
        return True
    owner, _, name = reference.rpartition(".")
    owner = owner.rpartition(".")[2]
    if owner[:1].isupper():
        return name in known.get(owner, ())
    if not owner and any(name in known[one] for one in here):
        return True
    return name in known[""] or hasattr(builtins, name) or reference.partition(".")[0] in _LIBRARIES


def faults() -> Iterator[str]:
    sources = {path: path.read_text() for path in modules()}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    known = names(trees.values())
    files = [str(path.relative_to(ROOT)) for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py")]
    dotted = {re.sub(r"(/__init__)?\.py$", "", name).replace("/", ".") for name in files}
    for path in [*sources, *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"]:
        text = sources.get(path) or path.read_text()
        wrong = [
            found
            for found in _PATH.finditer(text)
            if not _PLACEHOLDER.search(found[1]) and not any(f"/{file}".endswith(f"/{found[1]}") for file in files)
        ]
        if path in trees:
            here = [node.name for node in ast.walk(trees[path]) if isinstance(node, ast.ClassDef)]
            wrong += [found for found in _REFERENCE.finditer(text) if not exists(found[1], known, here, dotted)]
        for found in wrong:
            yield f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}: {found[1]} does not exist"


def main() -> int:
    out = list(faults())
    for fault in out:
        print(fault, file=sys.stderr)
    return int(bool(out))


if __name__ == "__main__":
    raise SystemExit(main())
