"""The foreign machine of CI has what ``dra doctor`` finds on a node, keeps existing files, and leaves nothing."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_kubeletplugin.cli import main
from dra_tools.doctor import processes
from tests.helpers.machine import FOLDERS
from tests.tools.foreign_machine import DEAD_SOCKETS, FILES, LIVE_SOCKETS, PROCESSES, foreign_machine


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for the sockets."""
    with tempfile.TemporaryDirectory(prefix="f-") as folder:
        yield Path(folder)


def test_doctor_finds_the_foreign_machine(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = short / "etc/cdi/foreign.json"
    own.parent.mkdir(parents=True)
    own.write_text("of the machine")
    kubelet, cdi = short / "var/lib/kubelet", short / "var/run/cdi"
    places = ["--host-root", str(short), "--kubelet-root", str(kubelet), "--cdi-root", str(cdi)]
    with foreign_machine(short):
        assert main(["doctor", "--host", *places, "-o", "json"]) == 1
        arguments = {process.arguments[1:] for process in processes.running(Path("/"))}
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(short / LIVE_SOCKETS[0]))
    found = capsys.readouterr().out
    assert {finding["topic"] for finding in json.loads(found)["findings"]} > {"runtime", "CDI", "sockets", "records"}
    for expected in ("enable_cdi = true", "conflicting", "no process listens", "GetInfo", "gpu.example.com"):
        assert expected in found
    assert {process[1:] for process in PROCESSES} <= {words[1:] for words in arguments}
    assert own.read_text() == "of the machine"
    assert [path for path in short.rglob("*") if not path.is_dir()] == [own]
    assert not (short / "var").exists()


def test_each_foreign_file_is_in_a_folder_that_the_tests_may_not_use() -> None:
    elsewhere = (
        "root/",
        "var/run/secrets/",
    )  # the home and the service account: the variables that lead there are hidden
    names = [name for name in (*FILES, *LIVE_SOCKETS, *DEAD_SOCKETS) if not name.startswith(elsewhere)]
    assert [name for name in names if not f"/{name}".startswith(FOLDERS)] == []
