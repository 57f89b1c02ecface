"""The live screen: devices above, waiting pods below, and the key bindings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static
from textual.worker import Worker, WorkerState

from dra_devkit.commands.style import Style
from dra_kubeletplugin.base.terminal import on_one_line
from dra_kubeletplugin.errors import QuestionError

from ...top.live import EVERY, LiveOverview
from ...usage import texts
from ...usage.arranging import FOLD_ABOVE, Group, Grouping, Order, arranged, matching, matching_pods, waiting_title
from ...usage.cards import Line
from ...usage.cards import lines as lines_of
from ...usage.details import Section, sections
from ...usage.rows import CounterRow, DeviceRow, Overview, PodRow, SetKey
from ...usage.view import notes, sets_by_key, tiles
from ..explain_text import text as explanation
from . import lines
from .lines import Piece, Widths
from .rows import Entry, Rows

Choice = TypeVar("Choice", bound=StrEnum)
_HELP = """\
The screen shows the state of the cluster. It never changes the cluster.

  ↑ ↓ j k      move            Enter     details, or fold a group
  PgUp PgDn    a screen        Tab       devices or pods
  /            filter: all words must be present, !word must be absent
  Esc          end the filter, close
  g            group by node, driver, PCIe root, NUMA node or partition
  s  r         sort by name, use, health or holder; reverse the order
  c            fold or unfold all groups
  p            pause          q         quit

  The bar of a card is the used part of its counters. Below the card, parts with the
  same state share a line. Numbered counters share one text: slots 1100 means that two
  of four are used.

  The reason of a pod on the screen is computed as by `dra explain`.
  Until it is ready, Kubernetes' message is shown in dim letters."""


class Sheet(ModalScreen[None]):
    """Text that covers the screen until Escape is pressed."""

    BINDINGS: ClassVar = [Binding("escape,q,enter,question_mark", "dismiss", "close")]

    def __init__(self, title: str, text: Sequence[str]) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="sheet") as sheet:
            sheet.border_title = Content(on_one_line(self._title))
            sheet.border_subtitle = "Esc closes"
            yield Static(Text("\n".join(map(on_one_line, self._text))))


