"""How asyncio's servers stop."""

from __future__ import annotations

import asyncio


async def stop_listening(server: asyncio.Server) -> None:
    """Stops listening. The caller must end the open connections.

    ``server.close()`` alone never closes a connection that was accepted just before (CPython gh-109564), so its client would wait
    forever.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    try:
        await asyncio.sleep(0)  # accepted sockets become connections
    finally:  # also if this task is cancelled
        server.close()
