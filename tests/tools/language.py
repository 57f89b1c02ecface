"""Counts words of the project's former dialect in text, names and messages; fails when a count exceeds its budget.

The budgets are in `language_budget.toml` in the same folder. Lower a budget when its count has fallen; never raise it. CONTRIBUTING
explains the style. `python tests/tools/language.py --list NAME` prints each match of one count with its file and line.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.tools.tree import ROOT, modules

BUDGET = Path(__file__).with_name("language_budget.toml")
WORDS = {
    "tell": r"(?<![a-z])(tells?|told|said)(?![a-z])",
    "nobody": r"(?<![a-z])(nobody|somebody|whoever|anybody)(?![a-z])",
    "anew": r"(?<![a-z])(anew|besides|ours|theirs|mends?|mended|befell)(?![a-z])",
    "answer": r"(?<![a-z_])answers(?= (?:the|a|an|what|whether|all|none|true|false|with)\b)",
    "give": r"(?<![a-z_])gives?(?= (?:the|a|an|what|back|up) )",
}
NAMES = frozenset(
    [
        "answer",
        "answered",
        "answers",
        "aside",
        "asked",
        "bury",
        "distrust",
        "echo",
        "elsewhere",
        "forgive",
        "forgiven",
        "heard",
        "hopeless",
        "impatient",
        "judge",
        "judged",
        "judging",
        "meant",
        "mine",
        "odd",
        "ours",
        "patience",
        "perhaps",
        "room",
        "said",
        "salvage",
        "salvaged",
        "says",
        "stock",
        "theirs",
        "told",
        "trouble",
        "turn",
        "verdict",
        "verdicts",
        "wish",
    ]
)
"""Words in names of functions, classes, parameters, variables and attributes."""
MESSAGES = (
    r"(?<![a-z])(answer(s|ed)?|judged?|nobody|whoever|told|tells?|said|anew|mend(s|ed)?|besides|gave|no more(?! than)|by now|any more|"
    r"what (is|has|was|it|they) |takes? away|goes on|undone)(?![a-z])"
)
"""Words in strings of at least three words that are no docstrings: errors, log lines and help texts."""
LONGEST_SENTENCE = 30
"""The maximum number of words in a sentence of a docstring or of a page."""
_SENTENCE_END = re.compile(r"(?<=[.:;!?])\**\)?\s+")
_LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
_NO_PROSE = re.compile(r":::|\s*(?:[|#!]|<!--|$)")
"""The start of a line without sentences: a table, a heading, an image, a comment or an empty line."""
_TABLE_ROW = re.compile(r"^.*\S {2,}\S.*$", re.MULTILINE)
"""A line of a table in a docstring."""
Match = tuple[Path, int, str]


def sources() -> list[Path]:
    return modules()


def pages() -> list[Path]:
    return [
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted(ROOT.glob("packages/*/README.md")),
    ]


def matches(paths: list[Path], pattern: str) -> Iterator[Match]:
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for found in re.finditer(pattern, line, re.IGNORECASE):
                yield path, number, found[0]


def long_sentences(paths: list[Path]) -> Iterator[Match]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            prose = _TABLE_ROW.sub("", ast.get_docstring(node) or "")
            for sentence in re.split(r"(?<=[.:;!?])\s+|\n\s*\n|\n\s*[-*] ", prose):
                if len(sentence.split()) > LONGEST_SENTENCE:
                    yield path, getattr(node, "lineno", 1), " ".join(sentence.split())


def long_sentences_of_pages(paths: list[Path]) -> Iterator[Match]:
    """Yields the long sentences of Markdown pages; tables and code blocks are skipped."""
    for path in paths:
        for number, paragraph in paragraphs(path.read_text().splitlines()):
            for sentence in _SENTENCE_END.split(paragraph):
                if len(sentence.split()) > LONGEST_SENTENCE:
                    yield path, number, sentence


def paragraphs(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yields each paragraph and list item as one line, with the number of its first line."""
    first, text, is_code = 0, "", False
    for number, line in enumerate([*lines, ""], 1):
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        is_prose = not (is_fence or is_code or _NO_PROSE.match(line) or (not text and line.startswith("    ")))
        if text and (not is_prose or _LIST_ITEM.match(line)):
            yield first, text
            text = ""
        if is_prose:
            first = first if text else number
            text = f"{text} {line.strip()}" if text else _LIST_ITEM.sub("", line)


def defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yields each name that a module defines or assigns, with its line."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
            ):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno


def names(paths: list[Path]) -> Iterator[Match]:
    """Yields each name of a module that contains a word of :data:`NAMES`, once."""
    for path in paths:
        found = sorted(defined_names(ast.parse(path.read_text())), key=lambda n: n[1])
        for name, line in dict(reversed(found)).items():
            if NAMES.intersection(
                re.split(r"_|(?<=[a-z])(?=[A-Z])", name.lower() if name.isupper() else name)
            ) or NAMES.intersection(word.lower() for word in re.findall(r"[A-Z][a-z]+", name)):
                yield path, line, name


def messages(paths: list[Path]) -> Iterator[Match]:
    """Yields the matches of :data:`MESSAGES` in strings that are no docstrings."""
    for path in paths:
        tree = ast.parse(path.read_text())
        docstrings = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                if len(node.value.split()) >= 3:
                    for found in re.finditer(MESSAGES, node.value, re.IGNORECASE):
                        yield path, node.lineno, f"{found[0]}: {' '.join(node.value.split())[:100]}"


def counted() -> dict[str, list[Match]]:
    out = {}
    for place, paths in (("src", sources()), ("docs", pages())):
        for name, pattern in WORDS.items():
            out[f"{place}.{name}"] = list(matches(paths, pattern))
    out["src.names"] = list(names(sources()))
    out["src.messages"] = list(messages(sources()))
    out["src.long_sentences"] = list(long_sentences(sources()))
    out["docs.long_sentences"] = list(long_sentences_of_pages(pages()))
    return out


def main(argv: list[str]) -> int:
    budget: dict[str, int] = {
        f"{place}.{name}": limit
        for place, counts in tomllib.loads(BUDGET.read_text()).items()
        for name, limit in counts.items()
    }
    found = counted()
    if argv[:1] == ["--list"]:
        for path, line, text in found[argv[1]]:
            print(f"{path.relative_to(ROOT)}:{line}: {text}")
        return 0
    code = 0
    for name, items in found.items():
        if len(items) > budget[name]:
            print(
                f"{name}: {len(items)} matches, budget {budget[name]}: `python tests/tools/language.py --list {name}` shows them",
                file=sys.stderr,
            )
            code = 1
        elif len(items) < budget[name]:
            print(f"{name}: {len(items)} matches, budget {budget[name]}: lower the budget in {BUDGET.name}")
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
