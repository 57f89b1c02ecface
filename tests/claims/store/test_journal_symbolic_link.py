"""An administrator moves the records to another disk and leaves a symbolic link: no claim is lost, and no device is
allocated twice.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")

from dra_kubeletplugin.errors import RecordsError
from tests.helpers.crash.record_stores import instance, make_record


@pytest.mark.parametrize("moved", ["the file", "nothing"])
async def test_a_start_refuses_the_link_and_reads_the_moved_records_when_they_are_back(
    moved: str, tmp_path: Path
) -> None:
    folder, other_disk = tmp_path / "plugin", tmp_path / "elsewhere"
    folder.mkdir()
    other_disk.mkdir()
    path = folder / "records.journal"
    async with instance(folder) as store:
        await store.do(lambda records: records.insert(make_record("u", "dev-0")))
    path.rename(other_disk / path.name)
    path.symlink_to(other_disk / (path.name if moved == "the file" else "not-there"))
    async with instance(folder) as store:
        with pytest.raises(RecordsError, match="is a symbolic link: replace the link"):
            await store.all()
        assert "is a symbolic link" in store.fault
    assert path.is_symlink()
    (other_disk / path.name).rename(path)
    async with instance(folder) as store:
        assert [r.uid for r in await store.all()] == ["u"]
