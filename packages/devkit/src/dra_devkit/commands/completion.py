"""``dra completion SHELL``: prints a script that completes commands, verbs, options, choices, files, UIDs, objects, a driver's options.

Completion runs no Python, except for a driver's options and for objects of a cluster: after a driver on the command line, it runs
``dra COMMAND DRIVER --help``; for names of objects, nodes and drivers, ``dra completion KIND``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import shtab

from dra_kubeletplugin.cli import command_parser, load_packages, verbs
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.options import refuse
from dra_kubeletplugin.cli.shell.parsing import COMMANDS, Parser

from ..kubernetes_releases import API_VERSIONS, RELEASES
from ..localcluster.apiserver.faults import GATED
from ..packaging.scaffold.names import FEATURES
from .dev_args import OF_DRIVER, OF_NODE

SHELLS = ("bash", "zsh", "fish")
_FILES = frozenset({"FILE", "DRIVER", "HOST", "HOST=NUMBER", "ADDRESS|FILE", "CERT", "KEY", "KUBECONFIG", "VALUES"})
_FOLDERS = frozenset({"ACCOUNT", "DIR", "FOLDER", "ROOT"})
# Each claim that is prepared on this node has a CDI file: `k8s.DRIVER-claim_UID.json`.
# The pattern accepts only characters of UIDs, because bash expands the words of `compgen -W`, also `$(...)`.
_LIST_UIDS = (
    "sh -c 'ls \"${CDI_ROOT:-/var/run/cdi}\"' 2>/dev/null | sed -n 's/.*-claim_\\([-.0-9A-Za-z]*\\)[.]json$/\\1/p'"
)
_UIDS = {
    "bash": "_dra_uids",
    "zsh": "_dra_uids",
    "fish": "(_dra_uids)",
    "preamble": {
        "bash": f'_dra_uids() {{ compgen -W "$({_LIST_UIDS})" -- "$1"; }}',
        "zsh": f"_dra_uids() {{ compadd -- $({_LIST_UIDS}) }}",
        "fish": f"function _dra_uids; {_LIST_UIDS}; end",
    },
}
_LIVE = {
    ("dra explain", "what"): "objects",
    ("dra top", "node"): "nodes",
    ("dra doctor", "node_name"): "nodes",
    ("dra gather", "node_name"): "nodes",
    ("dra explain", "namespace"): "namespaces",
    ("dra simulate", "node"): "nodes",
    ("dra simulate", "namespace"): "namespaces",
    ("dra top", "namespace"): "namespaces",
    ("dra dev set-health", "device"): "devices",
    ("dra dev exit-container", "pod"): "pods",
    ("dra dev exit-container", "namespace"): "namespaces",
    **{(f"dra dev {verb}", "node"): "nodes" for verb in OF_NODE},
    **{(f"dra dev {verb}", "driver"): "drivers" for verb in OF_DRIVER},
}
"""The kind of objects that complete an argument, by command and argument."""
_WORDS = {"fields": GATED, "versions": API_VERSIONS, "kubernetes": RELEASES, "features": FEATURES}
"""The words that complete an argument of any command."""
# The end of a command line that prints a driver's flags. The line begins with the words before the cursor, in which the functions
# below expand `~`, because the shell passes it as it was typed.
_PRINT_FLAGS = (
    r"</dev/null 2>/dev/null | sed -n '/^options of /,$s/^  \(--[^ ,]*\(, --[^ ,]*\)*\).*/\1/p' | tr -s ', ' '\n'"
)
_OWN_OPTIONS = {
    "bash": r"""
