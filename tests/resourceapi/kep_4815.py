"""Data of KEP-4815 for an NVIDIA A100 40GB: the table of profiles, their placements, the counter set, three example devices."""

from __future__ import annotations

RESOURCES = ("memory", "multiprocessors", "copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines")

# Profile, memory, memory slices, multiprocessors, copy engines, decoders, encoders, JPEG engines, OFA engines.
ROWS: list[tuple[str, str, int, int, int, int, int, int, int]] = [
    ("7g.40gb", "40192Mi", 8, 98, 7, 5, 0, 1, 1),
    ("4g.20gb", "19968Mi", 4, 56, 4, 2, 0, 0, 0),
    ("3g.20gb", "19968Mi", 4, 42, 3, 2, 0, 0, 0),
    ("2g.10gb", "9856Mi", 2, 28, 2, 1, 0, 0, 0),
    ("1g.10gb", "9856Mi", 2, 14, 1, 1, 0, 0, 0),
    ("1g.5gb+me", "4864Mi", 1, 14, 1, 1, 0, 1, 1),
    ("1g.5gb", "4864Mi", 1, 14, 1, 0, 0, 0, 0),
]

# The diagram: first memory slices at which a profile can be made.
PLACES = {
    "7g.40gb": [0],
    "4g.20gb": [0],
    "3g.20gb": [0, 4],
    "2g.10gb": [0, 2, 4],
    "1g.10gb": [0, 2, 4, 6],
    "1g.5gb": [0, 1, 2, 3, 4, 5, 6],
    "1g.5gb+me": [0, 1, 2, 3, 4, 5, 6],
}

# The counter set of the example.
COUNTERS = {
    "copy-engines": "7",
    "decoders": "5",
    "encoders": "0",
    "jpeg-engines": "1",
    "memory": "40Gi",
    "multiprocessors": "98",
    "ofa-engines": "1",
} | {f"memorySlice{i}": "1" for i in range(8)}

_SMALL = {
    "copy-engines": "1",
    "decoders": "0",
    "encoders": "0",
    "jpeg-engines": "0",
    "memory": "4864Mi",
    "multiprocessors": "14",
    "ofa-engines": "0",
}

# Capacity of the three example devices. They consume the same amounts.
DEVICES = {
    "gpu-0-mig-1g.5gb-0": _SMALL | {"memorySlice0": "1"},
    "gpu-0-mig-1g.5gb-1": _SMALL | {"memorySlice1": "1"},
    "gpu-0-mig-2g.10gb-0-1": _SMALL
    | {
        "copy-engines": "2",
        "decoders": "1",
        "memory": "9856Mi",
        "multiprocessors": "28",
        "memorySlice0": "1",
        "memorySlice1": "1",
    },
}
