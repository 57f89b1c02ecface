"""``dra completion SHELL``: a script that completes commands, verbs, options, choices and files. Nothing of it runs Python at a tab."""

from __future__ import annotations

import argparse

import shtab

from . import dev_verbs

SHELLS = ("bash", "zsh", "fish")
_FILES = frozenset({"FILE", "DRIVER", "HOST", "ADDRESS|FILE", "CERT", "KEY", "KUBECONFIG"})
_FOLDERS = frozenset({"DIR", "ROOT"})


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for one of :data:`SHELLS`. ``parser`` is of the whole command, and is changed."""
    commands = _commands(parser)
    # The verbs of `dra dev` have a parser of their own, because a driver may stand in their place.
    commands.choices["dev"] = _with_verbs(commands.choices["dev"])
    commands.required = True
    _tell_files(parser)
    # Where nothing of ours fits, a path may: `dra dev drivers/...`.
    return shtab.complete(parser, shell).replace("complete -o bashdefault -F", "complete -o bashdefault -o default -F")


def _with_verbs(dev: argparse.ArgumentParser) -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog=dev.prog, description=dev.description, add_help=False)
    for action in dev._actions:  # argparse has no other way to ask
        if action.option_strings:
            out._add_action(action)
    verbs = _commands(dev_verbs.parser())
    sub = out.add_subparsers(dest="verb", metavar="VERB")
    for name, verb in verbs.choices.items():
        sub.add_parser(name, help=dev_verbs.VERBS[name], parents=[verb], add_help=False)
    return out


def _commands(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))


def _tell_files(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                _tell_files(sub)
        elif action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
