"""Resolves the port names in a container's probes and hooks for the runtime. Runs hooks; the runtime does not run sleep hooks."""

from __future__ import annotations

import asyncio
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from ..runtime.interface import ContainerRuntime, HandlerAction, HandlerOccasion, Outcome, ProbeResult

_NETWORK = ("httpGet", "tcpSocket", "grpc")
_DAY = 24 * 3600.0  # seconds; long, because the caller of run_hook limits the time of a hook


class NoSuchPort(ValueError):
    """The container has no port of this name. The text is the same as a real kubelet's."""


def handler_of(container: ReadOnlyJSON, definition: ReadOnlyJSON) -> dict[str, Any]:
    """Returns the handler of a probe or hook with its port as a number.

    Raises:
        NoSuchPort: the container has no port of that name.
    """
    out = {kind: definition[kind] for kind in ("exec", *_NETWORK) if definition.get(kind) is not None}
    for kind in _NETWORK:
        port = (out.get(kind) or {}).get("port")
        if isinstance(port, str):
            out[kind] = {**out[kind], "port": _number(container, port)}
    return out


def _number(container: ReadOnlyJSON, name: str) -> int:
    for port in container.get("ports") or []:
        if port.get("name") == name:
            return int(port["containerPort"])
    if name.isdecimal():
        return int(name)
    raise NoSuchPort(f'strconv.Atoi: parsing "{name}": invalid syntax')


async def run_hook(
    runtime: ContainerRuntime, pod: ReadOnlyJSON, container: ReadOnlyJSON, occasion: HandlerOccasion
) -> Outcome | None:
    """Runs a container's lifecycle hook. Returns None if the container has no such hook."""
    hook = (container.get("lifecycle") or {}).get(occasion.value)
    if not hook:
        return None
    if (pause := hook.get("sleep")) is not None:
        await asyncio.sleep(float(pause.get("seconds") or 0))
        return Outcome(ProbeResult.PASS)
    try:
        handler = handler_of(container, hook)
    except NoSuchPort as e:
        return Outcome(ProbeResult.ERROR, str(e))
    meta = pod["metadata"]
    action = HandlerAction(occasion, handler, _DAY, annotations=meta.get("annotations") or {})
    return await runtime.perform(meta["uid"], container["name"], action)
