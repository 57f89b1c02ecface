"""The floor of a call: only the work that every plugin must do, without gRPC, validation and a driver.

A prepare sends GETs for the claims through at most 8 kept connections, writes and syncs a record for each claim, syncs their folder, and
writes the CDI files. A repeat sends the GETs. An unprepare removes the files.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from pathlib import Path

import msgspec

from bench.apiserver import Api
from bench.deployed import Ref

CONNECTIONS = 8
_DOC = json.dumps({"claim": "x" * 400, "devices": ["x" * 200]})  # about as large as a record is
_SPEC = {
    "cdiVersion": "0.3.0",
    "kind": "floor.example.com/claim",
    "devices": [{"name": "d", "containerEdits": {"env": ["DEVICE=d"]}}],
}


class Connection:
    """One open connection for one request at a time, with a minimum of HTTP/1.1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host

    async def get(self, path: str) -> object:
        request = f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer bench\r\n\r\n"
        self._writer.write(request.encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"GET {path}: {head!r}")
        _, _, length = head.lower().partition(b"content-length:")
        return msgspec.json.decode(await self._reader.readexactly(int(length.split(b"\r\n")[0])))

    def close(self) -> None:
        self._writer.close()


class Floor:
    """Call :meth:`open`, then prepare and unprepare in turn, then :meth:`close`."""

    def __init__(self, api: Api, state: Path, cdi: Path) -> None:
        self._api = api
        self._cdi = cdi
        self._records = state / "floor-claims"
        self._records.mkdir(exist_ok=True)

    async def open(self) -> None:
        tls = ssl.create_default_context(cafile=str(self._api.ca))
        port = int(self._api.port)
        self._connections = [
            Connection(*await asyncio.open_connection("127.0.0.1", port, ssl=tls), f"127.0.0.1:{port}")
            for _ in range(CONNECTIONS)
        ]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    async def prepare(self, claims: list[Ref]) -> None:
        await self.repeat(claims)
        for _, _, uid in claims:
            write_whole(self._records / f"{uid}.json", f"{uid} {_DOC}\n".encode(), sync=True)
        folder = os.open(self._records, os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(folder)
        os.close(folder)
        for _, _, uid in claims:
            write_whole(self._cdi / f"floor-{uid}.json", json.dumps(_SPEC).encode())

    async def repeat(self, claims: list[Ref]) -> None:
        waiting = list(reversed(claims))

        async def some(connection: Connection) -> None:
            while waiting:
                namespace, name, _ = waiting.pop()
                await connection.get(f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}")

        if len(claims) == 1:
            await some(self._connections[0])
        else:
            await asyncio.gather(*(some(c) for c in self._connections[: len(claims)]))

    async def unprepare(self, claims: list[Ref]) -> None:
        for _, _, uid in claims:
            (self._cdi / f"floor-{uid}.json").unlink()
            (self._records / f"{uid}.json").unlink()


def write_whole(path: Path, data: bytes, *, sync: bool = False) -> None:
    temporary = f"{path}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
        if sync:
            os.fdatasync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)  # noqa: PTH104 - the fewest steps
