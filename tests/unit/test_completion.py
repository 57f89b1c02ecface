"""``dra completion``: what a shell offers at a tab, asked of the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dra_kubeletplugin.cli import DEV_VERBS, parser
from dra_kubeletplugin.cli.completion import SHELLS, script

_OFFERED = """
eval "$(cat "$1")"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
"$(complete -p dra | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
echo "${COMPREPLY[@]}"
"""


def offered(folder: Path, *words: str) -> set[str]:
    (folder / "dra.bash").write_text(script("bash", parser()))
    argv = ["bash", "-c", _OFFERED, "bash", str(folder / "dra.bash"), "dra", *words]
    return set(subprocess.run(argv, capture_output=True, text=True, check=True, cwd=folder).stdout.split())


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ([""], {"run", "controller", "dev", "validate", "completion"}),
        (["dev", ""], set(DEV_VERBS)),
        (["dev", "health", "gpu-0", ""], {"healthy", "unhealthy", "unknown", "reported"}),
        (["dev", "--st"], {"--state", "--start-timeout"}),
        (["run", "--cdi"], {"--cdi-root"}),
        (["claims", "-o", ""], {"table", "json"}),
    ],
)
def test_bash_offers_commands_verbs_options_and_choices(tmp_path: Path, words: list[str], some: set[str]) -> None:
    assert some <= offered(tmp_path, *words)


def test_bash_offers_files_where_a_driver_stands(tmp_path: Path) -> None:
    (tmp_path / "mydriver.py").touch()
    assert offered(tmp_path, "run", "my") == {"mydriver.py"}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_that_its_shell_can_read(tmp_path: Path, shell: str) -> None:
    text = script(shell, parser())
    assert "restart-kubelet" in text
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)
