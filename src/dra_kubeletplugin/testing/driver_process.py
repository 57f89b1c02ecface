"""How a driver under test runs: as an object in this process, or as a process of its own, which can be killed."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Protocol, TypedDict

from ..base.settings import Settings
from ..driver import Driver, as_flags, read_options
from ..errors import NotReadyError
from ..localcluster.cluster import LocalCluster
from ..plugin.node import Plugin
from .api import PATIENCE, FaultError
from .child_watcher import OPEN, Watcher, gated
from .ports import free_port
from .task_context import Hosted

READY = 60.0  # seconds
_LOOK = 0.1  # seconds between looks at what a plugin says of itself
_STOP = 30.0  # seconds that a process may take to end in order
_PAUSE = 0.02  # seconds between looks at a process
_NOTE = "note: "  # before lines of /readyz that are in nobody's way
_SHOWN = 3000  # characters of a process's log in an error


class Leftovers(TypedDict):
    """UIDs of claims with a CDI file, of claims on record, and names of devices that are held."""

    files: list[str]
    records: list[str]
    held: list[str]


class RunningDriver(Protocol):
    """One instance of the plugin."""

    async def stop(self) -> None:
        """Ends it in order."""

    async def kill(self) -> None:
        """Ends it as SIGKILL does. Raises :class:`FaultError` where that cannot be."""

    async def rescan(self) -> None:
        """Has the driver asked for its devices, and waits until that is published. Raises :class:`NotReadyError`."""

    async def notes(self) -> list[str]:
        """What it says is odd, such as devices that cannot be published."""

    async def leftovers(self) -> Leftovers:
        """What it has on its node, or left there when it ended."""

    def check(self) -> None:
        """Raises where it has ended by itself."""


class InProcessDriver:
    """A plugin object: quick, and the driver can be looked at and changed while it runs."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin
        self._hosted: Hosted[Plugin] | None = None

    async def start(self) -> None:
        """Returns once it is registered and published. Raises :class:`NotReadyError` with what is in the way."""
        self._hosted = Hosted(self.plugin.running(), f"the plugin of {self.plugin.settings.driver_name}")
        await self._hosted.enter()
        ready = asyncio.create_task(self.plugin.ready(READY), name="until the plugin is ready")
        try:
            await self._until(ready)
        except BaseException:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            await self.stop()
            raise

    async def _until(self, ready: asyncio.Task[None]) -> None:
        """A driver that cannot say which devices there are is not waited for as long as a slow machine is."""
        faulty = 0.0  # seconds: looks are counted, for in a loop that stands still nothing gets better
        while not ready.done():
            await asyncio.wait({ready}, timeout=_LOOK)
            faulty = faulty + _LOOK if self.plugin.scan.fault else 0.0
            if faulty > PATIENCE and not ready.done():
                raise NotReadyError(f"the plugin is not ready: {'; '.join(await self.plugin.not_ready())}")
        await ready

    async def stop(self) -> None:
        if self._hosted:
            hosted, self._hosted = self._hosted, None
            await hosted.leave()

    async def kill(self) -> None:
        raise FaultError(
            "the driver is an object in this process, which a kill would end: give it its own with process=True"
        )

    async def notes(self) -> list[str]:
        return await self.plugin.notes() if self._hosted else []

    async def leftovers(self) -> Leftovers:
        claims = self.plugin.claims
        return {
            "files": claims.files.specs.uids(),
            "records": [r.uid for r in await claims.store.all()],
            "held": sorted(device for _, device in await claims.store.held()),
        }

    async def rescan(self) -> None:
        await self.plugin.scan.look()
        await self.plugin.published(READY)

    def check(self) -> None:
        if self._hosted:
            self._hosted.check()


class SubprocessDriver:
    """``dra run`` in a process of its own, as in a pod: slower to start by half a second."""

    def __init__(self, driver: type[Driver], settings: Settings, cluster: LocalCluster, options: object = None) -> None:
        self._target = _target(driver)
        self._flags = as_flags(driver, read_options(driver, options))
        self._address = settings.http_address or f"127.0.0.1:{free_port()}"
        self._log = cluster.state / f"plugin-{settings.pod_uid or 'only'}.log"
        given = {**cluster.access, "HTTP_ADDRESS": self._address}
        path = os.pathsep.join(p for p in sys.path if p)
        self._environment = {**os.environ, **_environment(settings), **given, "PYTHONPATH": path}
        self._process: asyncio.subprocess.Process | None = None
        self._ended_by_us = False
        self._watcher: Watcher | None = None

    async def start(self) -> None:
        """As :meth:`InProcessDriver.start`; the error has the end of the process's log."""
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
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            why = await self._not_ready()
            await self.kill()
            raise NotReadyError(f"the plugin is not ready after {READY:g} s: {why.strip()}\n{self._tail()}") from None

    async def stop(self) -> None:
        if self._process and self._process.returncode is None:
            self._ended_by_us = True
            self._process.terminate()
            try:
                async with asyncio.timeout(_STOP):
                    await self._process.wait()
            except TimeoutError:
                await self.kill()
        self._forget()

    async def kill(self) -> None:
        if self._process and self._process.returncode is None:
            self._ended_by_us = True
            self._process.kill()
            await self._process.wait()
        self._forget()

    def _forget(self) -> None:
        if self._watcher:
            self._watcher.close()
            self._watcher = None

    async def notes(self) -> list[str]:
        said = await asyncio.to_thread(_asked, f"http://{self._address}/readyz")
        return [line.removeprefix(_NOTE) for line in said.splitlines() if line.startswith(_NOTE)]

    async def leftovers(self) -> Leftovers:
        """As `dra claims` reads them, whether the process lives or not."""
        asked = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dra_kubeletplugin.cli", "claims", "-o", "json"),
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asked.communicate()
        if asked.returncode:
            raise FaultError(f"the records cannot be read: {err.decode(errors='replace').strip()}")
        found = json.loads(out)
        claims = found["claims"]
        return {
            "files": [file["uid"] for file in found["files"]],
            "records": [claim["uid"] for claim in claims],
            "held": sorted({device["device"] for claim in claims for device in claim["devices"]}),
        }

    async def rescan(self) -> None:
        raise FaultError("the driver runs in a process of its own: it looks by itself, and is not asked to")

    def check(self) -> None:
        if self._process and self._process.returncode is not None and not self._ended_by_us:
            raise NotReadyError(f"the plugin has ended with exit code {self._process.returncode}:\n{self._tail()}")

    async def _not_ready(self) -> str:
        """What ``/readyz`` says is in the way; empty where nothing is."""
        said = await asyncio.to_thread(_asked, f"http://{self._address}/readyz")
        return "" if said == "ok\n" or said.startswith(_NOTE) else said

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-_SHOWN:]


def _asked(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=2) as found:  # noqa: S310 - the address is ours
            return str(found.read().decode(errors="replace"))
    except urllib.error.HTTPError as e:
        with e:
            return e.read().decode(errors="replace")
    except OSError as e:
        return f"{url}: {e}"


def _target(driver: type[Driver]) -> str:
    """As ``dra run`` takes it. Raises :class:`FaultError` for a class that another process cannot find."""
    if "<locals>" in driver.__qualname__:
        raise FaultError(
            f"{driver.__qualname__} is made within a function: another process cannot load it; define it in a module"
        )
    return f"{Path(inspect.getfile(driver)).absolute()}:{driver.__qualname__}"


def _environment(settings: Settings) -> Mapping[str, str]:
    """Settings as environment variables."""
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
