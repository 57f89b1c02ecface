"""The live screen: devices above, waiting pods below, and the key bindings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
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

from ...analysis.top.arranging import Group, Grouping, Order, arranged, matching, matching_pods
from ...analysis.top.live import EVERY, LiveOverview
from ...base.terminal import on_one_line
from ...base.text import counted
from ...errors import QuestionError
from ...resourceapi.usage.rows import CounterRow, DeviceRow, Overview, PodRow
from ..explain_text import text as explanation
from ..shell.style import Style
from . import details, lines
from .lines import Entry, Widths
from .rows import Rows

Choice = TypeVar("Choice", bound=StrEnum)
_MANY = 24  # number of groups above which all groups start folded
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

  ○ free       ● held by a claim          ◐ held, and others may share it
  ◌ free, but other partitions hold the counters that it needs
  ✕ held, and it is no longer in a slice    ▲ tainted, or something is wrong

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
        self._widths = Widths()
        self._minute = -1

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
        minute = int(time.time() // 10)  # ages change without new data
        found = self.shown if self.paused and self.shown else self._live.current()
        if found is not self.shown:
            self.shown = found
            self._arrange()
        elif minute != self._minute:
            pods.refresh()
        self._minute = minute

    def _arrange(self) -> None:
        """Rebuilds the rows with the current filter, grouping and order."""
        found = self.shown
        if found is None:
            return
        text = self.query_one("#filter", Input).value
        rows = matching(found.devices, text)
        groups = arranged(rows, self.grouping, self.order, backwards=self.backwards)
        if self._fold_all is None:
            self._fold_all = len(groups) > _MANY
        self._widths = Widths.of(groups, self.size.width, node=self.grouping is Grouping.DRIVER)
        with_sets = self.grouping in {Grouping.NODE, Grouping.SET}
        sets = {(s.driver, s.pool, s.name): s for s in found.sets} if with_sets else {}
        entries = [e for g in groups for e in self._of_group(g, sets)]
        self.query_one("#devices", Rows).put(entries)
        pods = matching_pods(found.waiting, text)
        self.query_one("#pods", Rows).put([Entry(f"pod {p.uid}", p) for p in pods])
        self._write_head(found, rows, pods, text)

    def _of_group(self, group: Group, sets: dict[tuple[str, str, str], CounterRow]) -> Iterable[Entry]:
        folded = (group.title in self._folded) is not bool(self._fold_all)
        yield Entry(f"group {group.title}", group, folded)
        if folded:
            return
        drawn = {(r.driver, r.pool, name): None for r in group.devices for name in r.sets} if sets else {}
        yield from (Entry(f"set {key}", sets[key]) for key in drawn if key in sets)
        yield from (Entry(f"device {r.id}", r) for r in group.devices)

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
        head.append(f"\n{counted(n.devices, 'device')}  ", style="bold").append(f"● {n.held} held  ", style="cyan")
        head.append(f"○ {n.free} free  ", style="green")
        head.append(f"◌ {n.blocked} blocked  ", style="yellow" if n.blocked else "dim")
        head.append(f"▲ {n.bad} not well", style="bold red" if n.bad else "dim")
        head.append(
            f"   by {self.grouping}, sorted by {self.order}{' backwards' if self.backwards else ''}", style="dim"
        )
        if filtered:
            head.append(f"   {len(rows)} match {filtered!r}", style="yellow")
        self.query_one("#head", Static).update(head)
        notes = [f"▲ {n.name} is {n.unschedulable}" for n in found.nodes if n.unschedulable][:2]
        notes = [*found.gaps, *found.notes, *notes]
        self.query_one("#notes", Static).update(Text("\n".join(map(on_one_line, notes))))
        self.query_one("#notes").display = bool(notes)
        number = {0: "no pod waits", 1: "1 pod waits"}.get(len(pods), f"{len(pods)} pods wait")
        self.query_one("#title", Static).update(Text(f"{number} for devices", style="bold"))

    def _device_line(self, entry: Entry) -> Text:
        match entry.row:
            case Group() as group:
                return lines.group_line(entry, group, self._widths.group)
            case CounterRow() as found:
                return lines.set_line(found)
            case DeviceRow() as row:
                return lines.device_line(row, self._widths)
        raise AssertionError("pods have a list of their own")

    def _pod_line(self, entry: Entry) -> Text:
        assert isinstance(entry.row, PodRow)
        return lines.pod_line(entry.row, time.time())

    # --- keys -----------------------------------------------------------------------------------

    def on_resize(self) -> None:
        self._arrange()

    def on_rows_opened(self, message: Rows.Opened) -> None:
        match message.entry.row:
            case Group() as group:
                self._folded ^= {group.title}
                self._arrange()
            case DeviceRow() as row:
                self.push_screen(Sheet(row.id, [*details.device(row, self.shown.sets if self.shown else ())]))
            case CounterRow() as found:
                notes = [f"{m.name}: {m.used} of {m.total} used" for m in found.meters]
                self.push_screen(Sheet(f"{found.driver}/{found.pool}/{found.name}", notes))
            case PodRow() as pod:
                self.run_worker(self._explain(pod), exclusive=True, exit_on_error=False)

    async def _explain(self, pod: PodRow) -> None:
        try:
            text = explanation(await self._live.reasons.whole(pod), Style(coloured=False))
        except QuestionError as e:
            text = [str(e)]
        await self.push_screen(Sheet(f"pod {pod.namespace}/{pod.name}", text))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR:
            self.notify(
                f"this could not be explained: {on_one_line(event.worker.error)}", severity="error", markup=False
            )

    def action_help(self) -> None:
        self.push_screen(Sheet("keys and signs", _HELP.splitlines()))

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


def _after(now: Choice, kind: type[Choice]) -> Choice:
    known = list(kind)
    return known[(known.index(now) + 1) % len(known)]


__all__ = ["Sheet", "Top"]
