"""A package that `dra new` creates can be installed outside this tree and works as its README describes."""

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

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name

from dra_devkit.commands.command_args import KINDS
from dra_devkit.packaging.scaffold.names import FEATURES, MAX_NAME, check_name, near_name
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.kube import KubeClient, Resource, load_config
from tests.release.installation import (
    ID_OPTIONS,
    ROOT,
    Environment,
    clean_environment,
    create_package,
    dependencies_of,
    run,
)

ALL = ",".join(FEATURES)
_SOURCES = ":".join(map(str, (ROOT, ROOT / "src", *sorted(ROOT.glob("packages/*/src")))))


@pytest.fixture(params=KINDS)
def package(request: pytest.FixtureRequest, installed: Environment, tmp_path: Path) -> Path:
    return created(installed, tmp_path, request.param)


def created(installed: Environment, tmp_path: Path, kind: str, *more: str) -> Path:
    """Creates a package with the wheel's command, and links its environment to the folder that `make` uses."""
    where = tmp_path / "workspace"
    where.mkdir()
    run(installed.path("dra"), "new", "acme-fpga", "--kind", kind, *ID_OPTIONS[kind], *more, cwd=where)
    folder = where / "acme-fpga"
    installed.install(folder)
    (folder / ".venv").symlink_to(installed.folder)
    (folder / ".venv/.installed").touch()
    for tool in ("ruff", "mypy"):
        (folder / ".venv/bin" / tool).symlink_to(Path(sys.executable).parent / tool)
    return folder


@pytest.mark.timeout(600)
def test_a_new_package_passes_its_tests_and_lint_and_runs(package: Path) -> None:
    python = str(package / ".venv/bin/python")
    where = run(
        python, "-c", "import dra_devkit, dra_kubeletplugin as f; print(dra_devkit.__file__, f.__file__)", cwd=package
    )
    assert where.count(str(package.parents[1])) == 2, "the test uses the wheels and not this tree"
    assert " passed" in run("make", "test", cwd=package)
    run("make", "lint", f"BIN={package}/.venv/bin", cwd=package, MYPYPATH="src")
    _dev(package)


@pytest.mark.timeout(600)
def test_a_new_package_with_all_features_passes_with_installed_wheels(installed: Environment, tmp_path: Path) -> None:
    package = created(installed, tmp_path, "pci", "--with", ALL)
    assert " passed" in run("make", "test", cwd=package)
    run("make", "lint", f"BIN={package}/.venv/bin", cwd=package, MYPYPATH="src")


@pytest.mark.timeout(600)
@pytest.mark.skipif(not shutil.which("pyright"), reason="needs pyright on the PATH: pip install 'pyright[nodejs]'")
def test_strict_pyright_reports_no_error_in_a_new_package(package: Path) -> None:
    config = {
        "include": ["src", "tests"],
        "extraPaths": ["src"],
        "venvPath": ".",
        "venv": ".venv",
        "typeCheckingMode": "strict",
    }
    (package / "pyrightconfig.json").write_text(json.dumps(config))
    assert "0 errors, 0 warnings" in run("pyright", cwd=package)


def test_a_failed_installation_is_reported_with_the_folder_for_wheels(tmp_path: Path) -> None:
    package = create_package(tmp_path, "acme-fpga", "chardev")
    (package / ".venv/bin").mkdir(parents=True)
    for tool in ("python", "pip"):  # like an empty index
        (package / ".venv/bin" / tool).write_text("#!/bin/sh\nexit 1\n")
        (package / ".venv/bin" / tool).chmod(0o755)
    with pytest.raises(AssertionError, match="put the wheels of its packages into the folder wheels/, or set CHECKOUT"):
        run("make", "test", cwd=package)
    assert not (package / ".venv/.installed").exists()


