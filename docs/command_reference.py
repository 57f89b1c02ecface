"""Renders the documentation page of all commands: arguments, options, exit codes, and the fields of ``-o json|yaml``."""

from __future__ import annotations

import argparse
import inspect
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from dra_conformance.command import Checks
from dra_conformance.runner import ConformanceRun
from dra_devkit.commands import output_models as devkit_models
from dra_kubeletplugin.cli import PACKAGES, commands, output_models
from dra_kubeletplugin.cli.shell.exit_codes import MEANINGS
from dra_kubeletplugin.cli.shell.output import camel
from dra_kubeletplugin.cli.shell.parsing import Parser
from dra_tools.commands.doctor import Findings, Gathered
from dra_tools.commands.explain import Waiting
from dra_tools.explanation.model import Explanation
from dra_tools.simulation.simulate import Simulation
from dra_tools.usage.rows import Overview

SHAPES: Mapping[str, tuple[type, ...]] = {
    "claims": (output_models.Claims,),
    "cleanup": (output_models.Removed,),
    "inspect": (devkit_models.Inspection,),
    "validate": (devkit_models.Validation,),
    "doctor": (Findings,),
    "gather": (Gathered,),
    "new": (devkit_models.Made,),
    "deploy": (devkit_models.Manifests,),
    "conformance": (ConformanceRun, Checks),
    "explain": (Explanation, Waiting),
    "simulate": (Simulation,),
    "top": (Overview,),
}
"""Types of the output of commands with ``-o``. ``schema`` and the verbs of ``dra dev`` are not here: they print other documents."""
_HEAD = """# Commands

Generated from the command line's own parsers by `make docs`.

The command is the first word. Its options and other words follow in any order: `dra claims -o json forget UID`. The options that a
driver defines follow the driver: `dra inspect DRIVER --cards 2`. After `--` nothing is an
option. If you use `--`, write the options before all other words. Options cannot be abbreviated; for a mistyped option the error names
the nearest one.
`python -m dra_kubeletplugin` is `dra`. Some commands are in [another package](index.md#install). If the package is not installed, the error
names it: `dra: dra explain is in dra-tools: pip install dra-tools`.

`eval "$(dra completion bash)"` completes commands, options, files, UIDs and objects at a tab. For zsh and fish, use
`dra completion zsh` and `dra completion fish`. After a driver, as in
`dra run acme.py --`, it also completes the driver's own options. That imports the driver, as `--help` does: 0.15 s plus the driver's
own imports. Names of pods, claims, nodes and namespaces come from the cluster of the command line, of `KUBECONFIG` or of
`~/.kube/config`. After `dra dev VERB`, names of pods, nodes, devices and drivers come from the running `dra dev`.
If the cluster does not respond within 0.15 s (`DRA_COMPLETION_TIMEOUT`), there are none.
All other completions run no Python.

A command writes only its result to standard output. Messages, and on a terminal the progress of long work, go to standard error.
An error is one line that begins with `dra: `. Colours are used only on terminals; `NO_COLOR` turns them off.
"""
_FORMS = """
## Output for programs

`-o json` and `-o yaml` write one document with the whole result, also if the exit code is 1 or 3; with exit code 2 there may be none.
Every field is present, even if it is empty. Names of fields do not change between releases, and releases may add fields. The keys of a
mapping are data and not names of fields: they are names of devices, attributes and other objects. The output of `dra schema`, which is a
JSON Schema, and of the verbs of `dra dev` is not described below.
"""
_PACKAGES = {command: package for package, names in PACKAGES.items() for command in names}
_JSON = {"None": "null", "True": "true", "False": "false"}
_ROLE = re.compile(r":\w+:`~?\.*([^`]+)`")


def page() -> str:
    """Returns the page in Markdown."""
    lines = [_HEAD, "## Exit codes", "", "| code | |", "|---|---|"]
    lines += [f"| {code.value} | {_cell(meaning)} |" for code, meaning in MEANINGS.items()]
    for name, parser in commands().items():
        lines += ["", *_command(name, parser)]
    lines.append(_FORMS)
    for kind in _reached(kind for found in SHAPES.values() for kind in found):
        lines += [*_shape(kind), ""]
    return "\n".join(lines).rstrip() + "\n"


