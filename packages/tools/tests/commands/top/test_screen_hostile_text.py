"""The screen of `dra top` draws hostile text as text: no control characters reach the terminal, and markup of rich or Textual has no effect."""

from __future__ import annotations

import pytest

from dra_tools import Snapshot
from dra_tools.top.overview import overview
from packages.tools.tests.commands.top.static_overview import StaticOverview
from tests.helpers.hostile_text import assert_clean, cluster, hostile

pytest.importorskip("textual", reason="textual is not installed: pip install 'dra-tools[top]'")
from textual.pilot import Pilot

from dra_tools.commands.top.screen import Sheet, Top


def drawn(app: Top) -> str:
    """Returns the texts of the screen as they are written to the terminal."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def settled(app: Top, pilot: Pilot[None], where: str) -> str:
    await pilot.pause()
    text = drawn(app)
    assert_clean(text, where)
    return text


@pytest.mark.cases(1)
@pytest.mark.parametrize("everything", [False, True], ids=["free text", "everything"])
async def test_hostile_text_in_rows_and_details_is_drawn_as_text(everything: bool) -> None:
    snapshot = Snapshot.of(hostile(cluster(), everything))
    app = Top(StaticOverview(overview(snapshot), snapshot), "here\x1b[2J[red]")  # type: ignore[arg-type]
    async with app.run_test(size=(200, 50)) as pilot:
        text = await settled(app, pilot, "rows")
        assert "[red]" in text, "markup is shown as text"
        assert app.shown is not None
        rows = len(app.shown.devices) + 1
        seen = 0
        for _ in range(rows):
            await pilot.press("down", "enter")
            await pilot.pause()
            if isinstance(app.screen, Sheet):
                seen += "[red]" in await settled(app, pilot, "details of a device")
                await pilot.press("escape")
        assert seen, "the test opened no details of a device"
        await pilot.press("tab")
        for _ in app.shown.waiting:
            await pilot.press("enter")
            await app.workers.wait_for_complete()
            await settled(app, pilot, "the explanation of a pod")
            await pilot.press("escape", "down")
