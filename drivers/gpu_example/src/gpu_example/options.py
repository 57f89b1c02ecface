"""Options, from the environment:

NUM_DEVICES                      how many GPUs each node has; 8 when empty.
GPU_PARTITIONS                   into how many partitions a GPU can be divided (KEP-4815); it can be had whole too.
                                 0: not at all.
GPU_ALLOW_MULTIPLE_ALLOCATIONS   ``true``: claims may share a GPU, each with a part of memory and compute (KEP-5075).
GPU_DEVICE_STATUS                ``true``: a prepared claim tells which GPU it has (KEP-4817).
BINDING_CONDITIONS               ``true``: pods wait until the controller has readied a GPU (KEP-5007): run
                                 ``dra controller`` too.
GPU_FAULTS                       a folder: a file ``gpu-3`` in it makes that GPU unhealthy, and its text says why. A
                                 text that begins with ``NoExecute`` also evicts the pods that use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_kubeletplugin import PermanentError


@dataclass(frozen=True)
class Options:
    """What the environment says; see the module."""

    gpus: int = 8
    partitions: int = 0
    shared: bool = False
    status: bool = False
    binding: bool = False
    faults: Path | None = None

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Options:
        """Raises :class:`PermanentError` for what cannot be read."""
        return cls(
            gpus=_count(env, "NUM_DEVICES", 8),
            partitions=_count(env, "GPU_PARTITIONS", 0),
            shared=_switch(env, "GPU_ALLOW_MULTIPLE_ALLOCATIONS"),
            status=_switch(env, "GPU_DEVICE_STATUS"),
            binding=_switch(env, "BINDING_CONDITIONS"),
            faults=Path(env["GPU_FAULTS"]) if env.get("GPU_FAULTS") else None,
        )


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "") or str(default)
    if not text.isdecimal():
        raise PermanentError(f"{name} is {text!r}: give a number, 0 or more")
    return int(text)


def _switch(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "") or "false"
    if text.lower() not in {"true", "false"}:
        raise PermanentError(f"{name} is {text!r}: give true or false")
    return text.lower() == "true"
