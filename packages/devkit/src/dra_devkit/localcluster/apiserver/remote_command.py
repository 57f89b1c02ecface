"""``kubectl exec`` and ``attach`` over one WebSocket. The first byte of each message is the number of its stream.

Source: k8s.io/apimachinery, pkg/util/remotecommand; k8s.io/kubelet, pkg/cri/streaming/remotecommand.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from enum import IntEnum

from dra_kubeletplugin.base.json_types import JSON

from ..runtime.interface import ContainerError, ExecSession
from .websocket import WebSocket

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
PROTOCOLS = (V5, V4)


class Channel(IntEnum):
    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4
    CLOSE = 255  # v5: the stream whose number is in the next byte has ended


async def serve(socket: WebSocket, start: Callable[[], Awaitable[ExecSession]]) -> None:
    """Runs one command until it ends or the client disconnects. Sends the status of the command last, on the error channel."""
    try:
        session = await start()
    except (ContainerError, KeyError) as e:
        await _finish(
            socket, _failure(f"Internal error occurred: error executing command in container: {e}", "InternalError")
        )
        return
    incoming = asyncio.create_task(_listen(socket, session))
    outgoing = asyncio.create_task(_send_output(socket, session))
    try:
        await asyncio.wait({incoming, outgoing}, return_when=asyncio.FIRST_COMPLETED)
        incoming.cancel()  # only one task may read from the socket, and close() reads the client's reply
        await asyncio.gather(incoming, return_exceptions=True)
        if outgoing.done() and outgoing.exception() is None:
            await _finish(socket, _ended(outgoing.result()))
    finally:
        for task in (incoming, outgoing):
            task.cancel()
        await asyncio.gather(incoming, outgoing, return_exceptions=True)
        await session.close()


async def _listen(socket: WebSocket, session: ExecSession) -> None:
    while (message := await socket.receive()) is not None:
        if not message:
            continue
        match message[0]:
            case Channel.STDIN if len(message) > 1:
                await session.write(message[1:])
            case Channel.CLOSE if message[1:2] == bytes([Channel.STDIN]):
                await session.write(b"")
            case Channel.RESIZE:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    size = json.loads(message[1:])
                    await session.resize(int(size["Width"]), int(size["Height"]))


async def _send_output(socket: WebSocket, session: ExecSession) -> int:
    """Sends all output and returns the exit code."""
    while (found := await session.read()) is not None:
        stream, data = found
        await socket.send(bytes([stream]) + data)
    return await session.wait()


async def _finish(socket: WebSocket, status: JSON) -> None:
    with contextlib.suppress(OSError):
        await socket.send(bytes([Channel.ERROR]) + json.dumps(status).encode())
        await socket.close()


def _ended(code: int) -> JSON:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    text = f"command terminated with non-zero exit code: exit status {code}"
    return _failure(text, "NonZeroExitCode", [{"reason": "ExitCode", "message": str(code)}])


def _failure(message: str, reason: str, causes: list[JSON] | None = None) -> JSON:
    status: JSON = {"metadata": {}, "status": "Failure", "message": message, "reason": reason}
    if causes:
        return status | {"details": {"causes": causes}}
    return status | {"code": 500, "details": {"causes": [{"message": message}]}}
