"""The control socket of ``dra dev``: nobody else's, and nobody else's business while it is made."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dra_kubeletplugin.localcluster.dev.control import NAME, ControlServer
from dra_kubeletplugin.localcluster.dev.verbs import AnyVerb, VerbResult


async def act(verb: AnyVerb) -> VerbResult:
    return VerbResult()


async def test_what_the_process_writes_while_the_socket_is_made_has_the_mode_that_it_always_has(tmp_path: Path) -> None:
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
