"""The process supervisor: starts processes for a plugin in another container, so that they outlive the plugin's container.

``python -m dra_kubeletplugin.base.processes.supervisor SOCKET`` runs it. It serves a Unix socket for processes of its own user, with one
JSON request per line. It keeps no state: the plugin's records name the processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import struct
import sys
import threading
from pathlib import Path

import msgspec

from ...errors import DraError, describe
from .identity import ProcessIdentity
from .local import LocalRunner, ProcessCommand, ProcessState

log = logging.getLogger(__name__)
MAX_LINE = 256 * 1024
"""Bytes of a request or response."""
_REAP_INTERVAL = 1.0  # seconds


class LaunchRequest(msgspec.Struct, frozen=True, tag="launch"):
    """Creates a process that waits. It runs its program when the client sends one more line, or ends if the client disconnects first."""

    command: ProcessCommand


class StateRequest(msgspec.Struct, frozen=True, tag="state"):
    process: ProcessIdentity


class StopRequest(msgspec.Struct, frozen=True, tag="stop"):
    process: ProcessIdentity
    command: ProcessCommand


Request = LaunchRequest | StateRequest | StopRequest


class SupervisorResponse(msgspec.Struct, frozen=True):
    """The response to a request. ``error`` is empty if it succeeded."""

    error: str = ""
    process: ProcessIdentity | None = None
    state: ProcessState | None = None


class Supervisor:
    """Serves plugins at a Unix socket. A file of a dead supervisor at that path is replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runner = LocalRunner()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def open(self) -> None:
        """Creates the socket. Raises ``OSError``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        self._socket.bind(str(temporary))
        temporary.chmod(0o600)
        self._socket.listen(64)
        temporary.rename(self.path)  # a client never finds a socket that does not listen

    def run(self) -> None:
        """Serves until the socket is closed."""
        threading.Thread(target=self._reap, daemon=True).start()
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Closes the socket. The processes continue until the container ends."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _reap(self) -> None:
        while True:
            # As the first process of a container, it becomes the parent of processes whose parent ended.
            if os.getpid() == 1:
                self._runner.reap_all()
            threading.Event().wait(_REAP_INTERVAL)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.geteuid():
                return
            while line := stream.readline(MAX_LINE):
                try:
                    request = msgspec.json.decode(line, type=Request)
                    if isinstance(request, LaunchRequest):
                        launched = self._runner.launch(request.command)
                        try:
                            _send(connection, SupervisorResponse(process=launched.identity))
                            going = stream.readline(MAX_LINE)
                        except OSError:
                            going = b""
                        (launched.go if going else launched.abandon)()
                        continue
                    response = self._handle(request)
                except (DraError, msgspec.MsgspecError) as e:
                    response = SupervisorResponse(error=str(e))
                except Exception as e:
                    log.exception("unexpected exception in the process supervisor; please report it")
                    response = SupervisorResponse(error=describe(e))
                _send(connection, response)

    def _handle(self, request: StateRequest | StopRequest) -> SupervisorResponse:
        if isinstance(request, StateRequest):
            return SupervisorResponse(state=self._runner.state(request.process))
        self._runner.stop(request.process, request.command)
        return SupervisorResponse()


def _send(connection: socket.socket, response: SupervisorResponse) -> None:
    connection.sendall(msgspec.json.encode(response) + b"\n")


def main(path: Path) -> None:
    """Runs a supervisor until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    supervisor = Supervisor(path)
    supervisor.open()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.close())
    log.info("process supervisor at %s", path)
    supervisor.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
