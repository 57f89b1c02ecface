"""Flags for all settings; a flag wins over its environment variable, which wins over the default."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import Field, fields
from typing import Any

from ...base.settings import Settings
from ...base.settings.values import as_text
from ...errors import SettingsError
from .parsing import Parser


def add_settings(
    parser: Parser,
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
    names = {f.name for f in kind.options()} if only is None else only
    options = [option(f, f.name) for f in kind.options() if f.name in names and f.name not in without]
    parser.add_settings("settings", "each can also be set with its environment variable", options)


def option(f: Field[Any], dest: str) -> tuple[str, dict[str, Any]]:
    """Returns the flag of an option that this package or a driver defines, and its arguments for a parser."""
    meta = f.metadata
    default = f"{f.default:g}s" if "least" in meta else as_text(f.default)
    shown = f"; {default}" if default not in {"", "False", "None"} else ""
    more: dict[str, Any] = {
        "dest": dest,
        "help": f"{meta['help']} ({meta['env']}{shown})".lstrip().replace("%", "%%"),
    }
    if isinstance(f.default, bool) and "holds" in meta:  # a driver's switch may be on by default
        more |= {"action": argparse.BooleanOptionalAction, "default": None}
    elif f.default is False:
        more |= {"action": "store_const", "const": "1"}
    else:
        more["metavar"] = meta.get("metavar") or f.name.rpartition("_")[2].upper()
    return meta["flag"], more


def add_repeated(parser: Parser, *flags: str, metavar: str, help: str, **more: Any) -> None:
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
