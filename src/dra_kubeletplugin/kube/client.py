"""Sends requests to the API server and returns plain JSON objects, so unknown fields survive and no models are loaded."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from ..base.json_types import JSON
from ..base.threads import in_own_thread
from ..errors import ApiError
from ..resourceapi.conversion import GROUP
from .config import ApiConfig
from .decoding import (
    Page,
    as_json,
    check_response,
    converting_errors,
    decode_object,
    decode_page,
    refusal,
    require_identity,
)
from .discovery import Discovery
from .errors import NotFoundError
from .http1 import HttpResponse
from .resource import Resource
from .transport import CONNECTIONS, Transport

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
LARGE = 64 * 1024  # bytes: JSON up to this size is decoded on the event loop, which takes at most about 3 ms
_RETRIES = 4
_MAX_RETRY_AFTER = 30.0
_DISCOVERY = 5.0  # seconds that a version discovery may take
USER_AGENT = "dra-kubeletplugin"


class KubeClient:
    """Sends requests to one API server. There is no client-side rate limit; a 429 response is retried after its ``Retry-After``.

    Every failure of the network or the server is raised as :class:`ApiError`, within the timeout. An exec plugin of a kubeconfig has
    8 s of its own.

    Args:
        timeout: seconds for a call including its retries, unless the call has its own ``timeout``.
        connections: maximum number of concurrent requests; further requests wait in order.
    """

    def __init__(self, config: ApiConfig, timeout: float = 15.0, *, connections: int = CONNECTIONS) -> None:
        self.config = config
        self.timeout = timeout
        config.credentials.clients.add(self)
        self.transport = Transport(config.server, config.tls, config.proxy, connections=connections)
        self._discovery = Discovery(lambda: self.call("GET", f"/apis/{GROUP}", timeout=_DISCOVERY))

    async def close(self) -> None:
        await self._discovery.close()
        credentials = self.config.credentials
        credentials.clients.discard(self)
        if not credentials.clients:
            await credentials.close()
        await self.transport.close()

    async def __aenter__(self) -> KubeClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def get(self, resource: Resource, name: str, namespace: str = "", *, timeout: float | None = None) -> JSON:
        path = resource.path(namespace, name)
        return require_identity(await self.call("GET", path, timeout=timeout), f"GET {path}")

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        fields: str = "",
        labels: str = "",
        limit: int = 0,
        cont: str = "",
    ) -> JSON:
        """Returns one page of a list: its ``items``, and its ``metadata`` with ``resourceVersion`` and ``continue``."""
        page = await self.page(resource, namespace, fields=fields, labels=labels, limit=limit, cont=cont)
        meta = {"resourceVersion": page.metadata.resource_version, "continue": page.metadata.cont}
        return {"metadata": meta, "items": [as_json(item) for item in page.items or ()]}

    async def page(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        fields: str = "",
        labels: str = "",
        limit: int = 0,
        cont: str = "",
        checked: bool = True,
    ) -> Page:
        """Like :meth:`list`, but the items stay encoded. A large page is decoded in a thread.

        Args:
            checked: whether the metadata of each item is checked; False if the caller checks it.
        """
        path = resource.path(namespace)
        query = {"fieldSelector": fields, "labelSelector": labels, "limit": str(limit or ""), "continue": cont}
        response = await self.raw("GET", path, query=query)
        if len(response.body) <= LARGE:
            return decode_page(response, f"GET {path}", checked=checked)
        return await in_own_thread(decode_page, response, f"GET {path}", checked=checked)

    async def create(self, resource: Resource, obj: Mapping[str, Any], namespace: str = "") -> JSON:
        namespace = namespace or obj["metadata"].get("namespace", "")
        path = resource.path(namespace)
        return require_identity(await self.call("POST", path, obj), f"POST {path}")

    async def update(self, resource: Resource, obj: Mapping[str, Any], sub: str = "") -> JSON:
        """Replaces the object. Raises :class:`.ConflictError` if the object changed since it was read."""
        meta = obj["metadata"]
        path = resource.path(meta.get("namespace", ""), meta["name"], sub)
        return require_identity(await self.call("PUT", path, obj), f"PUT {path}")

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        namespace: str = "",
        sub: str = "",
    ) -> JSON:
        """Sends a merge patch, or a JSON patch if ``patch`` is a list."""
        kind = JSON_PATCH if isinstance(patch, Sequence) else MERGE_PATCH
        path = resource.path(namespace, name, sub)
        return require_identity(await self.call("PATCH", path, patch, content_type=kind), f"PATCH {path}")

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        version: str = "",
        grace: int | None = None,
    ) -> JSON:
        """Deletes the object if it has this UID and resource version. Raises :class:`NotFoundError` if it is missing."""
        options: JSON = {"kind": "DeleteOptions", "apiVersion": "v1"}
        conditions = {k: v for k, v in (("uid", uid), ("resourceVersion", version)) if v}
        if conditions:
            options["preconditions"] = conditions
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        return await self.call("DELETE", resource.path(namespace, name), options)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> JSON:
        """Sends one request as :meth:`raw` does, and returns the JSON object of the response. Raises :class:`ApiError`."""
        response = await self.raw(method, path, body, query=query, content_type=content_type, timeout=timeout)
        return decode_object(response, f"{method} {path}")

    async def raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> HttpResponse:
        """Sends one request, and returns the response undecoded, for text and for objects of which the caller needs few fields.

        Retries a 429 or 503 after its Retry-After, within ``timeout``, and a 401 once with new credentials. Raises :class:`ApiError`.
        """
        target = _target(path, query)
        payload = b"" if body is None else msgspec.json.encode(body)
        what = f"{method} {path}"
        limit = timeout or self.timeout
        late = f"no response from {self.transport.server} within {limit:g}s"
        with converting_errors(what, self.transport.server, lambda: f"{late} ({self.transport.load})"):
            await self.config.credentials.header()  # an exec plugin that starts has a limit of its own
            async with asyncio.timeout(limit) as scope:
                response = await self._send_request(
                    method, target, payload, content_type if payload else "", scope.when()
                )
            try:
                return check_response(response, what)
            except NotFoundError as e:
                if path.startswith(f"/apis/{GROUP}/") and not _is_about_object(e):
                    self._discovery.forget()  # the server lacks the whole resource, so its version has changed
                raise

    async def _send_request(
        self, method: str, target: str, payload: bytes, content_type: str, deadline: float | None
    ) -> HttpResponse:
        now = asyncio.get_running_loop().time
        for attempt in range(_RETRIES + 1):
            headers = await self.headers(content_type)
            response = await self.transport.request(method, target, headers, payload)
            if response.status == 401 and attempt == 0:
                self._rejected()
                continue
            wait = _retry_after(response)
            if wait is None or (deadline is not None and now() + wait >= deadline):
                return response
            await asyncio.sleep(wait)
        return response

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], idle_timeout: float, opened: Callable[[], None]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yields the lines of a long-running GET on its own connection. ``opened`` is called when the server has accepted the request.

        Raises :class:`ApiError`, also while lines are read and after ``idle_timeout`` seconds without a line.
        """
        what = f"GET {path}"
        server = self.transport.server
        async with contextlib.AsyncExitStack() as stack:
            with converting_errors(what, server, lambda: f"no response from {server} within {self.timeout:g}s"):
                async with asyncio.timeout(self.timeout):
                    stream = self.transport.stream(_target(path, query), await self.headers())
                    head, connection = await stack.enter_async_context(stream)
                    if head.status != 200:
                        if head.status == 401:
                            self._rejected()
                        raise refusal(head, what)

            opened()

            async def read() -> AsyncGenerator[bytes, None]:
                with converting_errors(what, server, lambda: f"{server} was silent for {idle_timeout:g}s"):
                    async with contextlib.aclosing(connection.lines(idle_timeout)) as found:
                        async for line in found:
                            yield line

            yield await stack.enter_async_context(contextlib.aclosing(read()))

    def _rejected(self) -> None:
        """Reacts to a 401: closes idle connections, and lets the next request read credentials and certificates again."""
        self.config.credentials.rejected()
        self.config.tls.rejected()
        self.transport.forget_idle()

    async def headers(self, content_type: str = "") -> dict[str, str]:
        optional = {"Authorization": await self.config.credentials.header(), "Content-Type": content_type}
        return {"Accept": "application/json", "User-Agent": USER_AGENT} | {k: v for k, v in optional.items() if v}

    async def dra_version(self) -> str:
        """Returns the first of v1, v1beta2 and v1beta1 of resource.k8s.io that the server has. The result is cached.

        Raises :class:`ApiError` if the server has no known version or does not respond within 5 s.
        """
        return await self._discovery.version()

    async def refresh_version(self) -> str:
        """Discovers the version now. Raises as :meth:`dra_version`; the cached version is kept on failure."""
        return await self._discovery.refresh()

    async def dra(self, plural: str) -> Resource:
        """Returns a resource of resource.k8s.io, by its plural name, in the version of :meth:`dra_version`."""
        namespaced = plural in {"resourceclaims", "resourceclaimtemplates"}
        return Resource(GROUP, await self.dra_version(), plural, namespaced)


def _target(path: str, query: Mapping[str, str] | None) -> str:
    if not query:
        return path
    params = {k: v for k, v in query.items() if v}
    return f"{path}?{urlencode(params)}" if params else path


def _is_about_object(e: ApiError) -> bool:
    about = e.details.get("details")
    return isinstance(about, dict) and bool(about.get("name"))


def _retry_after(response: HttpResponse) -> float | None:
    """Returns the seconds to wait before the request is retried; None if it must not be retried."""
    if response.status not in {429, 503}:
        return None
    params = response.header(b"retry-after")
    if not params:
        return None
    try:
        seconds = float(params)
    except ValueError:
        seconds = 1.0  # an HTTP date, which API servers do not send
    return (min(seconds, _MAX_RETRY_AFTER) if seconds >= 0 else 1.0) + random.uniform(0, 0.1)
