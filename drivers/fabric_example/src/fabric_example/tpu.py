"""Slices of a TPU pod, on one host or several (KEP-4815, "Defining multi-host devices")."""

from __future__ import annotations

from collections.abc import Sequence

from dra_kubeletplugin import Device, Nodes

CHIPS = 4
"""Chips of one host."""


def tpu_slices(hosts: Sequence[str]) -> list[Device]:
    """Returns the slices of one TPU pod whose hosts have 2x2 chips each, largest slice first.

    A slice has 1, 2, 4, ... neighbouring hosts. It selects all its hosts and consumes the counters of their chips.
    """
    out = []
    size = 1 << (len(hosts).bit_length() - 1)
    while size:
        for number, first in enumerate(range(0, len(hosts) - size + 1, size), 1):
            members = hosts[first : first + size]
            topology = _topology(size)
            out.append(
                Device(
                    f"tpu-{topology}-{number}",
                    attributes={"topology": topology},
                    capacity={"tpus": str(CHIPS * size)},
                    consumes_counters={"tpus": {f"tpus-{m}": str(CHIPS) for m in members}},
                    nodes=Nodes.named(*members),
                )
            )
        size //= 2
    return out


def _topology(hosts: int) -> str:
    """Returns the topology of a slice: 2x2, 2x4, 4x4, 4x8, ..."""
    across, down = 2, 2
    while across * down < CHIPS * hosts:
        across, down = (across * 2, down) if across < down else (across, down * 2)
    return f"{across}x{down}"
