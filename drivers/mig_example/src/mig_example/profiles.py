"""The partition profiles of an A100 40GB: the table of KEP-4815."""

from __future__ import annotations

from dra_kubeletplugin import Profile

RESOURCES = ("memory", "multiprocessors", "copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines")
WHOLE = ("40Gi", 98, 7, 5, 0, 1, 1)
MEMORY_SLICES = 8


def profile(name: str, slices: int, at: list[int], *takes: str | int) -> Profile:
    return Profile(name=name, takes=dict(zip(RESOURCES, takes, strict=True)), slots=slices, at=at)


# Number of memory slices, possible first slices, and consumed resources in the order of RESOURCES.
PROFILES = [
    profile("7g.40gb", 8, [0], "40192Mi", 98, 7, 5, 0, 1, 1),
    profile("4g.20gb", 4, [0], "19968Mi", 56, 4, 2, 0, 0, 0),
    profile("3g.20gb", 4, [0, 4], "19968Mi", 42, 3, 2, 0, 0, 0),
    profile("2g.10gb", 2, [0, 2, 4], "9856Mi", 28, 2, 1, 0, 0, 0),
    profile("1g.10gb", 2, [0, 2, 4, 6], "9856Mi", 14, 1, 1, 0, 0, 0),
    profile("1g.5gb+me", 1, [0, 1, 2, 3, 4, 5, 6], "4864Mi", 14, 1, 1, 0, 1, 1),
    profile("1g.5gb", 1, [0, 1, 2, 3, 4, 5, 6], "4864Mi", 14, 1, 0, 0, 0, 0),
]
