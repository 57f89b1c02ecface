"""The page of `dra dev`, which shows the content of `dra top` to a user with a link from the terminal.

A link works once, because other users can see a browser's command line. The page exchanges the link for a token. The browser's tab
keeps the token, and only this page sends it. A cookie would also be sent by other pages, and to servers on other ports.
The cluster is watched from the first request on, so that an unused page costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

from dra_devkit.commands.style import Style
from dra_kubeletplugin.base.http_server import pages
from dra_kubeletplugin.base.http_server.server import PROBES, HttpServer, Request, Response
from dra_kubeletplugin.errors import DraError, QuestionError, describe
from dra_kubeletplugin.kube import ApiConfig, KubeClient

from ..commands.explain_text import text as explanation
from ..top.live import LiveOverview
from ..usage.rows import Overview
from . import usage_page

_REASONS = 50  # maximum number of pods that are explained
_LIMITS = replace(PROBES, send_timeout=30, connections=32)
_NO_KEY = "This page needs a link that was not used before: `dra dev print-link` prints a new one."


class DevPage:
    """Serves the page until closed.

    ``address`` is HOST:PORT; by default, a free port of the loopback address.
    """

    def __init__(self, config: ApiConfig, address: str = "127.0.0.1:0") -> None:
        self._config = config
        self._http = HttpServer(self._handle, address, limits=_LIMITS)
        self._url = ""
        self._links: set[str] = set()
        self._tokens: set[str] = set()
        self._live: asyncio.Future[LiveOverview] | None = None
        self._watch: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[DevPage]:
        """Runs the server. Raises ``OSError`` if the address cannot be used."""
        self._url = await self._http.start()
        try:
            yield self
        finally:
            await self._http.close()
            if self._watch is not None:
                self._watch.cancel()
                await asyncio.gather(self._watch, return_exceptions=True)

    def link(self) -> str:
        """Returns a new link. The key is in the fragment (after #), because browsers do not send a fragment and servers do not log it."""
        key = secrets.token_urlsafe(24)
        self._links.add(key)
        return f"{self._url}/#key={key}"

    async def _handle(self, request: Request) -> Response:
        if refused := pages.rejection(request, writes=request.path == "/session"):
            return refused
        match request.path:
            case "/":
                return usage_page.page()
            case "/session":
                return self._session(request)
        if request.path not in {*usage_page.DATA, "/explanation"}:
            return pages.text("/\n", 404)
        if not self._known(request):
            return pages.text(_NO_KEY, 401)
        try:
            live = await self._live_overview()
        except Exception as e:  # shown to the user; the next request tries again
            return pages.text(str(e) if isinstance(e, DraError) else describe(e), 503)
        if request.path == "/explanation":
            return await _explained(live, request)
        return usage_page.data(request, self._shown(live))

    # --- authentication -------------------------------------------------------------------------

    def _session(self, request: Request) -> Response:
        given = request.body.decode(errors="replace")
        found = next((k for k in self._links if hmac.compare_digest(k.encode(), given.encode())), None)
        if found is None:
            return pages.text(_NO_KEY, 401)
        self._links.discard(found)
        token = secrets.token_urlsafe(32)
        self._tokens.add(token)
        response = pages.text(f'{{"token": "{token}"}}')
        response.content_type = "application/json"
        return response

    def _known(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        sent = given.encode(errors="replace")
        return kind == "Bearer" and any(hmac.compare_digest(t.encode(), sent) for t in self._tokens)

    # --- overview -------------------------------------------------------------------------------

    async def _live_overview(self) -> LiveOverview:
        """Returns the overview. Raises the cause if the cluster cannot be watched."""
        if self._live is None or self._watch is None or self._watch.done():
            self._live = asyncio.get_running_loop().create_future()
            self._watch = asyncio.create_task(self._follow(self._live))
        return await asyncio.shield(self._live)

    async def _follow(self, ready: asyncio.Future[LiveOverview]) -> None:
        try:
            async with KubeClient(self._config) as client:
                live = LiveOverview(client)
                async with live.running():
                    ready.set_result(live)
                    await asyncio.get_running_loop().create_future()  # until the page is closed
        except Exception as e:
            if not ready.done():
                ready.set_exception(e)

    def _shown(self, live: LiveOverview) -> Overview:
        found = live.current()
        live.reasons.show(found.waiting[:_REASONS])
        return found


async def _explained(live: LiveOverview, request: Request) -> Response:
    namespace, name = request.query.get("namespace", ""), request.query.get("pod", "")
    pod = next((p for p in live.current().waiting if (p.namespace, p.name) == (namespace, name)), None)
    if pod is None:
        return pages.text(f"pod {namespace}/{name} no longer waits for devices", 404)
    try:
        return pages.text("\n".join(explanation(await live.reasons.full_explanation(pod), Style(coloured=False))))
    except QuestionError as e:
        return pages.text(str(e), 404)
