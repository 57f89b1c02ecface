"""Forks plugins, so that a start takes 0.1 s, and kills each before one of its steps; kill_sweep.py uses it.

``python -m tests.helpers.crash.forked_plugins`` reads one :class:`Order` as JSON per line and forks a plugin for it. It prints
``PID forked`` and ``PID ended STATUS`` for each plugin. At the end of its input it kills all plugins and ends.

A step is an effect that other processes can observe, also after a kill: a file operation that writes, a lock, a connection, or a
request that writes to the API server.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
from typing import Any, NoReturn

import msgspec

from tests.helpers.crash.kill_points import wrap_method

_EVENTS = frozenset(
    {
        "fcntl.flock", "open", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate",
        "socket.connect", "subprocess.Popen",
    }
)  # fmt: skip
_ANYWHERE = frozenset({"fcntl.flock", "socket.connect", "os.truncate", "subprocess.Popen"})  # not only below the folder
_CALLS = ("fdatasync", "fsync", "ftruncate", "pwrite", "write")  # functions of os without an audit event
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Order(msgspec.Struct):
    """A plugin to be forked.

    Args:
        environment: all environment variables of the plugin.
        folder: only operations on files below it count as steps.
        log: the file for standard error; it gets a line for each counted step.
        arm: the event after which steps count: ``start``, or the first ``prepare``, ``unprepare``, ``reconcile``, ``publish`` or
            ``stop``. If empty, no steps count.
        step: the plugin is killed before this step; -1 for no kill.
    """

    environment: dict[str, str]
    folder: str
    log: str
    arm: str = ""
    step: int = -1


class Steps:
    """Counts the steps of this process from :meth:`arm` on, and kills the process before step ``last``."""

    def __init__(self, folder: str, last: int) -> None:
        self._folder = folder
        self._of_test = f"{folder}/faults/"
        self._last = last
        self._count = 0
        self._is_armed = False
        sys.addaudithook(self._hook)
        for name in _CALLS:
            wrap_method(os, name, lambda fd, *_, name=name: fd > 2 and self.take(f"os.{name} {fd}"))

    def arm(self) -> None:
        self._is_armed = True

    def take(self, event: str) -> None:
        if not self._is_armed:
            return
        _write(2, f"STEP {self._count} {event}\n".encode(errors="replace"))
        if self._count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self._count += 1

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or str(arguments[0]).startswith(self._of_test):
            return
        if event in _ANYWHERE or self._folder in str(arguments[0]):
            if event != "open" or (isinstance(arguments[2], int) and arguments[2] & _WRITES):
                self.take(f"{event} {arguments[:2]}")


_write = os.write  # the original, which does not count as a step


def _instrument(order: Order) -> None:
    from dra_kubeletplugin.claims.reconcile import Reconciler
    from dra_kubeletplugin.devices.slices import Publisher
    from dra_kubeletplugin.kube import KubeClient
    from dra_kubeletplugin.plugin.grpc.node_service import NodeService
    from dra_kubeletplugin.plugin.grpc.server import UnixServer

    steps = Steps(order.folder, order.step)
    wrap_method(
        KubeClient, "raw", lambda _, method, path, *__, **___: method != "GET" and steps.take(f"{method} {path}")
    )
    match order.arm:
        case "start":
            steps.arm()
        case "prepare" | "unprepare":
            wrap_method(NodeService, order.arm, lambda *_: steps.arm())
        case "reconcile":
            wrap_method(Reconciler, "once", lambda *_, ask_server=True: ask_server and steps.arm())
        case "publish":
            wrap_method(Publisher, "_publish", lambda *_: steps.arm())
        case "stop":
            wrap_method(UnixServer, "unlink", lambda *_: steps.arm())


def _plugin(order: Order) -> NoReturn:
    code = 70
    try:
        for fd, path in ((0, os.devnull), (1, order.log), (2, order.log)):
            os.dup2(os.open(path, os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), fd)
        os.environ.clear()
        os.environ.update(order.environment)
        _instrument(order)
        from dra_kubeletplugin.cli import main

        code = main(["run", "tests/helpers/crash/driver.py:Crash"])
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    finally:
        os._exit(code)


def _serve() -> None:
    """Forks plugins until the input ends. It uses no threads and no event loop, because a fork would copy their state."""
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    incomplete_line = b""
    try:
        while True:
            ready, _, _ = select.select([0, wake_reader], [], [])
            if wake_reader in ready:
                os.read(wake_reader, 512)
                for pid in tuple(children):
                    ended_pid, status = os.waitpid(pid, os.WNOHANG)
                    if ended_pid:
                        children.discard(pid)
                        _print_line(f"{pid} ended {os.waitstatus_to_exitcode(status)}")
            if 0 not in ready:
                continue
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, incomplete_line = (incomplete_line + data).split(b"\n")
            for line in lines:
                order = msgspec.json.decode(line, type=Order)
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(wake_reader)
                    os.close(wake_writer)
                    _plugin(order)
                children.add(pid)
                _print_line(f"{pid} forked")
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _print_line(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    import dra_kubeletplugin.cli.run  # imported once here, so that no plugin has to
    import dra_kubeletplugin.plugin.grpc
    import dra_kubeletplugin.plugin.status_page  # noqa: F401

    gc.freeze()
    _serve()
