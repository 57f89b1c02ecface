"""Flags for all settings; a flag wins over its environment variable, which wins over the default."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import Field, fields
from typing import Any

from ...base.settings import Settings
from ...base.settings.values import as_text
from ...errors import SettingsError

SETTINGS = "settings"
"""The title of the option group whose options have environment variables."""


def add_settings(
    parser: argparse.ArgumentParser,
    kind: type[Settings] = Settings,
    without: Collection[str] = (),
    *,
    only: Collection[str] | None = None,
) -> None:
    """Adds flags for the options of ``kind``.

    Args:
        parser: the parser to which the flags are added.
        kind: the settings class of the process.
        without: names of options to leave out.
        only: names of the options to add; None for all.
    """
    group = parser.add_argument_group(SETTINGS, "each can also be set with its environment variable")
    for f in kind.options():
        if f.name in without or (only is not None and f.name not in only):
            continue
        add_option(group, f, f.name)


def add_option(group: argparse._ArgumentGroup, f: Field[Any], dest: str) -> None:
    """Adds the flag of one option, which this package or a driver defines."""
    meta = f.metadata
    default = f"{f.default:g}s" if "least" in meta else as_text(f.default)
    shown = f"; {default}" if default not in {"", "False", "None"} else ""
    text = f"{meta['help']} ({meta['env']}{shown})".lstrip().replace("%", "%%")
    if isinstance(f.default, bool) and "holds" in meta:  # a driver's switch may be on by default
        group.add_argument(meta["flag"], dest=dest, action=argparse.BooleanOptionalAction, default=None, help=text)
    elif f.default is False:
        group.add_argument(meta["flag"], dest=dest, action="store_const", const="1", help=text)
    else:
        metavar = meta.get("metavar") or f.name.rpartition("_")[2].upper()
        group.add_argument(meta["flag"], dest=dest, metavar=metavar, help=text)


def add_repeated(parser: argparse.ArgumentParser, *flags: str, metavar: str, help: str, **more: Any) -> None:
    """Adds an option that may be repeated. Its value is a list, empty by default."""
    parser.add_argument(*flags, metavar=metavar, action="append", default=[], help=help, **more)


def given(args: argparse.Namespace, kind: type[Settings] = Settings) -> dict[str, Any]:
    """Returns the options from the command line, by field name."""
    known = vars(args)
    return {f.name: known[f.name] for f in fields(kind) if known.get(f.name) is not None}


def refuse(args: argparse.Namespace, flags: Mapping[str, str], why: str) -> None:
    """Raises :class:`SettingsError` with each of ``flags`` that is set although this command cannot use it.

    ``flags`` maps names in ``args`` to flags. ``why`` is the rest of the error's sentence after the flag.
    """
    if faults := [f"{flag} {why}" for name, flag in flags.items() if getattr(args, name)]:
        raise SettingsError(*faults)
