"""The plugin does not follow a symbolic link at a name that it writes, locks or removes: it neither writes nor truncates the target."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.plugin.grpc.server import UnixServer
from tests.base.file_operations import INSTANCE, OPERATIONS, UID

SECRET = b'{"pool": {"device": []}}\n'


@pytest.mark.parametrize("target", ["file", "nothing"])
@pytest.mark.parametrize(("act", "name"), OPERATIONS.values(), ids=OPERATIONS)
def test_the_target_of_a_link_is_neither_written_nor_created(
    act: Callable[[Path], None], name: str, target: str, tmp_path: Path
) -> None:
    folder, target_file = tmp_path / "folder", tmp_path / "target"
    folder.mkdir()
    if target == "file":
        target_file.write_bytes(SECRET)
        target_file.chmod(0o640)
    (folder / name).symlink_to(target_file)
    with contextlib.suppress(OSError):  # An error is allowed, because each caller reports it.
        act(folder)
    if target == "file":
        assert target_file.read_bytes() == SECRET
        assert target_file.stat().st_mode & 0o777 == 0o640
    else:
        assert not target_file.exists()


@pytest.mark.parametrize("target", ["file", "nothing"])
async def test_a_socket_is_not_served_at_a_link(target: str, tmp_path: Path) -> None:
    target_file, path = tmp_path / "target", tmp_path / "dra.sock"
    if target == "file":
        target_file.write_bytes(SECRET)
    path.symlink_to(target_file)
    server = UnixServer(path, INSTANCE, [])
    with pytest.raises(Exception, match="is not a socket"):
        await server.start()
    assert path.is_symlink()
    assert target_file.exists() == (target == "file")


def test_a_note_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    specs = ClaimSpecs(tmp_path, "d.example.com", INSTANCE)
    (tmp_path / "target").write_bytes(b"note")
    specs.note_path(UID).symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        specs.note(UID)
    assert not specs.has_content(UID, None, b"note")  # The next pass therefore writes the note again, as a file.
