"""The table of `dra top`."""

from __future__ import annotations

from dra_kubeletplugin.cli.shell.style import Style
from dra_kubeletplugin.cli.top.table import table
from dra_kubeletplugin.resourceapi.usage.rows import NodeRow, Overview


def test_the_table_reports_which_nodes_are_away() -> None:
    found = Overview("cluster", nodes=(NodeRow("n1", unschedulable="not ready"), NodeRow("n2")))
    assert [line for line in table(found, Style(coloured=False)) if line.startswith("note")] == [
        "note: n1 is not ready"
    ]
