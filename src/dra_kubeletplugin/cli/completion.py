"""``dra completion SHELL``: a script that completes commands, verbs, options, choices, files, UIDs. At a tab no Python runs."""

from __future__ import annotations

import argparse

import shtab

from . import verbs
from .parsing import Parser

SHELLS = ("bash", "zsh", "fish")
_FILES = frozenset({"FILE", "DRIVER", "HOST", "HOST=NUMBER", "ADDRESS|FILE", "CERT", "KEY", "KUBECONFIG", "VALUES"})
_FOLDERS = frozenset({"ACCOUNT", "DIR", "FOLDER", "ROOT"})
# Each claim that is prepared on this node has a CDI file: `k8s.DRIVER-claim_UID.json`.
_LISTED = "ls $CDI_ROOT/ /var/run/cdi/ 2>/dev/null | sed -n 's/.*-claim_\\([^_]*\\)[.]json$/\\1/p'"
_UIDS = {
    "bash": "_dra_uids",
    "zsh": "_dra_uids",
    "fish": "(_dra_uids)",
    "preamble": {
        "bash": f'_dra_uids() {{ compgen -W "$({_LISTED})" -- "$1"; }}',
        "zsh": f"_dra_uids() {{ compadd -- $({_LISTED}) }}",
        "fish": f"function _dra_uids; {_LISTED}; end",
    },
}
# What shtab writes, and what it has to be.
_MENDED = {
    "bash": [("complete -o bashdefault -F", "complete -o bashdefault -o default -F")],
    "zsh": [
        ("_describe 'dra dev commands' _commands", "_describe 'dra dev commands' _commands || _files"),
        # `source <(dra completion zsh)` registers, as eval does: only what is called as a completer completes.
        ("[[ $zsh_eval_context[-1] == eval ]]", "[[ $funcstack[1] != _dra ]]"),
    ],
    "fish": [],
}
_OF_DEV = "complete -c dra -n '_shtab_dra_using dev; and test $_shtab_dra_npos -eq 0' -ka '(__fish_complete_path (commandline -ct))'\n"


def script(shell: str, parser: Parser) -> str:
    """The script for one of :data:`SHELLS`. ``parser`` is of the whole command, and is changed."""
    commands = _commands(parser)
    # The verbs of `dra dev` have a parser of their own, because a driver may stand in their place.
    commands.choices["dev"] = _with_verbs(commands.choices["dev"])
    commands.required = True
    for listed in commands._choices_actions:  # beside a name there is room for a few words
        commands.choices[listed.dest].description = listed.help
    _tell_places(parser)
    text: str = shtab.complete(parser, shell)
    for wrong, right in _MENDED[shell]:
        text = text.replace(wrong, right)
    return text + (_OF_DEV if shell == "fish" else "")  # where no verb fits, a driver's path may


def _with_verbs(dev: Parser) -> Parser:
    out = Parser(prog=dev.prog, description=dev.description, add_help=False)
    for action in dev._actions:  # argparse has no other way to ask
        if action.option_strings:
            out._add_action(action)
    sub = out.add_subparsers(dest="verb", metavar="VERB")
    for name, verb in verbs.parser().commands.items():
        sub.add_parser(name, help=verbs.VERBS[name], parents=[verb], add_help=False)
    return out


def _commands(parser: Parser) -> argparse._SubParsersAction[Parser]:
    return next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))


def _tell_places(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                _tell_places(sub)
        elif action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.dest == "uid":
            action.complete = _UIDS  # type: ignore[attr-defined]