def _command(name: str, parser: Parser) -> Iterator[str]:
    yield from (f"## dra {name}", "", parser.description or "", "")
    if package := _PACKAGES.get(name):
        yield from (f"In the package `{package}`.", "")
    words = [a for a in parser.arguments if not a.option_strings]
    yield f"`{' '.join([parser.prog, '[OPTION]...', *map(_word, words)])}`"
    options = [a for a in parser.arguments if a.option_strings and a not in parser.settings and a.dest != "help"]
    rows = [(_word(a), a) for a in words] + [(_option(a), a) for a in options]
    if rows:
        yield from ("", "| | |", "|---|---|")
        yield from (f"| `{_cell(text)}` | {_cell((a.help or '').replace('%%', '%'))} |" for text, a in rows)
    settings = [a.option_strings[0] for a in parser.settings]
    if settings:
        yield from ("", f"[Settings](settings.md): {', '.join(f'`{s}`' for s in settings)}.")
    if parser.epilog:
        yield from ("", parser.epilog)
    if parser.example:
        yield from ("", f"Example: `{parser.example}`.")
    if found := SHAPES.get(name):
        yield from ("", f"`-o json|yaml`: {' or '.join(map(_link, found))}.")


def _word(action: argparse.Action) -> str:
    shown = action.metavar or "|".join(map(str, action.choices or [action.dest.upper()]))
    return {"?": f"[{shown}]", "*": f"[{shown}]...", "+": f"{shown}..."}.get(str(action.nargs), str(shown))


def _option(action: argparse.Action) -> str:
    value = (
        "" if action.nargs == 0 else f" {action.metavar or '|'.join(map(str, action.choices or [action.dest.upper()]))}"
    )
    return ", ".join(action.option_strings) + value


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _shape(kind: type) -> Iterator[str]:
    yield from (f"### {kind.__name__}", "")
    if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("):  # the default docstring of a dataclass
        yield from (" ".join(_markdown(kind.__doc__).partition("Args:")[0].split()), "")
    yield from ("| field | type | meaning |", "|---|---|---|")
    hints, meanings = get_type_hints(kind), _meanings(kind)
    yield from (f"| `{camel(f.name)}` | {_type(hints[f.name])} | {meanings.get(f.name, '')} |" for f in fields(kind))


def _markdown(docstring: str) -> str:
    text = re.sub(r"``([^`]+)``", lambda m: f"`{camel(m[1])}`", _ROLE.sub(r"`\1`", docstring))
    return re.sub(r"\b(None|True|False)\b", lambda m: _JSON[m[1]], text)


def _meanings(kind: type) -> dict[str, str]:
    """Returns the description of each field that the docstring lists under ``Args:``."""
    section = re.search(r"^Args:\n((?: +.*\n?|\n)*)", inspect.getdoc(kind) or "", re.MULTILINE)
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(_markdown(text).split()).replace("|", "\\|") for name, text in found}


def _type(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {types.UnionType, Union}:
        return " or ".join("null" if t is type(None) else _type(t) for t in inner)
    if origin in {tuple, list, Sequence}:
        return f"list of {_type(inner[0])}"
    if origin is not None:  # a mapping, whose keys are names
        return "object" if inner[1] is Any else f"mapping to {_type(inner[1])}"
    if is_dataclass(hint):
        return _link(hint)
    if issubclass(hint, Enum):
        return ", ".join(f"`{value.value}`" for value in hint)
    return {str: "text", Path: "text", bool: "true or false"}.get(hint, "number")


def _link(kind: Any) -> str:
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def _reached(kinds: Iterable[Any]) -> list[type]:
    """Returns these types and the types of their fields, each once."""
    out: list[type] = []
    wanted = list(kinds)
    while wanted:
        kind = wanted.pop(0)
        if not is_dataclass(kind):
            wanted = [*get_args(kind), *wanted]
        elif kind not in out:
            assert isinstance(kind, type)
            out.append(kind)
            wanted = [*get_type_hints(kind).values(), *wanted]
    return out
