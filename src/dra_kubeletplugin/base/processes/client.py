"""Starts, watches and ends processes through a process supervisor, see :mod:`.supervisor`."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import msgspec

from ...errors import RetryableError, describe
from .identity import ProcessIdentity
from .local import Launched, ProcessCommand, ProcessState
from .supervisor import MAX_LINE, LaunchRequest, Request, StateRequest, StopRequest, SupervisorResponse

_TIMEOUT = 10.0  # seconds of a request, in addition to the time that the request itself may take


class _NoSupervisorError(RetryableError):
    """No process listens at the socket."""


class SupervisedRunner:
    """Lets the process supervisor at ``path`` start processes.

    If no supervisor listens there, its container has ended, and with the container all processes that it started.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def launch(self, command: ProcessCommand) -> Launched:
        connection = self._connect(_TIMEOUT)
        try:
            process = self._ask(connection, LaunchRequest(command)).process
            assert process is not None
        except BaseException:
            connection.close()
            raise
        return Launched(process, connection.detach())  # if the plugin dies, the supervisor ends the process

    def state(self, process: ProcessIdentity) -> ProcessState:
        try:
            state = self._request(StateRequest(process), _TIMEOUT).state
        except _NoSupervisorError:
            return ProcessState(running=False, text="ended together with its process supervisor")
        assert state is not None
        return state

    def stop(self, process: ProcessIdentity, command: ProcessCommand) -> None:
        with contextlib.suppress(_NoSupervisorError):
            self._request(StopRequest(process, command), _TIMEOUT + 2 * command.stop_timeout)

    def _request(self, request: Request, timeout: float) -> SupervisorResponse:
        """Sends a request on its own connection. Raises as :meth:`_connect` and :meth:`_ask`."""
        with self._connect(timeout) as connection:
            return self._ask(connection, request)

    def _connect(self, timeout: float) -> socket.socket:
        """Raises :class:`RetryableError`; :class:`_NoSupervisorError` if there is no supervisor."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        try:
            connection.connect(str(self.path))
        except OSError as e:
            connection.close()
            is_gone = isinstance(e, FileNotFoundError | ConnectionRefusedError)
            raise (_NoSupervisorError if is_gone else RetryableError)(self._unavailable(e)) from None
        return connection

    def _ask(self, connection: socket.socket, request: Request) -> SupervisorResponse:
        try:
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as stream:  # the supervisor sends one line for each request
                response = msgspec.json.decode(stream.readline(MAX_LINE), type=SupervisorResponse)
        except (OSError, ValueError) as e:
            raise RetryableError(self._unavailable(e)) from None
        if response.error:
            raise RetryableError(response.error)
        return response

    def _unavailable(self, e: Exception) -> str:
        return f"the process supervisor at {self.path} does not respond: {describe(e)}"
