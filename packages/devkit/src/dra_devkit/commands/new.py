"""``dra new``: creates a driver's package. On a terminal, it asks for missing options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.options import refuse
from dra_kubeletplugin.cli.shell.output import put
from dra_kubeletplugin.errors import SettingsError

from ..packaging.scaffold.names import Names, check_device, check_driver_name, check_features, check_name, check_vendor
from ..packaging.scaffold.writer import write_package
from .command_args import KINDS
from .output_models import Made

_NEXT = """run its tests on a local cluster, then start such a cluster with a pod:

  cd {folder}
  make test
  make dev"""
_KINDS = "pci (PCI functions), chardev (device files), sdk (a vendor's library)"


def new(args: argparse.Namespace) -> int:
    """Runs the command. Raises :class:`SettingsError` for invalid names, or if the folder cannot be used."""
    name = check_name(args.name)
    features = check_features(args.features) if args.features is not None else ()
    kind = _option_or_input(args.kind, "--kind", f"Where do its devices come from: {_KINDS}?", _kind)
    vendor = device = ""
    if kind == "pci":
        vendor = _option_or_input(
            args.vendor_id, "--vendor-id", "The cards' PCI vendor id, such as 10ee:", check_vendor
        )
        device = _option_or_input(
            args.device_id, "--device-id", "The cards' PCI device id, such as 5000:", check_device
        )
    else:
        refuse(
            args,
            {"vendor_id": "--vendor-id", "device_id": "--device-id"},
            f"is only for --kind pci, not for --kind {kind}",
        )
    driver = _option_or_input(
        args.driver_name, "--driver-name", "The driver's name in Kubernetes", check_driver_name, f"{name}.example.com"
    )
    folder = write_package(Names(kind, name, driver, vendor, device, features), args.directory)
    put(
        Made(folder, kind, name, driver, vendor, device, features),
        args.output,
        lambda _: [f"created {folder}: {_NEXT.format(folder=folder)}"],
    )
    return Exit.SUCCESS


def _kind(text: str) -> str:
    if text not in KINDS:
        raise SettingsError(f"--kind {text!r} is not one of {', '.join(KINDS)}")
    return text


def _option_or_input(
    given: str | None, flag: str, question: str, check: Callable[[str], str], default: str = ""
) -> str:
    """Returns the option, or the user's input. Raises :class:`SettingsError` if it is missing or invalid."""
    if given is not None:
        return check(given)
    if not sys.stdin.isatty():
        if not default:
            raise SettingsError(f"{flag} is needed without a terminal: {question.rstrip(':')}; see dra new --help")
        return check(default)
    while True:
        print(f"{question}{f' ({default}):' if default else ''} ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise SettingsError(f"{flag} is needed")
        reply = line.strip() or default
        try:
            return check(reply)
        except SettingsError as e:
            print(e.message, file=sys.stderr)
