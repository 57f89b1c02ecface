"""Fixtures for all tests; skips tests whose markers name a program or a right that this machine lacks."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dra_devkit import kubernetes_releases
from dra_devkit.localcluster.runtime import runc
from tests.release import images

# Hypothesis limits the time of an example to 200 ms, and of ten generated examples to 1 s. A busy machine exceeds both.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")
# kubectl and helm cache discovery for six hours by server address, and clusters of several tests have the same address.
os.environ["KUBECACHEDIR"] = os.devnull


def _can_mount() -> bool:
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False)
        if done.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        return done.returncode == 0


def _can_make_networks() -> bool:
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    name = f"dra-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    return made


@pytest.fixture(autouse=True)
def _gates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enables the feature gates of the marker ``gates`` in every cluster that the test starts."""
    names = {name for marker in request.node.iter_markers("gates") for name in marker.args}
    if names:
        monkeypatch.setenv(kubernetes_releases.GATES_VARIABLE, ",".join(f"{name}=true" for name in sorted(names)))


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    """Removes the log handlers of commands that a test ran, because they write to a stream that is closed after the test."""
    root = logging.getLogger()
    before, level = set(root.handlers), root.level
    yield
    root.handlers[:] = [h for h in root.handlers if h in before or type(h) is not logging.StreamHandler]
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _records_of_this_test(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Excludes from ``caplog`` the records of driver methods that an earlier test left running in a thread."""
    earlier = {thread for thread in threading.enumerate() if thread.name == "driver"}

    def is_own(_: logging.LogRecord) -> bool:
        return threading.current_thread() not in earlier

    caplog.handler.addFilter(is_own)
    yield
    caplog.handler.removeFilter(is_own)


@pytest.fixture
def no_leak(tmp_path: Path) -> Iterator[None]:
    """Asserts at the end of the test that this process has no open file below ``tmp_path``."""
    yield
    shown = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            shown.append(str(fd.readlink()))
    assert not [name for name in shown if name.startswith(str(tmp_path))], "left open"


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _mark_further_cases(items)
    wanted = {m.name for item in items for m in item.iter_markers()}  # not keywords: a parameter may have the same name
    reasons = {
        "mounts": None if "mounts" not in wanted or _can_mount() else "needs root and the right to mount",
        "podman": None if shutil.which("podman") else "needs podman, beside runc",
        "runc": None
        if "runc" not in wanted or (not runc.missing() and Path("/bin/busybox").is_file() and _can_mount())
        else runc.missing() or "needs a static /bin/busybox, and the right to mount",
        "kubectl": None if shutil.which("kubectl") else "needs kubectl on the PATH",
        "netns": None
        if "netns" not in wanted or _can_make_networks()
        else "needs root, and iproute2 with network namespaces",
        "image": None if "image" not in wanted else images.missing(),
        "helm": None if shutil.which("helm") else "needs helm on the PATH",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _mark_further_cases(items: list[pytest.Item]) -> None:
    """Marks as ``full`` the cases of a parametrised test that ``make test`` need not run (see the marker ``cases``)."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        marker = cases[0].get_closest_marker("cases")
        number = marker.args[0] if marker else 1 if cases[0].get_closest_marker("crash") else len(cases)
        for i, item in enumerate(cases):
            if i * number // len(cases) == (i - 1) * number // len(cases):
                item.add_marker("full")
