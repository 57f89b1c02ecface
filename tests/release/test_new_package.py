"""`dra new`: what it makes is installed beside the wheel, outside this tree, and works as its README says."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import unicodedata
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name

from dra_kubeletplugin.cli import main
from dra_kubeletplugin.cli.command_args import KINDS
from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.kube import KubeClient, Resource, load_config
from dra_kubeletplugin.packaging.scaffold import writer
from dra_kubeletplugin.packaging.scaffold.names import MAX_NAME, check_name, near_name
from tests.release.installation import ROOT, Environment, as_elsewhere, run
from tests.release.test_image_contents import needed

WHO = {"pci": ("--vendor-id", "1d94", "--device-id", "0401"), "chardev": (), "sdk": ()}


def made(directory: Path, name: str, kind: str, *more: str) -> Path:
    assert main(["new", name, "--kind", kind, *WHO[kind], "-C", str(directory), *more]) == 0
    return directory / name


@pytest.fixture(params=KINDS)
def package(request: pytest.FixtureRequest, installed: Environment, tmp_path: Path) -> Path:
    """Made by the wheel's command, with its environment where `make` looks for it."""
    where = tmp_path / "elsewhere"
    where.mkdir()
    run(installed.path("dra"), "new", "acme-fpga", "--kind", request.param, *WHO[request.param], cwd=where)
    folder = where / "acme-fpga"
    installed.install(folder)
    (folder / ".venv").symlink_to(installed.folder)
    (folder / ".venv/.installed").touch()
    for tool in ("ruff", "mypy"):
        (folder / ".venv/bin" / tool).symlink_to(Path(sys.executable).parent / tool)
    return folder


@pytest.mark.timeout(600)
def test_its_tests_pass_it_is_typed_and_it_runs(package: Path) -> None:
    python = str(package / ".venv/bin/python")
    where = run(python, "-c", "import dra_kubeletplugin; print(dra_kubeletplugin.__file__)", cwd=package)
    assert where.startswith(str(package.parents[1])), "the wheel is what is tested, not this tree"
    assert " passed" in run("make", "test", cwd=package)
    run("make", "lint", f"BIN={package}/.venv/bin", cwd=package, MYPYPATH="src")
    _dev(package)


@pytest.mark.timeout(600)
@pytest.mark.skipif(not shutil.which("pyright"), reason="needs pyright on the PATH: pip install 'pyright[nodejs]'")
def test_pyright_finds_nothing_in_it_at_its_strictest(package: Path) -> None:
    config = {
        "include": ["src", "tests"],
        "extraPaths": ["src"],
        "venvPath": ".",
        "venv": ".venv",
        "typeCheckingMode": "strict",
    }
    (package / "pyrightconfig.json").write_text(json.dumps(config))
    assert "0 errors, 0 warnings" in run("pyright", cwd=package)


def test_what_cannot_be_installed_is_reported_with_where_a_wheel_of_the_framework_goes(tmp_path: Path) -> None:
    package = made(tmp_path, "acme-fpga", "chardev")
    (package / ".venv/bin").mkdir(parents=True)
    for tool in ("python", "pip"):  # an index that has nothing
        (package / ".venv/bin" / tool).write_text("#!/bin/sh\nexit 1\n")
        (package / ".venv/bin" / tool).chmod(0o755)
    with pytest.raises(AssertionError, match="put its wheel into the folder wheels/, or set FRAMEWORK="):
        run("make", "test", cwd=package)
    assert not (package / ".venv/.installed").exists()


