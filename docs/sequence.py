"""Draws sequence diagrams as SVG: `make docs` draws ``docs/diagrams/NAME.svg`` from ``NAME.txt`` beside it.

A picture has its own background and the colours of light and dark mode. It is narrow, so it can be read on a phone.

kubelet, plugin, disk              first line: the lanes, from left to right
kubelet -> plugin: prepare         an arrow with its label
plugin: Preparing                  a note on a lane
plugin x killed                    the process of the lane ends, for this reason
plugin o starts                    a process starts
== reboot ==                       a line across all lanes
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

DIAGRAMS = Path(__file__).parent / "diagrams"
WIDTH, TOP, STEP = 460, 46, 30
CHARACTER = 7.3
"""Width of a character: 13 px of a wide font, so that no font exceeds it."""
_ARROW = re.compile(r"(.+?) -> (.+?): (.+)")
_EVENT = re.compile(r"(.+?) ([xo]) (.+)")
_ACROSS = re.compile(r"== (.+) ==")
_NOTE = re.compile(r"(.+?): (.+)")
_STYLE = """
svg { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; }
text { text-anchor: middle; fill: #1f2328; }
.lane { font-weight: 600; font-size: 12px; }
.page, .behind { fill: #ffffff; }
.note { fill: #eef1f5; stroke: #c4cad2; rx: 3px; }
.life, .across { stroke: #8c959f; fill: none; }
.across { stroke-dasharray: 5 4; }
.arrow { stroke: #3949ab; stroke-width: 1.4; fill: none; }
.end { stroke: #c62828; stroke-width: 2.4; fill: none; }
.begin { fill: #2e7d32; }
@media (prefers-color-scheme: dark) {
text { fill: #e6e8ec; }
.page, .behind { fill: #1e2129; }
.note { fill: #2c313c; stroke: #565d6b; }
.life, .across { stroke: #7d8590; }
.arrow { stroke: #8c9eff; }
.end { stroke: #ff6b6b; }
.begin { fill: #57c264; }
}
"""


def files() -> dict[str, str]:
    """Returns every picture: path in the tree and text."""
    return {f"docs/diagrams/{source.stem}.svg": draw(source.read_text()) for source in sorted(DIAGRAMS.glob("*.txt"))}


@dataclass
class Drawing:
    lanes: list[str]
    elements: list[str] = field(default_factory=list)
    y: float = TOP
    starts: dict[str, float] = field(default_factory=dict)
    """Height at which the process of a lane started; without an entry, it does not run."""

    def x(self, lane: str) -> float:
        if lane not in self.lanes:
            raise ValueError(f"{lane!r} is not a lane of this diagram; its lanes are {', '.join(self.lanes)}")
        return WIDTH / len(self.lanes) * (self.lanes.index(lane) + 0.5)

    def text(self, x: float, words: str, kind: str = "", above: float = 5) -> None:
        half = len(words) * CHARACTER / 2
        x = min(max(x, half + 6), WIDTH - half - 6)
        y = self.y - above
        height = 18 if kind else 14  # a label is lower, because the head of its arrow is below it
        self.elements.append(
            f'<rect x="{x - half - 3:.0f}" y="{y - 13:.0f}" width="{2 * half + 6:.0f}" height="{height}" '
            f'class="{kind or "behind"}"/>'
        )
        self.elements.append(f'<text x="{x:.0f}" y="{y:.0f}">{escape(words)}</text>')

    def life(self, lane: str) -> None:
        """Draws the line of a lane's process, down to the current height."""
        start = self.starts.pop(lane, None)
        if start is not None:
            self.elements.insert(0, f'<path d="M{self.x(lane):.0f} {start:.0f}V{self.y:.0f}" class="life"/>')

    def arrow(self, source: str, target: str, words: str) -> None:
        start, end = self.x(source), self.x(target)
        tip = -7 if end > start else 7
        self.elements.append(f'<path d="M{start:.0f} {self.y:.0f}H{end:.0f}m{tip} -4l{-tip} 4l{tip} 4" class="arrow"/>')
        self.text((start + end) / 2, words)

    def event(self, lane: str, sign: str, words: str) -> None:
        x = self.x(lane)
        if sign == "x":
            self.life(lane)
            self.elements.append(f'<path d="M{x - 6:.0f} {self.y - 6:.0f}l12 12m0 -12l-12 12" class="end"/>')
        else:
            self.starts[lane] = self.y
            self.elements.append(f'<circle cx="{x:.0f}" cy="{self.y:.0f}" r="4" class="begin"/>')
        half = len(words) * CHARACTER / 2
        beside = x + half + 14 if x + 2 * half + 20 < WIDTH else x - half - 14
        self.text(beside, words, above=-4)


def draw(text: str) -> str:
    """Returns the SVG of a diagram. Raises ``ValueError`` for an unknown lane or a line that has none of the forms above."""
    first, *lines = [line.strip() for line in text.strip().splitlines()]
    drawing = Drawing([lane.strip() for lane in first.split(",")])
    for lane in drawing.lanes:
        drawing.elements.append(f'<text x="{drawing.x(lane):.0f}" y="22" class="lane">{escape(lane)}</text>')
    signs: dict[str, str] = {}
    """The first event of each lane."""
    for line in lines:
        if found := _EVENT.fullmatch(line):
            signs.setdefault(found[1], found[2])
    drawing.starts = {lane: 30.0 for lane in drawing.lanes if signs.get(lane) != "o"}
    for line in lines:
        drawing.y += STEP
        if found := _ACROSS.fullmatch(line):
            drawing.elements.append(f'<path d="M0 {drawing.y - 9:.0f}H{WIDTH}" class="across"/>')
            drawing.text(WIDTH / 2, found[1], "note")
        elif found := _ARROW.fullmatch(line):
            drawing.arrow(*found.groups())
        elif found := _EVENT.fullmatch(line):
            drawing.event(*found.groups())
        elif found := _NOTE.fullmatch(line):
            drawing.text(drawing.x(found[1]), found[2], "note")
        else:
            raise ValueError(f"no line of a diagram has the form {line!r}")
    drawing.y += STEP / 2
    for lane in list(drawing.starts):
        drawing.life(lane)
    height = f"{drawing.y + 6:.0f}"
    page = f'<rect width="{WIDTH}" height="{height}" rx="6" class="page"/>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
            f"<style>{_STYLE}</style>",
            page,
            *drawing.elements,
            "</svg>",
            "",
        ]
    )
