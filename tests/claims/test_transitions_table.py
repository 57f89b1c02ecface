"""The table in the docstring of transitions.py is what the decisions are, for each state, owner and boot of a record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import product

from dra_kubeletplugin.claims import State, transitions
from dra_kubeletplugin.claims.store.records import HeldByError, Records
from dra_kubeletplugin.claims.transitions import Decision
from tests.claims.test_transitions import (
    DEAD_PROCESS,
    NO_SUPPLY,
    RUNNING_PROCESS,
    THIS_PROCESS,
    make_records,
    make_transitions,
    record,
)
from tests.helpers.crash.record_stores import BOOT

OWNERS = {"none": "", "this process": THIS_PROCESS, "a living process": RUNNING_PROCESS, "a dead process": DEAD_PROCESS}
BOOTS = {"this": BOOT, "earlier": "earlier"}
HEADER = ("state", "boot", "owner", "prepare", "unprepare", "other claim wants it", "start")


def name(decide: Callable[[Records], Decision], records: Records) -> str:
    try:
        return type(decide(records)).__name__
    except HeldByError as e:
        return type(e).__name__


def decisions(state: State, owner: str, boot: str) -> tuple[str, ...]:
    """Returns the decision of each column for a record of this kind."""
    own, other = record("u", state=State.PREPARING), record("v", state=State.PREPARING)
    deciding = make_transitions()
    columns: list[Callable[[Records], Decision]] = [
        lambda records: deciding.begin(records, own, None, NO_SUPPLY),
        lambda records: deciding.end(records, "u", lambda: None),
        lambda records: deciding.begin(records, other, None, NO_SUPPLY),
        lambda records: deciding.tidy(records, "u"),
    ]
    return tuple(name(c, make_records(record("u", state=state, owner=owner, boot=boot))) for c in columns)


def table() -> list[str]:
    owners = defaultdict[tuple[str, ...], list[str]](list)
    for state, (boot_name, boot), (owner_name, owner) in product(State, BOOTS.items(), OWNERS.items()):
        found = decisions(state, owner, boot)
        owners[str(state), boot_name, *found].append(owner_name)
    rows = [HEADER]
    for (state_name, boot_name, *found), names in owners.items():
        rows.append((state_name, boot_name, "any" if len(names) == len(OWNERS) else " or ".join(names), *found))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def test_the_table_of_decisions_is_complete_and_true() -> None:
    documented = [line.strip() for line in (transitions.__doc__ or "").splitlines()]
    wanted = table()
    start = documented.index(wanted[0]) if wanted[0] in documented else 0
    assert documented[start : start + len(wanted)] == wanted, "\n".join(["the table must be:", *wanted])
