"""An asyncio transport that records the calls of a protocol."""

from __future__ import annotations

import asyncio
import socket
from typing import Any


class Wire(asyncio.Transport):
    """Records what a connection writes and which methods it calls."""

    def __init__(self, peer: socket.socket) -> None:
        super().__init__({"socket": peer})
        self.sent: list[bytes] = []
        self.reading = [True]
        self.ended = ""

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def pause_reading(self) -> None:
        self.reading.append(False)

    def resume_reading(self) -> None:
        self.reading.append(True)

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"
