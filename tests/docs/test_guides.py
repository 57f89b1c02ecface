"""The pages that a reader follows: what they show is written into a folder of its own and run there, by `pytest` and by a shell.

A code block whose first line is ``# NAME.py``, ``.yaml`` or ``.ini`` is that file; ``test_*.py`` are run by pytest. A ``console`` block
is a session: each ``$ command`` is run, and what stands below it is all that it prints, but for ``...``. ``$ dra dev`` runs until
the end of the page, and so does what ends with ``&``.

``UPDATE_PAGES=1`` writes the output of a command into the page if the page shows another output. It writes ``...`` for ages, ports,
temporary folders and generated names.
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
    [*ROOT.glob("docs/guides/*.md"), ROOT / "docs/drivers.md", ROOT / "docs/testing.md", ROOT / "examples/README.md"]
)
_STAYS = re.compile(r"dra dev (-|\S*[./])")
_OF_A_CLONE = "a clone of the repository"
"""Who installed a wheel has neither ``drivers`` nor ``examples``: a page that needs them says so by these words."""


class Shell:
    """Runs a page's commands, one after the other, in one folder."""

    def __init__(self, folder: Path, tools: Path) -> None:
        self.folder = folder
        tools.mkdir()
        for name, what in {"dra": "-m dra_kubeletplugin ", "python": ""}.items():
            (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {what}"$@"\n')
            (tools / name).chmod(0o755)
        ours = {"PATH": f"{tools}:{os.environ['PATH']}", "COLUMNS": "200", "PYTHONUNBUFFERED": "1", "TERM": "dumb"}
        ours["KUBECACHEDIR"] = str(tools / "cache")  # a cluster of before may have had the same port
        ours["PYTEST_ADDOPTS"] = "-p no:asyncio"  # a reader has pytest alone
        theirs = {
            k: v
            for k, v in os.environ.items()
            if k not in {"KUBECONFIG", "DRA_KUBERNETES_VERSION", "DRA_FEATURE_GATES"}
        }
        self.environment = theirs | ours
        self._cluster: subprocess.Popen[str] | None = None
        self._beside: list[subprocess.Popen[bytes]] = []
        self._port = free_port()

    def run(self, command: str) -> str:
        command = command.replace(":8080", f":{self._port}")  # others run these tests at the same time
        if _STAYS.match(command):
            return self._start(command)
        if command.endswith("&"):
            argv = ["bash", "-c", command[:-1]]
            self._beside.append(subprocess.Popen(argv, cwd=self.folder, env=self.environment, start_new_session=True))
            return ""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.environment, text=True, timeout=100, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"  # where that is the point: `command; echo $?`
        return done.stdout

    def _start(self, command: str) -> str:
        """A cluster that the commands after it find by KUBECONFIG, as those of a reader do in another shell."""
        assert self._cluster is None, "one cluster a page"
        self._cluster = process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout
        said = ""
        while "Ctrl-C stops the cluster" not in said:
            line = process.stdout.readline()
            assert line, f"{command} ended:\n{said}"
            said += line
        self.environment["KUBECONFIG"] = said.partition("KUBECONFIG=")[2].split()[0]
        return said

    def close(self) -> None:
        for process in self._beside:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
        if self._cluster and self._cluster.stdout:
            self._cluster.send_signal(signal.SIGINT)
            self._cluster.stdout.close()
            self._cluster.wait(60)


@pytest.fixture
def shell() -> Iterator[Shell]:
    with tempfile.TemporaryDirectory(prefix="dra-") as place:  # a short path: sockets are made in it
        here = Path(place, "here")
        here.mkdir()
        with contextlib.closing(Shell(here, Path(place, "tools"))) as shell:
            yield shell


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.cases(1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_what_a_page_shows_is_so(page: Path, shell: Shell) -> None:
    shown = Page.of(page.read_text())
    if _OF_A_CLONE in page.read_text():
        for part in ("drivers", "examples"):
            (shell.folder / part).symlink_to(ROOT / part)
    for name, text in shown.files.items():
        (shell.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shell.folder / name).write_text(text)
    if not shown.files:
        shell.folder = ROOT  # its commands are about this tree
    tests = [name for name in shown.files if re.match(r"(.*/)?test_", name)]
    if tests:
        if "pytest.ini" not in shown.files:
            (shell.folder / "pytest.ini").write_text("[pytest]\n")
        argv = f"{sys.executable} -m pytest -q -p no:cacheprovider -p dra_kubeletplugin.pytest_plugin {' '.join(tests)}"
        said = shell.run(argv)
        assert re.search(r"^\d+ passed in", said, re.MULTILINE), said
    if shown.needs_kubectl and not shutil.which("kubectl"):
        pytest.skip("needs kubectl on the PATH")
    ran: list[tuple[str, str, str]] = []
    for command, output in shown.commands:
        said = shell.run(command)
        ran.append((command, output, said))
        if os.environ.get("UPDATE_PAGES"):
            continue
        assert output_pattern(output).fullmatch(said), f"$ {command}\nsays:\n{said}\nand the page shows:\n{output}"
    if os.environ.get("UPDATE_PAGES"):
        page.write_text(updated(page.read_text(), ran))


def test_output_that_is_written_into_a_page_is_like_the_output_of_another_run() -> None:
    said = (
        "claim train-2-gpus-kqwj2 at https://127.0.0.1:46145, see /tmp/dra-riw_bdsk/node-1/kubelet \n"
        "5s (x2 over 61s)   Warning   72m   3d2h   node-1/gpu-0   80Gi\n"
    )
    shown = as_shown(said)
    assert shown == (
        "claim train-2-gpus-... at https://127.0.0.1:..., see /tmp/...\n"
        "...   Warning   ...   ...   node-1/gpu-0   80Gi\n"
    )
    assert output_pattern(shown).fullmatch(said)
    page = "$ a\n$ b\nold\n$ a\none ...\n"
    ran = [("a", "", "new\n"), ("b", "old\n", ""), ("a", "one ...\n", "one 1\n")]
    assert updated(page, ran) == "$ a\nnew\n$ b\n$ a\none ...\n"


@pytest.mark.parametrize(
    ("shown", "said", "alike"),
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
def test_the_output_that_a_page_shows_is_all_there_is_but_for_dots(shown: str, said: str, *, alike: bool) -> None:
    assert bool(output_pattern(shown).fullmatch(said)) is alike


def test_a_block_that_nobody_would_run_is_refused() -> None:
    for block in ("```sh\nls\n```", "```python\nprint()\n```", "```console\nls\n```"):
        with pytest.raises(AssertionError):
            Page.of(block)
