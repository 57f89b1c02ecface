"""Tests ``dra completion`` in a terminal of each shell, as a user does."""

from __future__ import annotations

import os
import pty
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dra_devkit.commands.completion import SHELLS, script
from dra_devkit.commands.dev_args import VERBS
from dra_devkit.commands.live_names import TIMEOUT
from dra_kubeletplugin.cli import command_parser, commands
from dra_kubeletplugin.cli.shell.parsing import COMMANDS
from tests.helpers.dev_process import run_dev

UID = "0f2c8f0e-6ad5-4d5c-b2a0-3c1f6a5b9d11"
_QUIET = {
    "bash": ["bash", "--noprofile", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
_COMPINIT = "unset zle_bracketed_paste; autoload -U compinit"
_LOADING = {
    "bash": {"source": "source ./script", "eval": 'eval "$(cat ./script)"'},
    "zsh": {
        "source": f"{_COMPINIT}; compinit -u -D; source ./script",
        "eval": f'{_COMPINIT}; compinit -u -D; eval "$(cat ./script)"',
        "folder in fpath": f"{_COMPINIT}; mkdir f; cp script f/_dra; fpath+=($PWD/f); compinit -u -D",
    },
    "fish": {
        "source": "source ./script",
        "folder in fish_complete_path": "cp script $PWD/dra.fish; set -p fish_complete_path $PWD",
    },
}
_TIMEOUT = 60.0  # seconds


def completed(folder: Path, shell: str, line: str, way: str = "source", **more: str) -> str:
    """Returns the line after a press of the tab key. The shell itself prints the completed line with echo."""
    folder.mkdir(exist_ok=True)
    (folder / "script").write_text(script(shell))
    (folder / "dra").write_text(f'#!/bin/sh\nexec {sys.executable} -m dra_kubeletplugin.cli "$@"\n')
    (folder / "dra").chmod(0o755)
    env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "TERM": "dumb",
        "HOME": str(folder),
        "CDI_ROOT": str(folder / "cdi"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PS1": "> ",
        **more,
    }
    if shell == "fish":
        command = f"{_LOADING[shell][way]}; complete -C {line!r}"
        found = subprocess.run(
            ["fish", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
        offers = [each.partition("\t")[0] for each in found.stdout.splitlines()]
        if not offers:
            return line
        assert len(offers) == 1, offers
        return f"{line.rpartition(' ')[0]} {offers[0]}"
    parent, child = pty.openpty()
    argv = _QUIET[shell]
    process = subprocess.Popen(
        argv, cwd=folder, env=env, stdin=child, stdout=child, stderr=child, start_new_session=True
    )
    os.close(child)
    try:
        os.write(parent, f"{_LOADING[shell][way]}; echo read''y\n".encode())
        _read_until(parent, "ready\r\n")
        os.write(parent, f"{line}\t\x01echo 'line:' \r".encode())
        output = _read_until(parent, "\r\nline:", "\r\n")
        return output.rpartition("\r\nline:")[2].strip()
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def _read_until(terminal: int, *parts: str) -> str:
    """Reads until all of ``parts`` have appeared in this order, and returns the output up to the last part."""
    seen, end = "", time.monotonic() + _TIMEOUT
    while True:
        assert time.monotonic() < end, seen
        seen += os.read(terminal, 4096).decode(errors="replace")
        at = 0
        for part in parts:
            at = seen.find(part, at) + len(part)
            if at < len(part):
                break
        else:
            return seen[:at]


def require_shell(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"needs {shell} on the PATH")


@pytest.mark.cases(12)
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dra cont", "dra controller"),
        ("dra dev restart-k", "dra dev restart-kubelet"),
        ("dra dev set-health gpu-0 unk", "dra dev set-health gpu-0 unknown"),
        ("dra dev set-health --eff", "dra dev set-health --effect"),
        ("dra dev write-sysfs a b --no", "dra dev write-sysfs a b --node"),
        ("dra dev set-health gpu-0 healthy --effect NoS", "dra dev set-health gpu-0 healthy --effect NoSchedule"),
        ("dra dev drop-fields taints perD", "dra dev drop-fields taints perDeviceNodeSelection"),
        ("dra new x --with shared", "dra new x --with shared-step"),
        ("dra dev serve-versions v1beta1 v1beta2 v1al", "dra dev serve-versions v1beta1 v1beta2 v1alpha3"),
        ("dra dev plug-function mani", "dra dev plug-function manifest.yaml"),
        ("dra run --cdi-r", "dra run --cdi-root"),
        ("dra claims -o js", "dra claims -o json"),
        ("dra simulate -o ya", "dra simulate -o yaml"),
        ("dra run my", "dra run mydriver.py"),
        ("dra dev my", "dra dev mydriver.py"),
        ("dra explain --file mani", "dra explain --file manifest.yaml"),
        (f"dra claims forget {UID[:3]}", f"dra claims forget {UID}"),
    ],
)
def test_tab_completes_commands_options_and_values(tmp_path: Path, shell: str, line: str, expected: str) -> None:
    require_shell(shell)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / f"k8s.gpu.example.com-claim_{UID}.json").touch()
    (tmp_path / "mydriver.py").touch()
    (tmp_path / "manifest.yaml").touch()
    assert completed(tmp_path, shell, line) == expected


@pytest.mark.cases(3)
@pytest.mark.parametrize(("shell", "way"), [(shell, way) for shell in SHELLS for way in _LOADING[shell]])
def test_each_method_to_load_the_script_works(tmp_path: Path, shell: str, way: str) -> None:
    require_shell(shell)
    assert completed(tmp_path, shell, "dra expl", way) == "dra explain"


@pytest.mark.full
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_every_option_of_every_verb_of_dev_is_completed(tmp_path: Path, shell: str) -> None:
    require_shell(shell)
    for verb in VERBS:
        flags = [
            f for action in command_parser(f"dev {verb}").arguments for f in action.option_strings if f[:2] == "--"
        ]
        assert "--state-dir" in flags
        for flag in flags:
            line = f"dra dev {verb} {flag[:-1]}"
            assert completed(tmp_path, shell, line) == f"dra dev {verb} {flag}"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_contains_every_command_verb_and_option_and_its_syntax_is_valid(tmp_path: Path, shell: str) -> None:
    text = script(shell)
    assert not [name for name in (*COMMANDS, *VERBS) if " " not in name and name not in text]
    options = {flag for command in commands().values() for flag in command.flags if flag.startswith("--")}
    assert not [o for o in options if o.removeprefix("--") not in text]
    require_shell(shell)
    (tmp_path / "script").write_text(text)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


DRIVER = """
from dataclasses import dataclass

from dra_kubeletplugin import Driver

open("loads", "a").write("x")


@dataclass(frozen=True)
class AcmeOptions:
    acme_cards: str = ""
    acme_spare: bool = False


class Acme(Driver):
    options = AcmeOptions()


class Other(Driver):
    pass
"""


@pytest.mark.cases(4)
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dra run acme.py:Acme --acme-c", "dra run acme.py:Acme --acme-cards"),
        ("dra controller --log-level debug ./acme.py:Acme --no-acme", "dra controller --log-level debug ./acme.py:Acme --no-acme-spare"),
        ("dra inspect ~/acme.py:Acme --acme-s", "dra inspect ~/acme.py:Acme --acme-spare"),
        ("dra dev --nodes 2 acme.py:Acme --acme-c", "dra dev --nodes 2 acme.py:Acme --acme-cards"),
        ("dra run acme.py:Acme --cdi-r", "dra run acme.py:Acme --cdi-root"),
        ("dra run two\\ words/acme.py:Acme --acme-c", "dra run two words/acme.py:Acme --acme-cards"),
    ],
    ids=["run", "no", "home", "dev", "framework option", "space"],
)  # fmt: skip
def test_options_of_the_named_driver_are_completed(tmp_path: Path, shell: str, line: str, expected: str) -> None:
    require_shell(shell)
    (tmp_path / "two words").mkdir()
    for path in ("acme.py", "two words/acme.py"):
        (tmp_path / path).write_text(DRIVER)
    seen = completed(tmp_path, shell, line)
    assert seen.replace("\\", "").replace(str(tmp_path), "~") == expected


