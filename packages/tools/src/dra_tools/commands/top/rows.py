"""A list of any length with a cursor. Only visible lines are rendered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dra_kubeletplugin.base.terminal import on_one_line

from ...usage.arranging import Group
from ...usage.cards import Line
from ...usage.rows import PodRow
from .lines import Piece

_CURSOR = Style(bold=True, reverse=True)


@dataclass(frozen=True)
class Entry:
    """One line. ``key`` identifies the same object across updates."""

    key: str
    row: Group | Line | PodRow
    folded: bool = False


class Rows(ScrollView, can_focus=True):
    """Shows ``entries``, formatted by ``line``. The cursor stays on its entry when other entries are added or removed."""

    BINDINGS: ClassVar = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "end(-1)", "first", show=False),
        Binding("end", "end(1)", "last", show=False),
        Binding("enter", "open", "details"),
    ]
    cursor = reactive(0)

    class Opened(Message):
        def __init__(self, entry: Entry) -> None:
            self.entry = entry
            super().__init__()

    def __init__(self, line: Callable[[Entry], Sequence[Piece]], id: str) -> None:
        super().__init__(id=id)
        self.entries: Sequence[Entry] = ()
        self._line = line

    def put(self, entries: Sequence[Entry]) -> None:
        before = self.chosen
        self.entries = entries
        if before is not None:
            self.cursor = next((i for i, e in enumerate(entries) if e.key == before.key), self.cursor)
        self.cursor = max(0, min(self.cursor, len(entries) - 1))
        self.virtual_size = Size(0, len(entries))
        self.refresh()

    @property
    def chosen(self) -> Entry | None:
        return self.entries[self.cursor] if 0 <= self.cursor < len(self.entries) else None

    @property
    def seen(self) -> Sequence[Entry]:
        """The entries on the screen."""
        top = self.scroll_offset.y
        return self.entries[top : top + max(1, self.size.height)]

    def render_line(self, y: int) -> Strip:
        number = y + self.scroll_offset.y
        width = self.size.width
        if number >= len(self.entries):
            return Strip.blank(width, self.rich_style)
        text = Text.assemble(*self._line(self.entries[number]))
        text.plain = on_one_line(text.plain)  # same length, so that styles keep their positions
        strip = Strip(text.render(self.app.console)).apply_style(self.rich_style)
        if number == self.cursor and self.has_focus:
            strip = Strip([s.__class__(s.text, _CURSOR) for s in strip])
            return strip.adjust_cell_length(width, _CURSOR)
        return strip.adjust_cell_length(width, self.rich_style)

    def watch_cursor(self) -> None:
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        number = event.y + self.scroll_offset.y
        if number < len(self.entries):
            if number == self.cursor:
                self.action_open()
            self.cursor = number

    def action_move(self, by: int) -> None:
        self.cursor = max(0, min(self.cursor + by, len(self.entries) - 1))

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.size.height - 1))

    def action_end(self, by: int) -> None:
        self.action_move(by * len(self.entries))

    def action_open(self) -> None:
        if (chosen := self.chosen) is not None:
            self.post_message(self.Opened(chosen))
