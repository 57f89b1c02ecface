"""The control socket of a running ``dra dev``, in the state directory. Only the user who started ``dra dev`` and root may connect.

A client sends one request and receives one response, both in JSON.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from dra_devkit.localcluster.listeners import stop_listening
from dra_kubeletplugin.base.local_clusters import CONTROL_SOCKET

from .verbs import AnyVerb, VerbResult

NAME = CONTROL_SOCKET
_HIDDEN = (
    "control.bind"  # the first name of the socket; not longer than NAME, because the length of a socket path is limited
)
_MAX = 1024 * 1024  # bytes of a request or a response


class ControlError(Exception):
    """``dra dev`` cannot be reached or refuses the request. The text says what to do."""


class ControlServer:
    """Serves requests at ``folder``/control.sock.

    Args:
        act: carries out a request and returns the response.
        refusals: types of exceptions that ``act`` raises for a refused request. Their text becomes the error in the response.
    """

    def __init__(
        self, folder: Path, act: Callable[[AnyVerb], Awaitable[VerbResult]], refusals: tuple[type[Exception], ...]
    ) -> None:
        self.path = folder / NAME
        self._act = act
        self._refusals = refusals
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Starts the server.

        Raises:
            OSError: the socket cannot be created.
        """
        hidden = self.path.with_name(_HIDDEN)
        hidden.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(hidden), limit=_MAX)
        # The mode is set before the socket gets its name, so no other user can connect. A umask would also affect files
        # that this process writes at the same time.
        hidden.chmod(0o600)
        hidden.rename(self.path)

    async def close(self) -> None:
        if self._server:
            await stop_listening(self._server)
            self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _peer(writer) not in {os.getuid(), 0}:
                return
            try:
                line = await reader.readline()
            except ValueError:
                response = VerbResult(error=f"the request has more than {_MAX} bytes")
            else:
                response = await self._respond(line)
            writer.write(msgspec.json.encode(response) + b"\n")
            await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _respond(self, line: bytes) -> VerbResult:
        try:
            return await self._act(msgspec.json.decode(line, type=AnyVerb))
        except msgspec.MsgspecError as e:
            return VerbResult(error=f"the request is invalid: {e}")
        except self._refusals as e:
            return VerbResult(error=str(e))


def _peer(writer: asyncio.StreamWriter) -> int:
    """Returns the uid of the process at the other end."""
    found = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[1])


def ask(folder: Path, verb: AnyVerb) -> VerbResult:
    """Sends a request to the ``dra dev`` with this state directory, and waits for the response.

    Raises:
        ControlError: ``dra dev`` cannot be reached, or it refused the request.
    """
    path = folder / NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError as e:
            raise ControlError(f"no `dra dev` responds at {path} ({e.strerror or e}): is it still running?") from None
        connection.sendall(msgspec.json.encode(verb) + b"\n")
        data = b""
        while part := connection.recv(65536):
            data += part
    try:
        response = msgspec.json.decode(data, type=VerbResult)
    except msgspec.MsgspecError:
        raise ControlError("`dra dev` ended before it responded") from None
    if response.error:
        raise ControlError(response.error)
    return response