_dra_and_own() {
  _shtab_dra "$@"
  local words current="${COMP_WORDS[COMP_CWORD]}"
  read -a words <<<"${COMP_LINE:0:COMP_POINT}"
  [[ $current == -* && ${words[1]} == @(COMMAND_PATTERN) && " ${words[*]:2:${#words[@]}-3}" == *" "[^-]* ]] || return 0
  words=("${words[@]:1:${#words[@]}-2}")
  COMPREPLY+=($(compgen -W "$(dra "${words[@]/#\~\//$HOME/}" --help PRINT_FLAGS)" -- "$current"))
}
complete -o bashdefault -o default -F _dra_and_own dra
""",
    "zsh": r"""
_dra_and_own() {
  local -a line=("${(@Q)words[2,CURRENT-1]}")
  local current="${words[CURRENT]}" code
  _shtab_dra "$@"
  code=$?
  [[ $current == -* && $line[1] == (COMMAND_PATTERN) && -n ${line[2,-1]:#-*} ]] || return $code
  compadd -- $(dra "${(@)line/#\~\//$HOME/}" --help PRINT_FLAGS) && code=0
  return $code
}
""",
    "fish": r"""
function _dra_own
    set -l line (commandline -opc)
    contains -- "$line[2]" COMMAND_WORDS; and string match -q -- '-*' (commandline -ct); or return
    string match -qv -- '-*' $line[3..]; and dra (string replace -r '^~/' "$HOME/" -- $line[2..]) --help PRINT_FLAGS
end
complete -c dra -a '(_dra_own)'
""",
}
# Replacements in shtab's output.
_REPLACEMENTS = {
    "bash": [("complete -o bashdefault -F _shtab_dra dra\n", "")],
    "zsh": [
        ('"(*)::', '"*:'),  # all words of an argument, not only the first
        ('"(*):', '"*:'),
        ("_describe 'dra dev commands' _commands", "_describe 'dra dev commands' _commands || _files"),
        # Makes `source <(dra completion zsh)` register the completion, as eval does: only a call by zsh as `_dra` completes words.
        ("[[ $zsh_eval_context[-1] == eval ]]", "[[ $funcstack[1] != _dra ]]"),
        ("compdef _shtab_dra", "compdef _dra_and_own"),
        ('  _shtab_dra "$@"\n', '  _dra_and_own "$@"\n'),
    ],
    "fish": [],
}
_OF_DEV = "complete -c dra -n '_shtab_dra_using dev; and test $_shtab_dra_npos -eq 0' -ka '(__fish_complete_path (commandline -ct))'\n"


def completion(args: argparse.Namespace) -> int:
    if args.shell in SHELLS:
        refuse(args, {"line": "--line"}, f"is not for {args.shell}")
        print(script(args.shell))
    else:
        from .live_names import print_names  # imported here, because a script needs no cluster

        print_names(args.shell, args.line)
    return Exit.SUCCESS


def script(shell: str) -> str:
    """Returns the script for one of :data:`SHELLS`."""
    load_packages()
    whole = argparse.ArgumentParser(prog="dra")
    whole.add_argument("--version", action="store_true", help="print the version and exit")
    subparsers = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        if " " in name:
            continue
        alone = _Options(prog=f"dra {name}") if verbs(name) else Parser(prog=f"dra {name}")
        command.add_arguments(alone)
        _set_completers(alone)
        # The description is the short help, because the column beside a name is narrow.
        sub = subparsers.add_parser(name, help=command.help, description=command.help, parents=[alone], add_help=False)
        if names := verbs(name):
            verb_parsers = sub.add_subparsers(dest="verb", metavar="VERB")
            for verb in names:
                parser = command_parser(f"{name} {verb}")
                _set_completers(parser)
                about = COMMANDS[f"{name} {verb}"].help
                verb_parsers.add_parser(verb, help=about, parents=[parser], add_help=False)
    text: str = shtab.complete(whole, shell)
    for old, new in _REPLACEMENTS[shell]:
        text = text.replace(old, new)
    of_drivers = [name for name, command in COMMANDS.items() if command.driver_options]
    own = (
        _OWN_OPTIONS[shell]
        .replace("PRINT_FLAGS", _PRINT_FLAGS)
        .replace("COMMAND_PATTERN", "|".join(of_drivers))
        .replace("COMMAND_WORDS", " ".join(of_drivers))
    )
    if shell == "zsh":  # the function must precede the last lines, which call it
        return text.replace("typeset -A opt_args", f"{own}\ntypeset -A opt_args")
    # _OF_DEV completes the path of a driver in the place of a verb.
    return text + own + (_OF_DEV if shell == "fish" and "dev" in COMMANDS else "")


class _Options(Parser):
    """The options of a command with verbs, without its words: the word after `dra dev` may be a verb or a driver."""

    def add_argument(self, *names: str, **more: Any) -> argparse.Action:
        if names[0].startswith("-"):
            return super().add_argument(*names, **more)
        return argparse.Action(names, "")


def _set_completers(parser: Parser) -> None:
    for action in parser.arguments:
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.dest == "uid":
            action.complete = _UIDS  # type: ignore[attr-defined]
        elif kind := _LIVE.get((parser.prog, action.dest)):
            action.complete = _live(kind)  # type: ignore[attr-defined]
        elif words := _WORDS.get(action.dest):
            action.complete = _words(action.dest, words)  # type: ignore[attr-defined]
        elif not action.option_strings and not action.choices:
            action.complete = _words("nothing", ())  # type: ignore[attr-defined]


def _words(name: str, words: Iterable[str]) -> dict[str, Any]:
    """Returns the completer of known words. Without words, zsh completes the options here: with an empty action it does not."""
    name, listed = f"_dra_{name}", " ".join(sorted(words))
    return {
        "bash": name,
        "zsh": name,
        "fish": f"({name})",
        "preamble": {
            "bash": f'{name}() {{ compgen -W "{listed}" -- "$1"; }}',
            "zsh": f"{name}() {{ compadd -- {listed} }}",
            "fish": f"function {name}; string split ' ' -- '{listed}'; end",
        },
    }


def _live(kind: str) -> dict[str, Any]:
    """Returns the completer of objects of one kind."""
    name, command = f"_dra_{kind}", f"dra completion {kind} --line"
    return {
        "bash": name,
        "zsh": name,
        "fish": f"({name})",
        "preamble": {
            "bash": f'{name}() {{ compgen -W "$({command} "${{COMP_LINE:0:COMP_POINT}}" </dev/null 2>/dev/null)" -- "$1"; }}',
            "zsh": f'{name}() {{ compadd -- $({command} "$LBUFFER" </dev/null 2>/dev/null) }}',
            "fish": f"function {name}; {command} (commandline -cp) </dev/null 2>/dev/null; end",
        },
    }