@pytest.mark.cases(4)
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dra ru", "dra run"),
        ("dra run --acme-c", "dra run --acme-c"),
        ("dra run acme.py:Ac", "dra run acme.py:Ac"),
        ("dra validate acme.py --outp", "dra validate acme.py --output"),
    ],
    ids=["command", "no driver", "no option", "another command"],
)
def test_other_completions_do_not_load_the_driver(tmp_path: Path, shell: str, line: str, expected: str) -> None:
    require_shell(shell)
    (tmp_path / "acme.py").write_text(DRIVER)
    assert completed(tmp_path, shell, line) == expected
    assert not (tmp_path / "loads").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_with_a_driver_that_cannot_be_loaded_prints_nothing_else(tmp_path: Path, shell: str) -> None:
    require_shell(shell)
    (tmp_path / "acme.py").write_text("import vendor\nprint('noise')\n")
    assert completed(tmp_path, shell, "dra run acme.py --cdi-r") == "dra run acme.py --cdi-root"


OBJECTS = """
{apiVersion: v1, kind: Namespace, metadata: {name: team-a}}
---
{apiVersion: v1, kind: Pod, metadata: {name: train-0}, spec: {containers: [{name: c, image: x}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: serve-0, namespace: team-a}, spec: {containers: [{name: c, image: x}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: one-gpu}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: spare}
spec: {driver: gpu.example.com, allNodes: true, pool: {name: spare, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-spare}]}
"""