def _dev(package: Path) -> None:
    """`make dev` until the pod that it applies runs; then Ctrl-C."""
    log = package.parent / "log"
    clean = as_elsewhere()
    with log.open("w") as errors:
        process = subprocess.Popen(
            ["make", "dev"], cwd=package, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            env=clean | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    assert process.stdout
    said = ""
    try:
        while "Ctrl-C stops the cluster" not in said:
            line = process.stdout.readline()
            assert line, said + log.read_text()
            said += line
        assert "acme-fpga.example.com: 2 devices" in said
        asyncio.run(_running(said.partition("KUBECONFIG=")[2].split()[0]))
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.close()
        process.wait(200)


async def _running(kubeconfig: str) -> None:
    async with asyncio.timeout(60), KubeClient(load_config(kubeconfig)) as client:
        while (await client.get(Resource("", "v1", "pods", True), "one-card", "default"))["status"][
            "phase"
        ] != "Running":
            await asyncio.sleep(0.05)


@pytest.mark.kubectl
@pytest.mark.parametrize("kind", KINDS)
def test_its_manifests_are_whole(kind: str, tmp_path: Path) -> None:
    folder = made(tmp_path, "acme-fpga", kind)
    objects = list(yaml.safe_load_all(run("kubectl", "kustomize", "deploy", cwd=folder)))
    (workload,) = (o for o in objects if o["kind"] == "DaemonSet")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    said = yaml.safe_load((folder / "deploy/values.yaml").read_text())
    assert container["image"] == said["image"]
    assert "acme_fpga.driver" in json.dumps(container)
    assert [o["metadata"]["name"] for o in objects if o["kind"] == "DeviceClass"] == ["acme-fpga.example.com"]


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a", "z" * MAX_NAME])
def test_names_of_any_length_give_files_in_good_form(name: str, kind: str, tmp_path: Path) -> None:
    domain = f"{'d' * 59}.com"
    folder = made(tmp_path, name, kind, "--driver-name", domain)
    ruff = str(Path(sys.executable).parent / "ruff")
    run(ruff, "check", "--no-cache", ".", cwd=folder)
    run(ruff, "format", "--no-cache", "--check", ".", cwd=folder)
    assert not [p for p in folder.rglob("*") if p.is_file() and "%%" in p.read_text()]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["Acme_FPGA", "--kind", "sdk"], "NAME 'Acme_FPGA': use at most 32 lower case letters, digits and single '-', and begin with a letter, such as acme-fpga"),
        (["9", "--kind", "sdk"], "such as acme-fpga"),
        (["../x", "--kind", "sdk"], "NAME '../x'"),
        (["a--b", "--kind", "sdk"], "NAME 'a--b'"),
        (["", "--kind", "sdk"], "NAME ''"),
        (["z" * 33, "--kind", "sdk"], "use at most 32"),
        (["Ünï Code", "--kind", "sdk"], "begin with a letter, such as uni-code"),
        (["TEST", "--kind", "sdk"], "begin with a letter, such as acme-fpga"),
        (["class", "--kind", "sdk"], "NAME 'class' has another meaning in Python: choose another name, such as class-driver"),
        (["json", "--kind", "sdk"], "NAME 'json' has another meaning in Python"),
        (["dra-kubeletplugin", "--kind", "sdk"], "NAME 'dra-kubeletplugin' has another meaning in Python"),
        (["test", "--kind", "sdk"], "NAME 'test' has another meaning in Python"),
        (["off", "--kind", "sdk"], "NAME 'off' has another meaning in YAML"),
        (["acme", "--kind", "sdk", "--driver-name", "2026-11-22"], "--driver-name '2026-11-22' is not text in YAML"),
        (["acme", "--kind", "sdk", "--driver-name", "no"], "--driver-name 'no' is not text in YAML"),
        (["acme", "--kind", "sdk", "--driver-name", "12e3"], "--driver-name '12e3' is not text in YAML"),
        (["acme", "--kind", "sdk", "--driver-name", "0o17"], "--driver-name '0o17' is not text in YAML"),
        (["acme"], "--kind is needed without a terminal"),
        (["Nimbus_N4", "--kind", "sdk"], "begin with a letter, such as nimbus-n4"),
        (["42_Cards-2", "--kind", "sdk"], "begin with a letter, such as cards-2"),
        (["acme", "--kind", "pci"], "--vendor-id is needed"),
        (["acme", "--kind", "pci", "--vendor-id", "10ee"], "--device-id is needed"),
        (["acme", "--kind", "pci", "--vendor-id", "10ee", "--device-id", "u200"], "--device-id 'u200' is not a PCI device id"),
        (["acme", "--kind", "chardev", "--device-id", "5000"], "--device-id is only for --kind pci"),
        (["acme", "--kind", "pci", "--vendor-id", "xilinx"], "--vendor-id 'xilinx' is not a PCI vendor id"),
        (["acme", "--kind", "sdk", "--vendor-id", "10ee"], "--vendor-id is only for --kind pci"),
        (["acme", "--kind", "sdk", "--driver-name", "Acme!"], "--driver-name 'Acme!' is not a DNS subdomain"),
        (["acme", "--kind", "sdk", "-C", "/dev/null/x"], "/dev/null/x/acme cannot be written: Not a directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_reported_in_a_sentence_and_nothing_is_made(
    args: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["new", *args]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@given(st.text(min_size=1, max_size=40))
@example("Nimbus_N4")
@example("N" * 31 + "_4")
def test_a_suggested_name_is_valid_and_has_all_digits_behind_its_first_letter(name: str) -> None:
    suggestion = near_name(name)
    if not suggestion:
        return
    try:
        check_name(suggestion)
    except SettingsError as e:
        assert "another meaning" in e.message  # then the message suggests a fixed name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    behind = re.sub(r"[^a-z0-9]", "", plain).lstrip("0123456789")
    assert behind.startswith(suggestion.replace("-", ""))
    assert len(suggestion) >= 31 or suggestion.replace("-", "") == behind


def test_a_missing_parent_folder_is_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path / "drivers" / "new", "acme", "sdk")
    assert (folder / "deploy/kustomization.yaml").is_file()
    assert f"created {folder}" in capsys.readouterr().out