def _dev(package: Path) -> None:
    """Runs `make dev` until its pod runs, and then sends Ctrl-C."""
    log = package.parent / "log"
    clean = clean_environment()
    with log.open("w") as errors:
        process = subprocess.Popen(
            ["make", "dev"], cwd=package, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            env=clean | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    assert process.stdout
    output = ""
    try:
        while "Ctrl-C stops the cluster" not in output:
            line = process.stdout.readline()
            assert line, output + log.read_text()
            output += line
        assert "acme-fpga.example.com: 2 devices" in output
        asyncio.run(_wait_running(output.partition("KUBECONFIG=")[2].split()[0]))
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.close()
        process.wait(200)


async def _wait_running(kubeconfig: str) -> None:
    async with asyncio.timeout(60), KubeClient(load_config(kubeconfig)) as client:
        while (await client.get(Resource("", "v1", "pods", True), "one-card", "default"))["status"][
            "phase"
        ] != "Running":
            await asyncio.sleep(0.05)


@pytest.mark.kubectl
@pytest.mark.parametrize("kind", KINDS)
def test_the_manifests_of_a_new_package_are_complete(kind: str, tmp_path: Path) -> None:
    folder = create_package(tmp_path, "acme-fpga", kind)
    objects = list(yaml.safe_load_all(run("kubectl", "kustomize", "deploy", cwd=folder)))
    (workload,) = (o for o in objects if o["kind"] == "DaemonSet")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    values = yaml.safe_load((folder / "deploy/values.yaml").read_text())
    assert container["image"] == values["image"]
    assert "acme_fpga.driver" in json.dumps(container)
    assert [o["metadata"]["name"] for o in objects if o["kind"] == "DeviceClass"] == ["acme-fpga.example.com"]


def _tests(package: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs a package's tests with the framework of this tree, in the package's own folder."""
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "dra_devkit.pytest_plugin")
    environment = clean_environment() | {"PYTHONPATH": f"{package}/src:{_SOURCES}"}
    return subprocess.run(
        [*command, *options], cwd=package, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("kind", "features"),
    [
        ("chardev", ALL),
        ("chardev", "partitions"),
        ("pci", "status"),
        ("chardev", "health"),
        ("sdk", "partitions"),
        ("pci", "shared-step"),
        ("pci", ALL),
        ("sdk", ALL),
    ],
)
def test_a_package_with_features_passes_its_tests_and_mypy(kind: str, features: str, tmp_path: Path) -> None:
    package = create_package(tmp_path, "acme-fpga", kind, "--with", features)
    run(sys.executable, "-m", "mypy", cwd=package, MYPYPATH=f"src:{_SOURCES}", PYTHONPATH=_SOURCES)
    done = _tests(package)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_test_of_a_package_says_how_to_render_stale_manifests(tmp_path: Path) -> None:
    package = create_package(tmp_path, "acme-fpga", "chardev")
    values = package / "deploy/values.yaml"
    values.write_text(values.read_text().replace("namespace: acme-fpga", "namespace: cards"))
    done = _tests(package, "-k", "manifests")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError: run `make deploy`" in done.stdout


@pytest.mark.cases(3)
@pytest.mark.parametrize("features", ["", "partitions", "shared-step,status,health", ALL])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a", "z" * MAX_NAME])
def test_packages_with_names_of_any_length_pass_ruff(name: str, kind: str, features: str, tmp_path: Path) -> None:
    domain = f"{'d' * 59}.com"
    folder = create_package(tmp_path, name, kind, "--driver-name", domain, *(("--with", features) if features else ()))
    ruff = str(Path(sys.executable).parent / "ruff")
    run(ruff, "check", "--no-cache", ".", cwd=folder)
    run(ruff, "format", "--no-cache", "--check", ".", cwd=folder)
    assert not [p for p in folder.rglob("*") if p.is_file() and "%%" in p.read_text()]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["Acme_FPGA", "--kind", "sdk"], "NAME 'Acme_FPGA': use at most 32 lower case letters, digits and single '-', and begin with a letter, such as acme-fpga"),
        (["9", "--kind", "sdk"], "such as acme-fpga"),
        (["../x", "--kind", "sdk"], "NAME '../x'"),
        (["z" * 33, "--kind", "sdk"], "use at most 32"),
        (["Ünï Code", "--kind", "sdk"], "begin with a letter, such as uni-code"),
        (["class", "--kind", "sdk"], "NAME 'class' has another meaning in Python: choose another name, such as class-driver"),
        (["json", "--kind", "sdk"], "NAME 'json' has another meaning in Python"),
        (["off", "--kind", "sdk"], "NAME 'off' has another meaning in YAML"),
        (["acme", "--kind", "sdk", "--driver-name", "2026-11-22"], "--driver-name '2026-11-22' is not text in YAML"),
        (["acme", "--kind", "sdk", "--driver-name", "no"], "--driver-name 'no' is not text in YAML"),
        (["acme", "--kind", "sdk", "--with", "status,helth"], "--with 'helth' is not one of partitions, shared-step, status, health, did you mean 'health'?"),
        (["acme"], "--kind is needed without a terminal"),
        (["Nimbus_N4", "--kind", "sdk"], "begin with a letter, such as nimbus-n4"),
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
def test_an_invalid_argument_is_reported_in_a_sentence_and_creates_no_file(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", *args]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@given(st.text(min_size=1, max_size=40))
@example("Nimbus_N4")
@example("N" * 31 + "_4")
def test_a_suggested_name_is_valid_and_keeps_the_characters_after_its_first_letter(name: str) -> None:
    suggestion = near_name(name)
    if not suggestion:
        return
    try:
        check_name(suggestion)
    except SettingsError as e:
        assert "another meaning" in e.message  # then the message suggests a fixed name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    after_first_letter = re.sub(r"[^a-z0-9]", "", plain).lstrip("0123456789")
    assert after_first_letter.startswith(suggestion.replace("-", ""))
    assert len(suggestion) >= 31 or suggestion.replace("-", "") == after_first_letter


def test_a_driver_publishes_only_the_cards_of_its_device_id(tmp_path: Path) -> None:
    """The described host and the driver contain the ids of the command line, and no ids of other hardware."""
    folder = create_package(tmp_path, "nimbus-n4", "pci")
    host = folder / "hosts/two-cards.yaml"
    assert host.read_text().count("vendor: 0x1D94, device: 0x0401,") == 2
    with host.open("a") as file:  # another product of the same vendor
        file.write('- {address: "0000:99:00.0", vendor: 0x1D94, device: 0x1450}\n')
    driver = str(folder / "src/nimbus_n4/driver.py")
    shown = run(
        sys.executable, "-m", "dra_kubeletplugin", "inspect", driver, "--host", str(host), cwd=ROOT, PYTHONPATH="src"
    )
    assert shown.startswith("pool node on node: 2 devices")


@pytest.mark.parametrize("existing", ["folder", "file", "broken link"])
def test_an_existing_path_is_never_overwritten(
    existing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "acme"
    if existing == "folder":
        target.mkdir()
    elif existing == "file":
        target.write_text("existing")
    else:
        target.symlink_to("missing")
    assert main(["new", "acme", "--kind", "sdk", "-C", str(tmp_path)]) == 2
    assert "exists already and is not overwritten" in capsys.readouterr().err
    assert [p.name for p in tmp_path.rglob("*")] == ["acme"]


def test_a_file_that_cannot_be_written_leaves_no_files(tmp_path: Path) -> None:
    program = (
        "import resource\n"
        "from dra_kubeletplugin.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        f"raise SystemExit(main(['new', 'acme', '--kind', 'sdk', '-C', {str(tmp_path)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "cannot be written: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_killed_dra_new_leaves_no_package_and_can_be_repeated(tmp_path: Path) -> None:
    """An existing folder is always complete. A partial folder would make `dra new` fail because the folder exists."""
    killed = (
        "import os, pathlib\n"
        "from dra_kubeletplugin.cli import main\n"
        "from dra_devkit.packaging.scaffold import writer\n"
        "writer.write_files = lambda *args: os.kill(os.getpid(), 9)\n"
        f"main(['new', 'acme', '--kind', 'sdk', '-C', {str(tmp_path)!r}])\n"
    )
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "acme").exists()
    assert (create_package(tmp_path, "acme", "sdk") / "deploy/kustomization.yaml").is_file()


def test_a_package_cannot_have_the_name_of_a_dependency() -> None:
    """The rule covers the names of distributions and of their modules."""
    required = ("dra-conformance", "dra-tools", "pytest", "mypy", "ruff", "hatchling")
    modules: dict[str, list[str]] = {}
    for module, distributions in packages_distributions().items():
        for name in distributions:
            modules.setdefault(canonicalize_name(name), []).append(module)
    known = {
        canonicalize_name(d.name)
        for name in required
        for d in [distribution(name), *dependencies_of(distribution(name))]
    }
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


def test_on_a_terminal_dra_new_asks_for_missing_options(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    code = f"from dra_kubeletplugin.cli import main; raise SystemExit(main(['new', 'acme', '-C', {str(tmp_path)!r}]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=terminal, stdout=terminal, stderr=terminal, close_fds=True
    )
    os.close(terminal)
    output = b""
    for question, reply in (
        (b"a vendor's library)? ", "usb"),
        (b"library)? ", "pci"),
        (b"10ee: ", "1D0F"),
        (b"5000: ", "efa0"),
        (b"(acme.example.com): ", ""),
    ):
        start = len(output)
        while question not in output[start:]:
            output += os.read(controller, 4096)
        os.write(controller, f"{reply}\n".encode())
    assert process.wait(60) == 0
    os.close(controller)
    assert b"--kind 'usb' is not one of pci, chardev, sdk" in output
    assert "VENDOR = 0x1D0F\nDEVICE = 0xEFA0" in (tmp_path / "acme/src/acme/driver.py").read_text()
    assert 'name = "acme.example.com"' in (tmp_path / "acme/src/acme/driver.py").read_text()
