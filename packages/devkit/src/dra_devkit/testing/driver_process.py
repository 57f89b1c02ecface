"""Runs a driver under test: as an object in this process, or as a separate process that can be killed."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Protocol, TypedDict

from dra_devkit.localcluster.child_signals import signal_child
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.driver import Driver, as_flags, read_options
from dra_kubeletplugin.errors import NotReadyError
from dra_kubeletplugin.plugin.node import Plugin

from ..localcluster.cluster import LocalCluster
from .api import PROGRESS_TIMEOUT, FaultError
from .child_watcher import OPEN, Watcher, gated
from .ports import free_port
from .task_context import Hosted

READY = 60.0  # seconds
_CHECK_INTERVAL = 0.1  # seconds between checks of a plugin's readiness
_STOP = 30.0  # seconds that a process may take to stop after SIGTERM
_PROCESS_CHECK_INTERVAL = 0.02  # seconds between checks of a process
_NOTE = "note: "  # the prefix of /readyz lines that do not prevent readiness
_LOG_CHARS = 3000  # characters of a process's log in an error


class Leftovers(TypedDict):
    """UIDs of claims with a CDI file, UIDs of claims with a record, and names of devices that a claim holds."""

    files: list[str]
    records: list[str]
    held: list[str]


class RunningDriver(Protocol):
    """One running instance of the plugin."""

    async def stop(self) -> None:
        """Stops the plugin gracefully."""

    async def kill(self) -> None:
        """Kills the plugin as SIGKILL does. Raises :class:`FaultError` if the plugin has no process of its own."""

    async def rescan(self) -> None:
        """Makes the plugin call the driver's discovery, and waits until the result is published.

        Raises :class:`NotReadyError`.
        """

    async def notes(self) -> list[str]:
        """Returns the plugin's warnings, such as devices that cannot be published."""

    async def leftovers(self) -> Leftovers:
        """Returns the plugin's files, records and held devices on its node, also after the plugin has ended."""

    def check(self) -> None:
        """Raises the error of a plugin that has ended by itself."""


class InProcessDriver:
    """Runs the plugin as an object: it starts fast, and a test can inspect and change the running driver."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self._hosted: Hosted[Plugin] | None = None

    async def start(self) -> None:
        """Starts the plugin and returns when it is registered and has published.

        Raises :class:`NotReadyError` with the reason if it does not.
        """
        self._hosted = Hosted(self.plugin.running(), f"the plugin of {self.plugin.settings.driver_name}")
        await self._hosted.enter()
        ready = asyncio.create_task(self.plugin.ready(READY), name="until the plugin is ready")
        try:
            await self._wait_ready(ready)
        except BaseException:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            await self.stop()
            raise

    async def _wait_ready(self, ready: asyncio.Task[None]) -> None:
        """Waits for ``ready``, but not longer than ``PROGRESS_TIMEOUT`` seconds while the driver's discovery fails."""
        faulty_seconds = 0.0  # the sum of the pauses, because the clock also runs while the machine is suspended
        while not ready.done():
            await asyncio.wait({ready}, timeout=_CHECK_INTERVAL)
            faulty_seconds = faulty_seconds + _CHECK_INTERVAL if self.plugin.discovery.fault else 0.0
            if faulty_seconds > PROGRESS_TIMEOUT and not ready.done():
                raise NotReadyError(f"the plugin is not ready: {'; '.join(await self.plugin.not_ready())}")
        await ready

    async def stop(self) -> None:
        if self._hosted:
            hosted, self._hosted = self._hosted, None
            await hosted.leave()

    async def kill(self) -> None:
        raise FaultError("the driver is an object in this process and cannot be killed alone: run it with process=True")

    async def notes(self) -> list[str]:
        # The pod's events have the errors of failing prepares.
        return await self.plugin.other_notes() if self._hosted else []

    async def leftovers(self) -> Leftovers:
        claims = self.plugin.claims
        return {
            "files": claims.files.specs.uids(),
            "records": [r.uid for r in await claims.store.all()],
            "held": sorted(device for _, device in await claims.store.held()),
        }

    async def rescan(self) -> None:
        await self.plugin.discovery.call_now()
        await self.plugin.published(READY)

    def check(self) -> None:
        if self._hosted:
            self._hosted.check()


