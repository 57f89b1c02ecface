"""The control socket of ``dra dev`` is private. Its creation does not change the mode of other files of the process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dra_devkit.localcluster.dev.control import NAME, ControlServer
from dra_devkit.localcluster.dev.verbs import AnyVerb, VerbResult


async def act(verb: AnyVerb) -> VerbResult:
    return VerbResult()


async def test_files_written_during_the_creation_of_the_socket_keep_their_mode(tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(20)]

    async def write() -> None:
        for folder in folders:
            folder.mkdir(0o700)
            await asyncio.sleep(0)

    server = ControlServer(tmp_path, act, ())
    writing = asyncio.create_task(write())
    await server.start()
    await writing
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    await server.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f.name for f in folders)