def test_a_driver_publishes_only_the_cards_of_its_device_id(tmp_path: Path) -> None:
    """The described host and the driver have the ids of the command line: no id in the template is of foreign hardware."""
    folder = made(tmp_path, "nimbus-n4", "pci")
    host = folder / "hosts/two-cards.yaml"
    assert host.read_text().count("vendor: 0x1D94, device: 0x0401,") == 2
    with host.open("a") as file:  # a card of the same vendor that is another product
        file.write('- {address: "0000:99:00.0", vendor: 0x1D94, device: 0x1450}\n')
    driver = str(folder / "src/nimbus_n4/driver.py")
    shown = run(
        sys.executable, "-m", "dra_kubeletplugin", "inspect", driver, "--host", str(host), cwd=ROOT, PYTHONPATH="src"
    )
    assert shown.startswith("pool node on node: 2 devices")


@pytest.mark.parametrize("kind", KINDS)
def test_the_option_of_a_new_driver_begins_with_the_drivers_name(kind: str, tmp_path: Path) -> None:
    """As docs/drivers.md demands: several drivers can run in one process."""
    folder = made(tmp_path, "nimbus-n4", kind)
    options = yaml.safe_load((folder / "deploy/values.yaml").read_text())["options"]
    assert list(options) == ["NIMBUS_N4_RESERVED"]
    assert "nimbus_n4_reserved: Annotated[" in (folder / "src/nimbus_n4/driver.py").read_text()


def test_pins_that_cannot_be_made_are_reported_with_where_a_wheel_of_the_framework_goes(tmp_path: Path) -> None:
    package = made(tmp_path, "acme-fpga", "chardev")
    (package / ".venv-lock/bin").mkdir(parents=True)
    (package / ".venv-lock/bin/uv").write_text("#!/bin/sh\nexit 1\n")  # an index that has nothing
    (package / ".venv-lock/bin/uv").chmod(0o755)
    with pytest.raises(AssertionError, match=r"cannot be pinned.*put its wheel into the folder wheels/"):
        run("make", "lock", cwd=package)


