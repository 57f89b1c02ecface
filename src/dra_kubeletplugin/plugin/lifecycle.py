"""The common parts of the node plugin and the controller: probes, start and stop with time limits, and background tasks.

The process ends when a background task ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from ..base.http_server.origin import is_from_loopback
from ..base.http_server.server import PROBES, Handler, HttpServer, Request, Response
from ..base.shared_call import SharedCall
from ..base.telemetry.metrics import CONTENT_TYPE, Metrics
from ..driver import Driver
from ..driver.calls import Calls
from ..errors import DraError, DriverError, SettingsError, describe

log = logging.getLogger(__name__)
Job = Callable[[], Awaitable[object]]
Lines = Callable[[], Awaitable[Sequence[str]]]
PAGES = frozenset({"/", "/status.json"})


def stop_with_timeout(
    stack: contextlib.AsyncExitStack, what: str, stop: Callable[[], Awaitable[object]], seconds: float = 3.0
) -> None:
    """Registers a part of the stop, which may take ``seconds``. If it hangs or fails, the other parts still run."""

    async def limited() -> None:
        task = asyncio.ensure_future(stop())
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            log.error("a step of the stop took more than %g s and is abandoned: %s", seconds, what)
            task.cancel()
        elif not task.cancelled() and (error := task.exception()):
            log.error("a step of the stop failed: %s: %s", what, describe(error))

    stack.push_async_callback(limited)


async def start_driver(stack: contextlib.AsyncExitStack, driver: Driver, calls: Calls, timeout: float) -> None:
    """Calls the driver's ``start`` and registers its ``stop``.

    Raises:
        DriverError: ``start`` has not returned after ``timeout`` seconds.
        Exception: anything that ``start`` raises.
    """
    try:
        async with asyncio.timeout(timeout):
            await calls(driver.start)
    except TimeoutError:
        raise DriverError(
            f"start() of {type(driver).__name__} has not returned within {timeout:g}s: see what it waits for, or raise "
            "--start-timeout (START_TIMEOUT)"
        ) from None
    stop_with_timeout(stack, "stop() of the driver", lambda: calls(driver.stop))


@contextlib.asynccontextmanager
async def unwrap_single_error() -> AsyncIterator[None]:
    """Raises the only exception of a task group itself, so that the message states the cause and nothing else."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


def start_tasks(tasks: asyncio.TaskGroup, jobs: Mapping[str, Job]) -> list[asyncio.Task[None]]:
    """Starts background tasks by name. When one of them ends, all end, so that the process never runs with one of them missing."""
    return [tasks.create_task(_supervised(name, job), name=name) for name, job in jobs.items()]


async def _supervised(name: str, job: Job) -> None:
    try:
        await job()
    except Exception as e:
        log.critical("a background task failed, so the process ends: %s: %s", name, describe(e))
        raise
    raise DraError(f"background task {name!r} ended by itself")


class Probes:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz``, and optionally a status page.

    Args:
        metrics: the metrics that ``/metrics`` shows.
        measure: updates the metrics; called before they are shown.
        not_ready: returns lines for ``/readyz``: why the process is not ready.
        notes: returns further lines for ``/readyz``, which do not affect readiness.
        page: handles the paths in :data:`PAGES`.
        passed: returns lines for ``/readyz?verbose``: checks that found no problem.
        hanging: returns why only a restart of the process helps, for ``/healthz``; empty if it is alive.
    """

    def __init__(
        self,
        metrics: Metrics,
        measure: Job,
        not_ready: Lines,
        notes: Lines,
        page: Handler | None = None,
        passed: Callable[[], Sequence[str]] = tuple,
        hanging: Callable[[], str] = str,
    ) -> None:
        self._metrics = metrics
        self._measure = measure
        self._not_ready = not_ready
        self._notes = notes
        self._page = page
        self._passed = passed
        self._hanging = hanging
        self._rendered = SharedCall(self._render, "metrics", pause=4)
        self._readiness = SharedCall(self._check_readiness, "readiness", pause=4)

    async def serve(self, stack: contextlib.AsyncExitStack, address: str, *, shared: bool = False) -> str:
        """Serves until the stack is closed. Returns the URL; empty if ``address`` is empty.

        Args:
            shared: whether a second instance may use the address at the same time.

        Raises:
            SettingsError: the server cannot listen at ``address``.
        """
        if not address:
            return ""
        server = HttpServer(self._handle, address, limits=PROBES, shared=shared)
        try:
            url = await server.start()
        except (OSError, UnicodeError) as e:  # UnicodeError if the host name is invalid
            raise SettingsError(f"--http-address (HTTP_ADDRESS) {address}: {describe(e)}") from None
        stop_with_timeout(stack, "closing the probes", server.close)
        log.info("serving metrics and probes at %s", server.shown)
        return url

    async def _handle(self, request: Request) -> Response:
        match request.path:
            case "/metrics":
                return Response(200, await self._rendered.fresh(), CONTENT_TYPE)
            case "/healthz":
                why = self._hanging()
                return Response(503 if why else 200, f"{why or 'ok'}\n".encode(errors="replace"), "text/plain")
            case "/readyz":
                faults, notes = await self._readiness.fresh()
                # The notes contain names of claims, which must not be public.
                if notes and not is_from_loopback(request):
                    notes = [f"{len(notes)} more, shown only on the loopback: use kubectl port-forward POD PORT"]
                lines = [*faults, *(f"note: {line}" for line in notes)]
                if "verbose" in request.query:
                    lines += self._passed() or ([] if lines else ["ok"])
                return Response(503 if faults else 200, ("\n".join(lines) or "ok").encode() + b"\n", "text/plain")
            case path if self._page is not None and path in PAGES:
                return await self._page(request)
        paths = "/, /status.json, " if self._page is not None else ""
        return Response(404, f"{paths}/metrics, /healthz or /readyz\n".encode(), "text/plain")

    async def _render(self) -> bytes:
        await self._measure()
        return self._metrics.text()

    async def _check_readiness(self) -> tuple[Sequence[str], Sequence[str]]:
        """Returns why the process is not ready, and the further lines."""
        return await self._not_ready(), await self._notes()
