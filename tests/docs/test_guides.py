"""The commands and files of the guides work as shown. The tests write the files to a temporary folder and run the commands there.

A code block whose first line is ``# NAME.py``, ``.yaml`` or ``.ini`` is a file with that name. pytest runs the files ``test_*.py``.
A ``console`` block is a session: the shell runs each ``$ command``, and the lines below it are the complete output, where ``...``
matches any text. ``$ dra dev`` and commands that end with ``&`` run until the end of the page.

``UPDATE_PAGES=1`` writes the output of a command into the page if the page shows a different output. It writes ``...`` for ages,
ports, temporary folders and generated names.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.pages import Page, as_shown, output_pattern, updated
from tests.helpers.ports import free_port

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("docs/guides/*.md"),
        *(ROOT / f for f in ("docs/drivers.md", "docs/testing.md", "examples/README.md")),
        *(ROOT / f"packages/{name}/README.md" for name in ("tools", "conformance")),
    ]
)
_STARTS_CLUSTER = re.compile(r"dra dev (-|\S*[./])")
_NEEDS_CLONE = "a clone of the repository"
"""A page that needs ``drivers`` or ``examples`` contains these words, because a wheel contains neither."""


class Shell:
    """Runs the commands of a page in order in one folder."""

    def __init__(self, folder: Path, tools: Path) -> None:
        self.folder = folder
        tools.mkdir()
        for name, arguments in {"dra": "-m dra_kubeletplugin ", "python": ""}.items():
            (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n')
            (tools / name).chmod(0o755)
        own_variables = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
            "TERM": "dumb",
        }
        own_variables["KUBECACHEDIR"] = str(tools / "cache")  # An earlier cluster may have had the same port.
        own_variables["PYTEST_ADDOPTS"] = "-p no:asyncio"  # A reader has only pytest, without plugins.
        inherited = {
            k: v
            for k, v in os.environ.items()
            if k not in {"KUBECONFIG", "DRA_KUBERNETES_VERSION", "DRA_FEATURE_GATES"}
        }
        self.environment = inherited | own_variables
        self._cluster: subprocess.Popen[str] | None = None
        self._background: list[subprocess.Popen[bytes]] = []
        self._port = free_port()

    def run(self, command: str) -> str:
        command = command.replace(":8080", f":{self._port}")  # Other processes run these tests at the same time.
        if _STARTS_CLUSTER.match(command):
            return self._start(command)
        if command.endswith("&"):
            argv = ["bash", "-c", command[:-1]]
            self._background.append(
                subprocess.Popen(argv, cwd=self.folder, env=self.environment, start_new_session=True)
            )
            return ""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.environment, text=True, timeout=100, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, (
            f"$ {command}\n{done.stdout}"
        )  # A page that shows a failing command writes `command; echo $?`.
        return done.stdout

    def _start(self, command: str) -> str:
        """Starts a cluster. Later commands find it by KUBECONFIG, as in a second shell of a reader."""
        assert self._cluster is None, "a page starts at most one cluster"
        self._cluster = process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout
        output = ""
        while "Ctrl-C stops the cluster" not in output:
            line = process.stdout.readline()
            assert line, f"{command} ended:\n{output}"
            output += line
        self.environment["KUBECONFIG"] = output.partition("KUBECONFIG=")[2].split()[0]
        return output

    def close(self) -> None:
        for process in self._background:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
        if self._cluster and self._cluster.stdout:
            self._cluster.send_signal(signal.SIGINT)
            self._cluster.stdout.close()
            self._cluster.wait(60)


@pytest.fixture
def shell() -> Iterator[Shell]:
    with tempfile.TemporaryDirectory(prefix="dra-") as place:  # Sockets in this folder need a short path.
        folder = Path(place, "folder")
        folder.mkdir()
        with contextlib.closing(Shell(folder, Path(place, "tools"))) as shell:
            yield shell


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.cases(1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_page_works_as_shown(page: Path, shell: Shell) -> None:
    shown = Page.of(page.read_text())
    if _NEEDS_CLONE in page.read_text():
        for folder in ("drivers", "examples"):
            (shell.folder / folder).symlink_to(ROOT / folder)
    for name, text in shown.files.items():
        (shell.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shell.folder / name).write_text(text)
    if not shown.files:
        shell.folder = ROOT  # The commands of such a page use this repository.
    tests = [name for name in shown.files if re.match(r"(.*/)?test_", name)]
    if tests:
        if "pytest.ini" not in shown.files:
            (shell.folder / "pytest.ini").write_text("[pytest]\n")
        argv = f"{sys.executable} -m pytest -q -p no:cacheprovider -p dra_devkit.pytest_plugin {' '.join(tests)}"
        output = shell.run(argv)
        assert re.search(r"^\d+ passed in", output, re.MULTILINE), output
    if shown.needs_kubectl and not shutil.which("kubectl"):
        pytest.skip("needs kubectl on the PATH")
    ran: list[tuple[str, str, str]] = []
    for command, expected in shown.commands:
        output = shell.run(command)
        ran.append((command, expected, output))
        if os.environ.get("UPDATE_PAGES"):
            continue
        assert output_pattern(expected).fullmatch(output), (
            f"$ {command}\nprints:\n{output}\nbut the page shows:\n{expected}"
        )
    if os.environ.get("UPDATE_PAGES"):
        page.write_text(updated(page.read_text(), ran))


def test_updated_output_of_a_page_matches_the_output_of_later_runs() -> None:
    output = (
        "claim train-2-gpus-kqwj2 at https://127.0.0.1:46145, see /tmp/dra-riw_bdsk/node-1/kubelet \n"
        "5s (x2 over 61s)   Warning   72m   3d2h   node-1/gpu-0   80Gi\n"
    )
    shown = as_shown(output)
    assert shown == (
        "claim train-2-gpus-... at https://127.0.0.1:..., see /tmp/...\n"
        "...   Warning   ...   ...   node-1/gpu-0   80Gi\n"
    )
    assert output_pattern(shown).fullmatch(output)
    page = "$ a\n$ b\nold\n$ a\none ...\n"
    ran = [("a", "", "new\n"), ("b", "old\n", ""), ("a", "one ...\n", "one 1\n")]
    assert updated(page, ran) == "$ a\nnew\n$ b\n$ a\none ...\n"


@pytest.mark.parametrize(
    ("shown", "output", "matches"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n...\n", "a\nb\nc\n", True),
        ("a\n...\nc\n", "a\nc\n", True),
        ("one   two\n", "one two \n", True),
        ("node-1 ... 2 devices\n", "node-1 has 2 devices\n", True),
        ("x...\n", "y\n", False),
        ("", "a warning\n", False),
    ],
)
def test_the_shown_output_must_be_complete_except_for_dots(shown: str, output: str, *, matches: bool) -> None:
    assert bool(output_pattern(shown).fullmatch(output)) is matches
