"""Settings for all tests of this tree: the machine's configuration is hidden, temporary paths are short, parallel workers are safe."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import machine

pytest_plugins = ["tests.helpers.shared_fixtures"]
_FOLDER = pytest.StashKey[Path]()
_LEFT_OUT = pytest.StashKey[Counter[str]]()
# Configuration of the machine or of the developer that our commands, kubectl, helm or child processes would read.
_HIDDEN = (
    "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "NODE_NAME", "POD_UID", "DRIVER_NAME", "LANG", "LANGUAGE", "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip
# Why `make test` leaves a test out, by the marker. A test with several markers is counted by the first one here.
_REASONS = {
    "image": "build images",
    "podman": "need podman",
    "runc": "need runc",
    "mounts": "mount file systems",
    "netns": "need network namespaces",
    "index": "need a package index",
    "full": "take long or are further cases",
}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Gives the run its own folder below /tmp, because the path of a socket has at most 107 bytes, and hides the machine.

    The workers of pytest-xdist inherit both from the process that starts them.
    """
    config.stash[_LEFT_OUT] = Counter()
    sys.addaudithook(machine.record)
    if hasattr(config, "workerinput"):
        return
    folder = config.stash[_FOLDER] = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    folder.chmod(0o711)  # some tests start processes of other users
    if config.option.basetemp is None:
        config.option.basetemp = folder / "b"
    for variable, name in (
        ("XDG_CACHE_HOME", ".cache"),
        ("XDG_CONFIG_HOME", ".config"),
    ):  # the indexes and downloads of pip
        os.environ.setdefault(variable, str(Path.home() / name))
    for name in [n for n in os.environ if n in _HIDDEN or n.startswith("LC_")]:
        del os.environ[name]
    os.environ["LC_ALL"] = "C.UTF-8"
    os.environ["TMPDIR"] = "/tmp"  # noqa: S108
    for variable, name in (("HOME", "home"), ("HOST_ROOT", "root"), ("KUBELET_ROOT", "kubelet"), ("CDI_ROOT", "cdi")):
        (folder / name).mkdir()
        os.environ[variable] = str(folder / name)
    tempfile.tempdir = None  # makes tempfile read TMPDIR again


@pytest.fixture(autouse=True)
def _only_own_files(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that uses the machine's configuration of containers or Kubernetes: its result would depend on the machine."""
    yield
    used = machine.used.copy()
    machine.used.clear()
    # A test that podman or a mount namespace needs works on the real folders.
    if not {"podman", "mounts"}.isdisjoint(marker.name for marker in request.node.iter_markers()):
        return
    assert not used, f"the test or its fixtures used files of this machine: {used}"


def pytest_collection_finish() -> None:
    """Exempts the thousands of collected tests from garbage collection: a full one took 0.3 s, and some tests ask for it."""
    gc.collect()
    gc.freeze()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        names = {m.name for m in item.iter_markers()}
        item.config.stash[_LEFT_OUT].update([r for r in _REASONS if r in names][:1])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Removes the folder of the run; after a failure it stays, because the failure may name files in it."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = dict(config.stash[_LEFT_OUT])
    elif exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Takes the counts from any worker: every worker of pytest-xdist leaves out the same tests."""
    counts = getattr(node, "workeroutput", {}).get("left_out")
    if counts is not None:
        node.config.stash[_LEFT_OUT] = Counter(counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Counts the tests that were left out by marker, and names the command that runs them."""
    counts = config.stash[_LEFT_OUT]
    listed = ", ".join(f"{counts[marker]} {reason} ({marker})" for marker, reason in _REASONS.items() if counts[marker])
    if listed and config.option.markexpr:
        terminalreporter.write_line(f"left out {counts.total()} tests, which `make test-rest` runs: {listed}")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Iterator[Any]:
    """pytest-xdist sends reports as UTF-8: a lone surrogate in captured text would end the worker."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(k): _encodable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_encodable, value))
    return value
