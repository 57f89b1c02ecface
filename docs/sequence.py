"""Draws the pages' ``sequence`` blocks as SVG while the site is built: a hook of MkDocs. Nothing is fetched, and GitHub shows the text.

kubelet, plugin, disk              lanes, from left to right; the first line
kubelet -> plugin: prepare         an arrow with its label
plugin -> plugin: waits            something that a lane does itself
plugin: Preparing                  a note on a lane
plugin x killed                    its line ends here, for this reason
plugin o starts                    its line goes on
== reboot ==                       across all lanes
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape

WIDTH, TOP, STEP, CHARACTER = 720, 46, 30, 6.4
_BLOCK = re.compile(r"^```sequence\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ARROW = re.compile(r"(.+?) -> (.+?): (.+)")
_EVENT = re.compile(r"(.+?) ([xo]) (.+)")
_ACROSS = re.compile(r"== (.+) ==")
_NOTE = re.compile(r"(.+?): (.+)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """What MkDocs calls for each page."""
    return _BLOCK.sub(lambda block: f'<div class="sequence">{draw(block[1])}</div>', markdown)


@dataclass
class Drawing:
    lanes: list[str]
    parts: list[str] = field(default_factory=list)
    y: float = TOP
    alive: dict[str, float] = field(default_factory=dict)  # since which height

    def x(self, lane: str) -> float:
        if lane not in self.lanes:
            raise ValueError(f"{lane!r} is no lane of this picture, only {', '.join(self.lanes)}")
        return WIDTH / len(self.lanes) * (self.lanes.index(lane) + 0.5)

    def text(self, x: float, words: str, kind: str = "", above: float = 5) -> None:
        half = len(words) * CHARACTER / 2
        x = min(max(x, half + 2), WIDTH - half - 2)
        y = self.y - above
        height = 16 if kind else 13  # an arrow's head is below
        self.parts.append(
            f'<rect x="{x - half - 3:.0f}" y="{y - 12:.0f}" width="{2 * half + 6:.0f}" height="{height}" class="behind {kind}"/>'
        )
        self.parts.append(f'<text x="{x:.0f}" y="{y:.0f}">{escape(words)}</text>')

    def line(self, lane: str) -> None:
        """A lane's life up to here."""
        begin = self.alive.pop(lane, None)
        if begin is not None:
            self.parts.insert(0, f'<path d="M{self.x(lane):.0f} {begin:.0f}V{self.y:.0f}" class="life"/>')

    def arrow(self, source: str, target: str, words: str) -> None:
        start, end = self.x(source), self.x(target)
        if start == end:
            self.text(start, words, "note")
            return
        tip = -7 if end > start else 7
        self.parts.append(f'<path d="M{start:.0f} {self.y:.0f}H{end:.0f}m{tip} -4l{-tip} 4l{tip} 4" class="arrow"/>')
        self.text((start + end) / 2, words)

    def event(self, lane: str, sign: str, words: str) -> None:
        x = self.x(lane)
        if sign == "x":
            self.line(lane)
            self.parts.append(f'<path d="M{x - 6:.0f} {self.y - 6:.0f}l12 12m0 -12l-12 12" class="end"/>')
        else:
            self.alive[lane] = self.y
            self.parts.append(f'<circle cx="{x:.0f}" cy="{self.y:.0f}" r="4" class="begin"/>')
        half = len(words) * CHARACTER / 2
        right = x + half + 14 if x + 2 * half + 16 < WIDTH else x - half - 14
        self.text(right, words, above=-4)


def draw(text: str) -> str:
    """The picture, on one line. Raises ``ValueError`` for a line that says nothing of the kind."""
    first, *lines = [line.strip() for line in text.strip().splitlines()]
    drawing = Drawing([lane.strip() for lane in first.split(",")])
    for lane in drawing.lanes:
        drawing.parts.append(f'<text x="{drawing.x(lane):.0f}" y="20" class="lane">{escape(lane)}</text>')
    begun_later = {m[1] for line in reversed(lines) if (m := _EVENT.fullmatch(line)) and m[2] == "o"}
    ended_first = {m[1] for line in lines if (m := _EVENT.fullmatch(line)) and m[2] == "x"}
    drawing.alive = {lane: 28.0 for lane in drawing.lanes if lane not in begun_later - ended_first}
    for line in lines:
        if not line:
            continue
        drawing.y += STEP
        if found := _ACROSS.fullmatch(line):
            drawing.parts.append(f'<path d="M0 {drawing.y - 9:.0f}H{WIDTH}" class="across"/>')
            drawing.text(WIDTH / 2, found[1], "note")
        elif found := _ARROW.fullmatch(line):
            drawing.arrow(*found.groups())
        elif found := _EVENT.fullmatch(line):
            drawing.event(*found.groups())
        elif found := _NOTE.fullmatch(line):
            drawing.text(drawing.x(found[1]), found[2], "note")
        else:
            raise ValueError(f"a picture has no line such as {line!r}")
    drawing.y += STEP / 2
    for lane in list(drawing.alive):
        drawing.line(lane)
    words = escape(" ".join(text.split()), quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {drawing.y + 6:.0f}" role="img" aria-label="{words}">{"".join(drawing.parts)}</svg>'
    )
