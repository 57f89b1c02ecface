"""Cards and their partitions are shown as lines in the terminal and on the pages."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dra_tools.usage import texts
from dra_tools.usage.arranging import Grouping, arranged, matching
from dra_tools.usage.cards import Line, LineKind, lines
from dra_tools.usage.rows import DeviceRow, DeviceUse, HealthRow, Meter, Overview
from dra_tools.usage.usage import count_usage
from dra_tools.usage.view import sets_by_key
from tests.helpers.usage_examples import CARDS, cluster


def example() -> Overview:
    found = cluster()
    usage = count_usage(found.slices, found.claims, None, found.nodes)
    return Overview("cluster", usage.devices, usage.sets)


def lines_of(found: Overview, title: str, rows: list[DeviceRow] | None = None) -> list[Line]:
    groups = arranged(found.devices if rows is None else rows, sets=found.sets)
    (group,) = (g for g in groups if g.title == title)
    return list(lines(group.devices, sets_by_key(found.sets)))


def test_a_card_is_one_line_with_its_counters_followed_by_its_partitions() -> None:
    found = lines_of(example(), "node-1")
    assert [line.name for line in found if line.kind is LineKind.CARD] == list(CARDS)
    card, *parts = found[: [line.name for line in found].index(CARDS[1])]
    assert (card.share, card.meters) == (0.75, ("memory 48Gi/64Gi", "cores 6/8", "slots 1110"))
    assert [(p.use, p.name, p.holder) for p in parts] == [
        (DeviceUse.HELD, "part-half-0-1", "ml/train-0"),
        (DeviceUse.HELD, "part-quarter-2", "ml/notebook"),
        (DeviceUse.FREE, "part-quarter-3", ""),
        (DeviceUse.BLOCKED, "whole  part-half-2-3  part-quarter-0,1", ""),
    ]


def test_an_unhealthy_card_has_the_driver_s_text_on_one_line_and_is_not_free() -> None:
    found = lines_of(example(), "node-1")
    start = [line.name for line in found].index(CARDS[2])
    card, parts = found[start : start + 2]
    assert (parts.use, parts.health, parts.tone) == (DeviceUse.UNAVAILABLE, "▲ the fan stands still", texts.Tone.BAD)
    assert set(parts.devices) == set(card.devices)


def test_a_filter_for_tainted_devices_finds_an_unhealthy_device_and_its_text() -> None:
    found = example()
    assert {r.name for r in matching(found.devices, "tainted")} == {
        r.name for r in matching(found.devices, "fan still")
    }
    assert len(matching(found.devices, "tainted")) == 7


def test_devices_without_counters_have_their_own_lines() -> None:
    found = [line for line in lines_of(example(), "node-2") if line.driver == "gpu.example.com"]
    assert [(line.name, line.use, line.depth) for line in found] == [
        ("gpu-0", DeviceUse.UNAVAILABLE, 0),
        ("gpu-1", DeviceUse.HELD, 0),
    ]


@given(st.sampled_from(list(Grouping)), st.sampled_from(["", "quarter", "!half numa=0", "ml/", "node-2 gpu", "fan"]))
def test_each_device_of_a_group_is_on_exactly_one_line_below_its_card(grouping: Grouping, words: str) -> None:
    found = example()
    for group in arranged(matching(found.devices, words), grouping, sets=found.sets):
        all_lines = list(lines(group.devices, sets_by_key(found.sets)))
        below = [d for line in all_lines if line.kind is not LineKind.CARD for d in line.devices]
        assert sorted(below) == sorted(r.id for r in group.devices)
        assert len({line.key for line in all_lines}) == len(all_lines)


def test_numbered_counters_of_one_unit_are_combined_and_other_amounts_are_unchanged() -> None:
    found = [
        Meter("memory", "16Gi", "64Gi", 0.25),
        *(Meter(f"slot-{i}", str(int(i < 2)), "1", i < 2) for i in range(4)),
    ]
    assert texts.meters(found) == ("memory 16Gi/64Gi", "slots 1100")
    assert texts.meters([Meter("slot-0", "-1", "1", -1.0), Meter("slot-1", "2", "1", 2.0)]) == ("slots +2",)
    assert texts.meters([Meter("bank-0", "3", "4", 0.75), Meter("bank-1", "0", "4", 0.0)]) == (
        "bank-0 3/4",
        "bank-1 0/4",
    )
    assert texts.meters([Meter("engine", "1", "1", 1.0)]) == ("engine 1/1",)


@given(st.text("ab-0", min_size=1, max_size=40), st.integers(1, 50))
def test_a_shortened_name_keeps_its_start_and_its_end(name: str, width: int) -> None:
    cut = texts.cut_middle(name, width)
    assert len(cut) <= width
    if len(name) <= width:
        assert cut == name
    elif width > 3:
        start, _, end = cut.partition("…")
        assert name.startswith(start) and name.endswith(end) and len(end) >= len(start)


def test_the_reason_of_a_device_does_not_repeat_the_node_of_its_group() -> None:
    why, use = "node node-1 is cordoned", DeviceUse.UNAVAILABLE
    row = DeviceRow("node-1", "gpu.example.com", "node-1", "gpu-0", use, HealthRow.UNREPORTED, why=why)
    assert texts.health(row)[0] == "cordoned"
    assert texts.health(replace(row, node=""))[0] == "node node-1 is cordoned"
