"""The lock of the journal excludes two real processes, also when files are removed from the plugin's folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dra_kubeletplugin.claims.store.offline import forget
from dra_kubeletplugin.errors import RecordsBusyError
from tests.helpers.crash.record_stores import JOURNAL

# Holds the lock of the journal below argv[1] until it reads a line, then adds a claim with the device d-0 under the
# same lock.
HOLDER = """
import sys
from pathlib import Path
from tests.helpers.crash.record_stores import make_record, open_store
store = open_store(Path(sys.argv[1]))
with store.journal.locked(1) as file:
    print("locked", flush=True)
    sys.stdin.readline()
    file.records.insert(make_record("holder", "d-0"))
    store.journal.commit(sync=False)
print("written", flush=True)
sys.stdin.readline()
"""
# Tries to add a claim with the same device, and prints the error.
OTHER = """
import sys
from pathlib import Path
from tests.helpers.crash.record_stores import make_record, open_store
from dra_kubeletplugin.errors import DraError
store = open_store(Path(sys.argv[1]))
try:
    with store.journal.locked(float(sys.argv[2])) as file:
        file.records.insert(make_record("thief", "d-0"))
        store.journal.commit(sync=False)
except DraError as e:
    print(type(e).__name__)
"""


def other(folder: Path, wait: float) -> str:
    command = [sys.executable, "-c", OTHER, str(folder), str(wait)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_two_processes_never_write_at_once_also_if_only_the_journal_is_left(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stdout.readline() == "locked\n"
        for path in tmp_path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != JOURNAL:
                path.unlink()
        assert other(tmp_path, 0) == "RecordsBusyError"
        with pytest.raises(RecordsBusyError, match="is locked by another instance"):
            forget(tmp_path / JOURNAL, 0, "holder")  # `dra claims forget` is a third process
        print(file=holder.stdin, flush=True)
        assert holder.stdout.readline() == "written\n"
        assert other(tmp_path, 5) == "HeldByError"
        print(file=holder.stdin, flush=True)