@pytest.mark.parametrize("there", ["folder", "file", "link to nowhere"])
def test_what_exists_is_never_overwritten(there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "acme"
    if there == "folder":
        target.mkdir()
    elif there == "file":
        target.write_text("mine")
    else:
        target.symlink_to("gone")
    assert main(["new", "acme", "--kind", "sdk", "-C", str(tmp_path)]) == 2
    assert "exists already and is not overwritten" in capsys.readouterr().err
    assert [p.name for p in tmp_path.rglob("*")] == ["acme"]


def test_a_disk_that_is_full_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Path.write_text

    def full(self: Path, text: str, encoding: str | None = None) -> int:
        if "kind: Kustomization" in text:
            raise OSError(28, "No space left on device")
        return write(self, text, encoding)

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["new", "acme", "--kind", "sdk", "-C", str(tmp_path)]) == 2
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("theirs", ["acme/driver.py", "acme"], ids=["a folder", "a file"])
def test_what_somebody_makes_meanwhile_is_reported_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], theirs: str
) -> None:
    write = writer.write_driver

    def and_another(*args: Any) -> None:
        write(*args)
        (tmp_path / theirs).parent.mkdir(exist_ok=True)
        (tmp_path / theirs).write_text("theirs")

    monkeypatch.setattr(writer, "write_driver", and_another)
    assert main(["new", "acme", "--kind", "sdk", "-C", str(tmp_path)]) == 2
    assert "exists already and is not overwritten" in capsys.readouterr().err
    assert (tmp_path / theirs).read_text() == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["acme"]


def test_what_was_killed_half_way_is_not_there_and_can_be_made(tmp_path: Path) -> None:
    """A folder that is there is whole: it would be refused as existing otherwise, with half a driver in it."""
    killed = (
        "import os, pathlib\n"
        "from dra_kubeletplugin.cli import main\n"
        "from dra_kubeletplugin.packaging.scaffold import writer\n"
        "writer.write_driver = lambda *args: os.kill(os.getpid(), 9)\n"
        f"main(['new', 'acme', '--kind', 'sdk', '-C', {str(tmp_path)!r}])\n"
    )
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "acme").exists()
    assert (made(tmp_path, "acme", "sdk") / "deploy/kustomization.yaml").is_file()


def test_nothing_that_a_driver_needs_can_be_hidden_by_it() -> None:
    """By the name of a distribution, or of a module that one brings."""
    ours = ("dra-kubeletplugin", "pytest", "mypy", "ruff", "hatchling")
    modules: dict[str, list[str]] = {}
    for module, distributions in packages_distributions().items():
        for name in distributions:
            modules.setdefault(canonicalize_name(name), []).append(module)
    known = {canonicalize_name(d.name) for name in ours for d in [distribution(name), *needed(distribution(name))]}
    names = {
        n.replace("_", "-")
        for d in known
        for n in [d, *modules.get(d, ())]
        if re.fullmatch(r"[a-z]+([-_]?[a-z0-9]+)*", n)
    }
    assert {"grpc", "google", "yaml", "mypy", "pluggy"} <= names
    for name in sorted(names):
        with pytest.raises(SettingsError, match="has another meaning in Python"):
            check_name(name)


def test_on_a_terminal_what_is_left_out_is_requested(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    code = f"from dra_kubeletplugin.cli import main; raise SystemExit(main(['new', 'acme', '-C', {str(tmp_path)!r}]))"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    said = b""
    for question, answer in (
        (b"a vendor's library)? ", "usb"),
        (b"library)? ", "pci"),
        (b"10ee: ", "1D0F"),
        (b"5000: ", "efa0"),
        (b"(acme.example.com): ", ""),
    ):
        start = len(said)
        while question not in said[start:]:
            said += os.read(ours, 4096)
        os.write(ours, f"{answer}\n".encode())
    assert process.wait(60) == 0
    os.close(ours)
    assert b"--kind 'usb' is not one of pci, chardev, sdk" in said
    assert "VENDOR = 0x1D0F\nDEVICE = 0xEFA0" in (tmp_path / "acme/src/acme/driver.py").read_text()
    assert 'name = "acme.example.com"' in (tmp_path / "acme/src/acme/driver.py").read_text()
