"""Another process may have made a pipe or a huge file at any name: no operation waits for it, and none reads it without a limit."""

from __future__ import annotations

import asyncio
import os
import resource
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from dra_devkit.cdi.reader import read_spec
from dra_devkit.testing import node_with
from dra_devkit.yaml import stream
from dra_kubeletplugin.base.processes.local import LocalRunner, ProcessCommand, cut_log, log_tail
from dra_kubeletplugin.base.rewrite import rewrite
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims.store.records import file_name
from dra_kubeletplugin.errors import DraError
from dra_kubeletplugin.kube import load_config
from dra_kubeletplugin.kube.credentials import TokenFile
from dra_kubeletplugin.kube.tls import TlsFiles
from tests.base.file_operations import INSTANCE, OPERATIONS, UID
from tests.helpers.crash.claim_drivers import PlainDriver
from tests.helpers.crash.claim_manager import FakeApiServer, check_success, running_manager
from tests.helpers.crash.file_faults import failing_calls
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.drivers import make_toy_class

SIZE = 300 << 20  # bytes of a sparse file
LONG = 30.0  # seconds after which work counts as hanging


def ends(work: Callable[[], object]) -> None:
    """Runs ``work`` in a thread and asserts that it ends. Its errors are allowed, because each caller reports them."""

    def run() -> None:
        try:
            work()
        except (OSError, ValueError, DraError) as e:
            errors.append(e)

    errors: list[Exception] = []
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive(), "the work waits for the other end of a pipe"


@pytest.mark.parametrize(("act", "name"), OPERATIONS.values(), ids=OPERATIONS)
def test_no_work_in_a_shared_folder_waits_for_a_pipe(act: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    ends(lambda: act(tmp_path))


@pytest.mark.parametrize("make", [os.mkfifo, Path.touch, lambda path: path.symlink_to("/dev/null")])
def test_whatever_has_the_name_of_a_temporary_file_is_replaced(make: Callable[[Path], None], tmp_path: Path) -> None:
    specs = ClaimSpecs(tmp_path, "d.example.com", INSTANCE)
    specs.write_note(UID, b"old")
    for name in (f"{UID}.json", f"{UID}.record", ""):
        make(tmp_path / f".k8s.d.example.com-claim_{name}.tmp-{INSTANCE}")

    def work() -> None:
        specs.probe()
        specs.write(UID, {"kind": "k"})
        specs.write_note(UID, b"new")

    ends(work)
    assert (specs.path(UID).read_bytes(), specs.note(UID)) == (b'{"kind":"k"}', b"new")
    assert all(stat.S_ISREG(path.lstat().st_mode) for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 2


def test_logs_of_processes_and_mounted_files_do_not_wait_for_a_pipe(tmp_path: Path) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)
    command = ProcessCommand(("true",), str(log), "token")
    ends(lambda: LocalRunner().launch(command))
    ends(lambda: cut_log(log))
    ends(lambda: log_tail(log))
    ends(lambda: rewrite(str(log), b"x"))


# --- limits ------------------------------------------------------------------------------------------------


async def token(path: Path) -> object:
    return await TokenFile(path).header()


READERS: dict[str, Callable[[Path], Any]] = {
    "CDI spec": read_spec,
    "certificate": lambda path: TlsFiles(ca=path).read(),
    "kubeconfig": lambda path: load_config(str(path)),
    "token": lambda path: asyncio.run(token(path)),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_file_above_the_limit_is_refused_with_its_size_and_the_limit(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(SIZE)
    with pytest.raises(
        (OSError, ValueError, DraError), match=r"it is a regular file of 314,572,800 bytes; the limit is [\d,]+ bytes"
    ):
        read(path)


def test_files_of_a_command_may_be_pipes(tmp_path: Path) -> None:
    pipe, faults = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    thread = threading.Thread(target=lambda: pipe.write_text("kind: Pod\n"), daemon=True)
    thread.start()
    (document,) = stream.read(pipe, faults)
    thread.join()
    assert (document.value, faults) == ({"kind": "Pod"}, [])


async def test_a_record_with_a_gigabyte_of_nothing_after_it_is_kept(tmp_path: Path) -> None:
    """The command names the claim within 1 GiB of memory. The plugin writes the record again from the note."""
    api = FakeApiServer()
    ref = api.allocate("a", UID, "d-0", DRIVER)
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        await check_success(manager.prepare(ref))
        settings = manager.settings
    os.truncate(settings.records_path / file_name(UID), 1 << 30)
    options = ["--driver-name", DRIVER, "--kubelet-root", str(tmp_path), "-o", "json"]
    shown = subprocess.run(
        [sys.executable, "-m", "dra_kubeletplugin", "claims", *options],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)),
    )  # fmt: skip
    assert UID in shown.stdout, shown.stderr
    async with running_manager(tmp_path, PlainDriver(), api) as manager:
        assert await manager.records() == {UID: "Prepared"}
        assert f"(UID {UID}) was damaged; it is written again" in " ".join(await manager.claims.notes())


# --- work that hangs ---------------------------------------------------------------------------------------


async def get(url: str) -> tuple[int, str]:
    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=LONG) as response:
                return response.status, response.read().decode()
        except HTTPError as e:
            with e:
                return e.code, e.read().decode()

    return await asyncio.to_thread(fetch)


async def test_work_on_files_that_hangs_is_named_and_fails_liveness() -> None:
    """As on a network file system that does not respond. The driver is not to blame."""
    resume, hangs = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        resume.wait()

    options = {"http_address": "127.0.0.1:0", "call_timeout": 0.2, "lock_timeout": 0.1, "discovery_timeout": 0.4}
    async with node_with(make_toy_class(), **options) as node:
        with failing_calls(0, "rename", text="/k8s.toy.example.com-claim_", do=hang):
            try:
                await node.apply_pod()
                await asyncio.to_thread(hangs.wait)
                url = node.plugin.http_url

                async def is_reported() -> bool:
                    return (await get(f"{url}/healthz"))[0] == 503

                await node.api.wait("liveness to fail", is_reported)
                for page in ("healthz", "readyz"):
                    status, text = await get(f"{url}/{page}")
                    assert status == 503
                    first = text.splitlines()[0]
                    assert first.startswith("a file operation in ") and str(node.settings.cdi_root) in first
                    assert "devices()" not in text
            finally:
                resume.set()
        await node.api.wait_running("pod")
        assert (await get(f"{node.plugin.http_url}/healthz")) == (200, "ok\n")