@pytest.mark.cases(3)
def test_objects_of_the_cluster_are_completed(tmp_path: Path) -> None:
    (tmp_path / "objects.yaml").write_text(OBJECTS)
    with run_dev(tmp_path, "--apply", str(tmp_path / "objects.yaml")) as dev:
        env = {"KUBECONFIG": dev.kubeconfig, TIMEOUT: "60"}
        for shell in filter(shutil.which, SHELLS):
            for line, expected in {
                "dra explain tra": "dra explain train-0",
                "dra explain claim/o": "dra explain claim/one-gpu",
                "dra explain -n team-a pod/": "dra explain -n team-a pod/serve-0",
                "dra explain -n te": "dra explain -n team-a",
                "dra top --node no": "dra top --node node-1",
                "dra dev exit-container tra": "dra dev exit-container train-0",
                "dra dev exit-container -n te": "dra dev exit-container -n team-a",
                "dra dev restart-kubelet --node no": "dra dev restart-kubelet --node node-1",
                "dra dev set-health gpu-s": "dra dev set-health gpu-spare",
                "dra dev set-health --driver gp": "dra dev set-health --driver gpu.example.com",
            }.items():
                assert completed(tmp_path / shell, shell, line, **env) == expected, shell
        del env["KUBECONFIG"]
        line = f"dra explain --kubeconfig {dev.kubeconfig} "
        assert names(line, **env) == ["pod/train-0", "claim/one-gpu"]
        other = f"dra dev set-health --state-dir {dev.state} "
        assert completion("devices", other, **env) == ["gpu-spare"]
        assert completion("devices", f"{other}--node node-1 ", **env) == []


def names(line: str, **env: str) -> list[str]:
    return completion("objects", line, **env)


def completion(kind: str, line: str, **env: str) -> list[str]:
    """Returns the names for the last word of a line. The command must print nothing else."""
    argv = [sys.executable, "-m", "dra_kubeletplugin", "completion", kind, "--line", line]
    done = subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_a_cluster_that_does_not_respond_completes_nothing_and_prints_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "silent").write_text(
            f"{{clusters: [{{name: a, cluster: {{server: '{server}'}}}}], current-context: a, "
            "contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {}}]}"
        )
        assert names("dra explain ", KUBECONFIG=str(tmp_path / "silent")) == []
    assert names("dra explain ", KUBECONFIG=str(tmp_path / "silent")) == [], "it refuses connections"
    assert names("dra explain ", KUBECONFIG=str(tmp_path / "none")) == []
    assert names("dra explain 'unfinished ", KUBECONFIG=str(tmp_path / "silent")) == []
