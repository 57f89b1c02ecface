"""Flags for every setting; a flag beats its environment variable, which beats the default."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import Field, fields
from typing import Any

from ...base.settings import Settings
from ...base.settings.values import as_text
from ...errors import SettingsError

SETTINGS = "settings"
"""The title of the group of options that have environment variables."""


def add_settings(
    parser: argparse.ArgumentParser,
    kind: type[Settings] = Settings,
    without: Collection[str] = (),
    *,
    only: Collection[str] | None = None,
) -> None:
    """A flag for each option that says something to the process of ``kind``, but those named in ``without``; of ``only``, where
    a command takes few.
    """
    group = parser.add_argument_group(SETTINGS, "each can be given by its environment variable as well")
    for f in kind.options():
        if f.name in without or (only is not None and f.name not in only):
            continue
        add_option(group, f, f.name)


def add_option(group: argparse._ArgumentGroup, f: Field[Any], dest: str) -> None:
    """The flag of one option: of ours, or of a driver's own."""
    meta = f.metadata
    default = f"{f.default:g}s" if "least" in meta else as_text(f.default)
    shown = f"; {default}" if default not in {"", "False", "None"} else ""
    text = f"{meta['help']} ({meta['env']}{shown})".lstrip().replace("%", "%%")
    if isinstance(f.default, bool) and "holds" in meta:  # a driver's own may be on where nobody says so
        group.add_argument(meta["flag"], dest=dest, action=argparse.BooleanOptionalAction, default=None, help=text)
    elif f.default is False:
        group.add_argument(meta["flag"], dest=dest, action="store_const", const="1", help=text)
    else:
        metavar = meta.get("metavar") or f.name.rpartition("_")[2].upper()
        group.add_argument(meta["flag"], dest=dest, metavar=metavar, help=text)


def given(args: argparse.Namespace, kind: type[Settings] = Settings) -> dict[str, Any]:
    """What was given on the command line, by field name."""
    known = vars(args)
    return {f.name: known[f.name] for f in fields(kind) if known.get(f.name) is not None}


def refuse(args: argparse.Namespace, flags: Mapping[str, str], why: str) -> None:
    """Raises :class:`SettingsError` for those of ``flags``, by their names in ``args``, that were given where they mean nothing."""
    if faults := [f"{flag} {why}" for name, flag in flags.items() if getattr(args, name)]:
        raise SettingsError(*faults)