class Top(App[None]):
    """Shows ``live`` until q is pressed. ``where`` is the URL of the cluster."""

    TITLE = "dra top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #head { height: auto; max-height: 40%; padding: 0 1; background: $panel; }
    #notes { height: auto; max-height: 25%; padding: 0 1; color: $text-warning; }
    #filter { display: none; height: 1; border: none; padding: 0 1; }
    #filter.shown { display: block; }
    #devices { height: 1fr; scrollbar-size-vertical: 1; }
    #title { height: 1; padding: 0 1; background: $panel; }
    #pods { height: auto; max-height: 30%; min-height: 1; scrollbar-size-vertical: 1; }
    Sheet { align: center middle; background: $background 60%; }
    #sheet { width: 90%; max-width: 124; height: auto; max-height: 90%; padding: 1 2; border: round $primary; background: $surface; }
    """
    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("g", "group", "group"),
        Binding("s", "sort", "sort"),
        Binding("r", "backwards", "backwards"),
        Binding("c", "fold", "fold"),
        Binding("p", "pause", "pause"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("escape", "clear", "clear", show=False),
    ]

    def __init__(self, live: LiveOverview, where: str, filtered: str = "") -> None:
        super().__init__()
        self._live, self._where, self._filtered = live, where, filtered
        self.shown: Overview | None = None
        self.grouping, self.order = Grouping.NODE, Order.NAME
        self.backwards = self.paused = False
        self._folded: set[str] = set()
        self._fold_all: bool | None = None  # None until the number of groups is known
        self._widths, self._pod_width = Widths(), 0
        self._age_step = -1

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="notes")
        yield Input(placeholder="filter: gpu-1 numa=0 !tainted", id="filter", compact=True, value=self._filtered)
        yield Rows(self._device_line, id="devices")
        yield Static(id="title")
        yield Rows(self._pod_line, id="pods")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#devices").focus()
        self.look()
        self.set_interval(EVERY, self.look)

    # --- content --------------------------------------------------------------------------------

    def look(self) -> None:
        """Updates the screen if there is new data. A paused screen stays unchanged."""
        if not self.is_running:
            return  # the app is closing: its widgets are removed before its timer
        pods = self.query_one("#pods", Rows)
        self._live.reasons.show([e.row for e in pods.seen if isinstance(e.row, PodRow)])
        age_step = int(time.time() // 10)  # the shown ages change without new data
        started = time.thread_time()
        found = self.shown if self.paused and self.shown else self._live.current()
        if found is not self.shown:
            self.shown = found
            self._arrange()
            self._live.rest(time.thread_time() - started)
        elif age_step != self._age_step:
            pods.refresh()
        self._age_step = age_step

    def _arrange(self) -> None:
        """Rebuilds the rows with the current filter, grouping and order."""
        found = self.shown
        if found is None:
            return
        text = self.query_one("#filter", Input).value
        rows = matching(found.devices, text)
        groups = arranged(rows, self.grouping, self.order, sets=found.sets, backwards=self.backwards)
        if self._fold_all is None:
            self._fold_all = len(groups) > FOLD_ABOVE
        sets = sets_by_key(found.sets)
        entries = [e for g in groups for e in self._of_group(g, sets)]
        shown = [e.row for e in entries if isinstance(e.row, Line)]
        drivers = self.grouping is not Grouping.DRIVER and len({r.driver for r in rows}) > 1
        node = self.grouping is Grouping.DRIVER
        self._widths = Widths.of(groups, shown, self.size.width, node=node, driver=drivers)
        self.query_one("#devices", Rows).put(entries)
        pods = matching_pods(found.waiting, text)
        self._pod_width = lines.pod_width(pods)
        self.query_one("#pods", Rows).put([Entry(f"pod {p.uid}", p) for p in pods])
        self._write_head(found, rows, pods, text)

    def _of_group(self, group: Group, sets: Mapping[SetKey, CounterRow]) -> Iterable[Entry]:
        folded = (group.title in self._folded) is not bool(self._fold_all)
        yield Entry(f"group {group.title}", group, folded)
        if not folded:
            yield from (Entry(line.key, line) for line in lines_of(group.devices, sets))

    def _write_head(self, found: Overview, rows: Sequence[DeviceRow], pods: Sequence[PodRow], filtered: str) -> None:
        n = found.count
        head = Text.assemble(
            ("dra top ", "bold"), f"{on_one_line(found.title)} ", (f"{on_one_line(self._where)}  ", "dim")
        )
        if found.unavailable:
            head.append(f"✕ the API server is unavailable: {on_one_line(found.unavailable)}", style="bold red")
        elif self.paused:
            head.append(f"‖ paused at {time.strftime('%H:%M:%S', time.localtime(found.at))}", style="bold yellow")
        else:
            head.append("● live", style="green")
        head.append("\n")
        for tile in tiles(replace(n, waiting=None)):
            style = lines.STYLES[tile.tone] if tile.number != "0" else "dim"
            head.append(f"{tile}  ", style="bold" if tile.tone is texts.Tone.NONE else style)
        head.append(f" by {self.grouping}, sorted by {self.order}{' backwards' if self.backwards else ''}", style="dim")
        if filtered:
            head.append(f"   {len(rows)} match {filtered!r}", style="yellow")
        self.query_one("#head", Static).update(head)
        text = "\n".join(map(on_one_line, notes(found)))
        self.query_one("#notes", Static).update(Text(text))
        self.query_one("#notes").display = bool(text)
        self.query_one("#title", Static).update(Text(waiting_title(len(pods), n.waiting), style="bold"))

    def _device_line(self, entry: Entry) -> Sequence[Piece]:
        if isinstance(entry.row, Group):
            return lines.group_line(entry.row, self._widths.group, folded=entry.folded)
        assert isinstance(entry.row, Line)
        return lines.device_line(entry.row, self._widths)

    def _pod_line(self, entry: Entry) -> Sequence[Piece]:
        assert isinstance(entry.row, PodRow)
        return lines.pod_line(entry.row, time.time(), self._pod_width, self.size.width)

    # --- keys -----------------------------------------------------------------------------------

    def on_resize(self) -> None:
        self._arrange()

    def on_rows_opened(self, message: Rows.Opened) -> None:
        match message.entry.row:
            case Group() as group:
                self._folded ^= {group.title}
                self._arrange()
            case Line() as line:
                found = sections(self.shown, line.devices) if self.shown else []
                title = line.devices[0] if len(line.devices) == 1 else line.name
                self.push_screen(Sheet(title, [*_section_lines(found)]))
            case PodRow() as pod:
                self.run_worker(self._explain(pod), exclusive=True, exit_on_error=False)

    async def _explain(self, pod: PodRow) -> None:
        try:
            text = explanation(await self._live.reasons.full_explanation(pod), Style(coloured=False))
        except QuestionError as e:
            text = [str(e)]
        await self.push_screen(Sheet(f"pod {pod.namespace}/{pod.name}", text))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR:
            self.notify(
                f"the pod cannot be explained: {on_one_line(event.worker.error)}", severity="error", markup=False
            )

    def action_help(self) -> None:
        signs = [f"  {sign.ljust(15)}{meaning}" for sign, meaning in texts.signs()]
        self.push_screen(Sheet("keys and signs", [*_HELP.splitlines(), "", *signs]))

    def action_filter(self) -> None:
        shown = self.query_one("#filter", Input)
        shown.add_class("shown")
        shown.focus()

    def on_input_changed(self) -> None:
        self._arrange()

    def on_input_submitted(self) -> None:
        self.query_one("#devices").focus()

    def action_clear(self) -> None:
        shown = self.query_one("#filter", Input)
        shown.value = ""
        shown.remove_class("shown")
        self.query_one("#devices").focus()

    def action_group(self) -> None:
        self.grouping = _after(self.grouping, Grouping)
        self._folded, self._fold_all = set(), None
        self._arrange()

    def action_sort(self) -> None:
        self.order = _after(self.order, Order)
        self._arrange()

    def action_backwards(self) -> None:
        self.backwards = not self.backwards
        self._arrange()

    def action_fold(self) -> None:
        self._folded, self._fold_all = set(), not self._fold_all
        self._arrange()

    def action_pause(self) -> None:
        self.paused = not self.paused
        if self.shown is not None:
            self.shown = replace(self.shown)  # a new object, so that the head is updated
        self._arrange()
        self.look()


def _section_lines(found: Iterable[Section]) -> Iterator[str]:
    for title, pairs in found:
        yield from ("", title) if title else ()
        width = max(len(name) for name, _ in pairs)
        yield from (f"  {name.ljust(width)}  {value}" for name, value in pairs)


def _after(now: Choice, kind: type[Choice]) -> Choice:
    known = list(kind)
    return known[(known.index(now) + 1) % len(known)]