class SubprocessDriver:
    """Runs ``dra run`` as a separate process, as in a pod. This starts about half a second slower than :class:`InProcessDriver`."""

    def __init__(self, driver: type[Driver], settings: Settings, cluster: LocalCluster, options: object = None) -> None:
        self._target = _target(driver)
        self._flags = as_flags(driver, read_options(driver, options))
        self._address = settings.http_address or f"127.0.0.1:{free_port()}"
        self._log = cluster.state / f"plugin-{settings.pod_uid or 'only'}.log"
        extra_environment = {**cluster.access, "HTTP_ADDRESS": self._address}
        path = os.pathsep.join(p for p in sys.path if p)
        self._environment = {**os.environ, **_environment(settings), **extra_environment, "PYTHONPATH": path}
        self._process: asyncio.subprocess.Process | None = None
        self._stop_requested = False
        self._watcher: Watcher | None = None

    async def start(self) -> None:
        """Starts the process and waits as :meth:`InProcessDriver.start`. The error contains the end of the process's log."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *gated([sys.executable, "-m", "dra_kubeletplugin.cli", "run", self._target, *self._flags]),
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self._watcher = Watcher(self._process.pid, self._target)
        assert self._process.stdin
        self._process.stdin.write(OPEN)
        self._process.stdin.close()
        try:
            async with asyncio.timeout(READY):
                while await self._not_ready():
                    self.check()
                    await asyncio.sleep(_PROCESS_CHECK_INTERVAL)
        except TimeoutError:
            why = await self._not_ready()
            await self.kill()
            raise NotReadyError(f"the plugin is not ready after {READY:g} s: {why.strip()}\n{self._tail()}") from None

    async def stop(self) -> None:
        if self._process and self._process.returncode is None:
            self._stop_requested = True
            signal_child(self._process, signal.SIGTERM)
            try:
                async with asyncio.timeout(_STOP):
                    await self._process.wait()
            except TimeoutError:
                await self.kill()
        self._close_watcher()

    async def kill(self) -> None:
        if self._process and self._process.returncode is None:
            self._stop_requested = True
            signal_child(self._process, signal.SIGKILL)
            await self._process.wait()
        self._close_watcher()

    def _close_watcher(self) -> None:
        if self._watcher:
            self._watcher.close()
            self._watcher = None

    async def notes(self) -> list[str]:
        body = await asyncio.to_thread(_http_get, f"http://{self._address}/readyz")
        return [line.removeprefix(_NOTE) for line in body.splitlines() if line.startswith(_NOTE)]

    async def leftovers(self) -> Leftovers:
        """Reads the records with `dra claims`, which also works while no plugin process runs."""
        cli = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dra_kubeletplugin.cli", "claims", "-o", "json"),
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await cli.communicate()
        if cli.returncode:
            raise FaultError(f"the records cannot be read: {err.decode(errors='replace').strip()}")
        found = json.loads(out)
        claims = found["claims"]
        return {
            "files": [file["uid"] for file in found["files"]],
            "records": [claim["uid"] for claim in claims],
            "held": sorted({device["device"] for claim in claims for device in claim["devices"]}),
        }

    async def rescan(self) -> None:
        raise FaultError(
            "the driver runs in a process of its own, which rescans by itself: a test cannot request a rescan"
        )

    def check(self) -> None:
        if self._process and self._process.returncode is not None and not self._stop_requested:
            raise NotReadyError(f"the plugin has ended with exit code {self._process.returncode}:\n{self._tail()}")

    async def _not_ready(self) -> str:
        """Returns the reasons that ``/readyz`` lists, or "" if the plugin is ready."""
        body = await asyncio.to_thread(_http_get, f"http://{self._address}/readyz")
        return "" if body == "ok\n" or body.startswith(_NOTE) else body

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_CHARS:]


def _http_get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=2) as found:  # noqa: S310 - the URL is built here
            return str(found.read().decode(errors="replace"))
    except urllib.error.HTTPError as e:
        with e:
            return e.read().decode(errors="replace")
    except OSError as e:
        return f"{url}: {e}"


def _target(driver: type[Driver]) -> str:
    """Returns the driver in the form that ``dra run`` accepts.

    Raises :class:`FaultError` for a class that another process cannot import.
    """
    if "<locals>" in driver.__qualname__:
        raise FaultError(
            f"{driver.__qualname__} is defined within a function: another process cannot load it; define it in a module"
        )
    file = Path(inspect.getfile(driver)).absolute()
    # By its name, if the process finds the file by it: the folders of a test's file may be packages without a parent, such as `tests`.
    relative = driver.__module__.replace(".", os.sep) + ".py"
    places = (Path(folder, relative).absolute() for folder in [str(Path.cwd()), *filter(None, sys.path)])
    is_found = (
        next((place for place in places if place.is_file()), None) == file and not Path(driver.__module__).is_dir()
    )
    return f"{driver.__module__ if is_found else file}:{driver.__qualname__}"


def _environment(settings: Settings) -> Mapping[str, str]:
    """Returns the settings as environment variables."""
    out = {}
    for f in fields(settings):
        value = getattr(settings, f.name)
        if isinstance(value, bool):
            out[f.metadata["env"]] = str(value).lower()
        elif isinstance(value, float):
            out[f.metadata["env"]] = f"{value:f}s"
        elif str(value):
            out[f.metadata["env"]] = str(value)
    return out
