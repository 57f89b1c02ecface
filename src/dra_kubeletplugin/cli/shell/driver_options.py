"""Flags of a driver's own: they are known once the driver is loaded, which is when one stands on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ...base.text import did_you_mean
from ...driver import Driver, declared, load_driver, read_options
from ...errors import DriverError, SettingsError, printable
from .options import add_option
from .parsing import Parser

S = TypeVar("S")
_CLOSE = 0.8  # a flag of a driver's own may well resemble one of ours
_DEST = "own "  # no other argument of a command begins so


def add_own_options(parser: Parser, drivers: Sequence[type[Driver]]) -> None:
    """A group of flags for each driver; one that several have is the same to all of them.

    Raises :class:`SettingsError` where one is a switch and another's has a value.
    """
    for driver in drivers:
        group = None
        for f in declared(driver):
            flag, switch = f.metadata["flag"], f.metadata["holds"](False)
            known = parser.known(flag)
            if known is not None:
                if (known.nargs == 0) is not switch:
                    raise SettingsError(
                        f"{flag} has a value for one of these drivers, and none for another: give variables"
                    )
                continue
            group = group or parser.add_argument_group(
                f"options of {driver.__name__}",
                "the driver's own; each can be given by its environment variable as well",
            )
            add_option(group, f, _DEST + f.name)


def given_own(args: argparse.Namespace, driver: type[Driver]) -> dict[str, Any]:
    """What was given on the command line of a driver's options, by name."""
    known = vars(args)
    return {f.name: known[_DEST + f.name] for f in declared(driver) if known.get(_DEST + f.name) is not None}


def add_flags_of(parser: Parser, targets: Sequence[str], unknown: Sequence[str]) -> dict[str, type[Driver]]:
    """Adds the flags of drivers; ``unknown`` are those on the command line that may be theirs, and without any it asks for help.

    Answers the drivers by target, of which each is loaded once. Raises :class:`DriverError` where one cannot be.
    """
    loaded: dict[str, type[Driver]] = {}
    try:
        for target in targets:
            loaded[target] = load_driver(target)
        add_own_options(parser, list(loaded.values()))
    except DriverError as e:
        if not unknown:
            parser.add_argument_group("options of the driver", f"cannot be told: {printable(e)}".replace("%", "%%"))
        elif not any(did_you_mean(flag, parser.flags, _CLOSE) for flag in unknown):  # else that is what is told
            raise
    return loaded


def together(settings: Callable[[], S], driver: type[Driver], own: Mapping[str, Any]) -> tuple[S, object]:
    """Settings and the driver's options. Raises :class:`SettingsError` with what is wrong with either."""
    faults: list[str] = []
    found: list[S] = []
    options = None
    try:
        found.append(settings())
    except SettingsError as e:
        faults += e.faults
    try:
        options = read_options(driver, own)
    except SettingsError as e:
        faults += e.faults
    if faults:
        raise SettingsError(*faults)
    return found[0], options


def variables(drivers: Sequence[type[Driver]]) -> Iterator[str]:
    """The names of their environment variables."""
    return (f.metadata["env"] for driver in drivers for f in declared(driver))
