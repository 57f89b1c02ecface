"""The driver under the name of NVIDIA's own DRA driver. Classes, claims and selectors of that driver work unchanged.

Never run both drivers on a node.
"""

from __future__ import annotations

from dra_kubeletplugin import run

from .driver import Nvidia


class NvidiaReplacement(Nvidia):
    name = "gpu.nvidia.com"


if __name__ == "__main__":
    run(NvidiaReplacement)
