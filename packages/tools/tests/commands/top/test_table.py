"""The lines of `dra top --once` in terminals of different widths."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dra_devkit.commands.style import Style
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.yaml import dump
from dra_kubeletplugin.cli import main
from dra_tools.commands.top import explained_overview
from dra_tools.commands.top.lines import cells
from dra_tools.commands.top.table import table
from dra_tools.usage.arranging import FOLD_ABOVE
from dra_tools.usage.rows import NodeRow, Overview
from tests.helpers.objects import claim, device_class, pod, slice_of
from tests.helpers.usage_examples import CARDS, cluster, node

PLAIN = Style(coloured=False)


def test_the_table_notes_nodes_that_are_not_ready() -> None:
    found = Overview("cluster", nodes=(NodeRow("n1", unschedulable="not ready"), NodeRow("n2")))
    assert [line for line in table(found, PLAIN, 80) if line.startswith("note")] == ["note: n1 is not ready"]


def test_nodes_that_are_unschedulable_for_one_reason_share_a_line() -> None:
    nodes = [NodeRow(f"n{i}", unschedulable="cordoned" if i % 2 else "not ready") for i in range(9)]
    notes = [line for line in table(Overview("cluster", nodes=tuple(nodes)), PLAIN, 80) if line.startswith("note")]
    assert notes == [
        "note: 5 nodes are not ready: n0, n2, n4 and 2 more",
        "note: 4 nodes are cordoned: n1, n3, n5 and 1 more",
    ]


def test_the_table_of_a_large_cluster_has_one_line_for_each_node_without_a_filter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    names = [f"n{i}" for i in range(FOLD_ABOVE + 1)]
    objects = [o for n in names for o in (node(n), slice_of(n, [f"{n}-gpu"]))]
    file.write_text("---\n".join(dump(o, width=120, unicode=True) for o in objects))
    shown = {}
    for words in ("", "--filter n", "--node n7"):
        assert main(["top", "-f", str(file), *words.split()]) == 3, "the files contain no pods and claims"
        shown[words] = capsys.readouterr().out
    output = shown[""]
    assert [line.split()[1] for line in output.splitlines() if line.startswith("▸")] == names
    assert "-gpu" not in output and "--filter WORDS" in output
    assert [n for n in names if f"{n}-gpu" in shown["--filter n"]] == names
    assert "n7-gpu" in shown["--node n7"]


@pytest.mark.parametrize("columns", [80, 130, 200])
def test_each_line_fits_and_rows_stay_distinguishable(columns: int) -> None:
    lines = list(table(explained_overview(cluster(), "", lambda text: None), PLAIN, columns))
    assert max(map(cells, lines)) <= columns
    for name in ("node-1", "node-2"):
        start = next(i for i, line in enumerate(lines) if line.startswith(f"▾ {name}"))
        rows = lines[start : lines.index("", start)]
        for card in CARDS:
            (row,) = (r for r in rows if r.split()[0] == card)
            assert re.search(r"memory \S+/64Gi  cores \d/8  slots [01]{4}", row), "one line for all counters"
    text = "\n".join(lines)
    for words in ("● held +part-half-0-1 +ml/train-0", "● held +part-quarter-2 +ml/notebook", "▲ the fan stands still"):
        assert re.search(words, text)
    assert "▾ node-1  ▕████▍     ▏ 1.75 of 4 held  ▲ 7 not well" in lines
    assert "2 pods wait to start" in lines


def test_the_table_cuts_long_names_in_the_middle_and_writes_complete_names_to_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"accelerator-0000-17-00-{i}-with-a-name-of-its-vendor-{i}" for i in range(3)]
    file = tmp_path / "cluster.yaml"
    objects = [node("node-1"), slice_of("node-1", names)]
    file.write_text("---\n".join(dump(o, width=120, unicode=True) for o in objects))
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["top", "-f", str(file)]) == 3, "the files contain no pods and claims"
    rows = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "  ○ free  " in line]
    assert len(set(rows)) == 3 and all("…" in r and r.endswith(f"-{i}") for i, r in enumerate(rows))
    monkeypatch.delenv("COLUMNS")
    assert main(["top", "-f", str(file), "--once"]) == 3
    out = capsys.readouterr().out
    assert all(name in out for name in names)


def test_the_table_counts_the_waiting_pods_that_a_filter_hides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("---\n".join(dump(o, width=120, unicode=True) for objs in cluster().objects.values() for o in objs))
    assert main(["top", "-f", str(file), "--filter", "part-half-2-3"]) == 0
    out = capsys.readouterr().out
    assert "2 pods wait to start, the filter hides 2" in out
    assert "part-half-2-3" in out and "quarter" not in out


# --- the options that select a part -------------------------------------------------------------------


def _cluster_file(folder: Path, *more: JSON) -> str:
    """Writes a cluster with a node, and a waiting pod in each of two namespaces."""
    pods = [pod(name, claims=["c"]) for name in ("one", "two")]
    for each in pods:
        each["metadata"]["namespace"] = each["metadata"]["name"]
    objects = [node("n1"), slice_of("n1", ["d"]), device_class(), claim(), *pods, *more]
    (folder / "all.yaml").write_text("---\n".join(dump(o, width=120, unicode=True) for o in objects))
    return str(folder / "all.yaml")


def test_the_namespace_selects_the_waiting_pods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _cluster_file(tmp_path)
    assert main(["top", "-f", file, "-n", "two", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [p["name"] for p in found["waiting"]] == ["two"]
    assert (found["count"]["waiting"], len(found["devices"])) == (1, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["top", "-n", "tow"], "no object is in namespace tow, did you mean 'two'?"),
        (["top", "--node", "m1"], "there is no node m1"),
        (["explain", "-n", "tow"], "no object is in namespace tow, did you mean 'two'?"),
    ],
)
def test_a_namespace_or_node_without_objects_is_an_error(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "-f", _cluster_file(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, message in printed.err) == ("", True)


def test_an_object_that_is_defined_twice_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = [slice_of("n1", ["d", "e"]), pod("one", claims=["c"])]
    again[1]["metadata"]["namespace"] = "one"
    file = _cluster_file(tmp_path, *again)
    note = "defined more than once, so the last definition wins: ResourceSlice s-n1, Pod one/one"
    assert main(["top", "-f", file, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (len(found["devices"]), [p["name"] for p in found["waiting"]]) == (2, ["one", "two"])
    assert found["notes"] == [note]
    main(["explain", "-f", file])
    out = capsys.readouterr().out
    assert (out.count("one/one  "), out.count(note)) == (1, 1)
