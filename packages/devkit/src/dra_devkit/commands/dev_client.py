"""``dra dev VERB``: sends a verb to a ``dra dev`` in another shell, over its control socket."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from dra_kubeletplugin.base.local_clusters import running, state_root
from dra_kubeletplugin.base.terminal import indented
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.exit_handling import print_line
from dra_kubeletplugin.cli.shell.output import put
from dra_kubeletplugin.errors import SettingsError, printable

from ..localcluster.dev import control
from ..localcluster.dev.verbs import AnyVerb


def run_verb(args: argparse.Namespace) -> int:
    """Sends the verb and prints the result. Returns 0. On a failure, prints only the error and returns 2."""
    try:
        response = control.ask(state_folder(args.state_dir), _verb(args))
    except control.ControlError as e:
        print_line(f"dra: {indented(e)}")
        return Exit.USAGE
    put(response.data, args.output, lambda _: [printable(response.text)])
    return Exit.SUCCESS


def _verb(args: argparse.Namespace) -> AnyVerb:
    given = {k: v for k, v in vars(args).items() if k not in {"command", "loaded", "state_dir", "output"}}
    given["verb"] = args.command.partition(" ")[2]
    if given["verb"] == "plug-function":
        given["function"] = _function(args.function)
    try:
        found: AnyVerb = msgspec.convert(given, type=AnyVerb)
    except msgspec.ValidationError as e:
        raise control.ControlError(str(e)) from None
    return found


def _function(text: str) -> str:
    """Returns a PCI address unchanged, or the content of a file with a description."""
    if text == "-":
        return sys.stdin.read()
    if Path(text).is_file():
        return Path(text).read_text(errors="replace")
    if "/" in text or text.endswith((".yaml", ".yml")):
        raise control.ControlError(f"{text} is not a file")
    return text


def state_folder(given: str | None) -> Path:
    """Returns the state folder of the chosen cluster.

    Raises :class:`SettingsError` if no ``dra dev`` runs, if several run, or if KUBECONFIG does not belong to a running ``dra dev``.
    """
    if given:
        return Path(given)
    configs = os.environ.get("KUBECONFIG", "")
    for config in configs.split(os.pathsep):
        if config and (Path(config).parent / control.NAME).is_socket():
            return Path(config).parent
    found = running(state_root())
    if configs and found:
        listed = " or ".join(f"--state-dir {folder}" for folder in found)
        raise SettingsError(
            f"KUBECONFIG {configs} does not belong to a running `dra dev`: use {listed}, or unset KUBECONFIG"
        )
    if len(found) == 1:
        return found[0]
    if not found:
        raise SettingsError(
            "no `dra dev` without --state-dir of this user runs on this machine: for one with --state-dir DIR, "
            "use the same --state-dir here, or the KUBECONFIG that it printed"
        )
    listed = ", ".join(map(str, found))
    raise SettingsError(f"{len(found)} clusters run: select one with --state-dir or KUBECONFIG: {listed}")
