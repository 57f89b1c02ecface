"""Requests to the API server, as plain JSON objects: unknown fields survive, no model is loaded."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from ..errors import ApiError
from ..resources.convert import GROUP, VERSIONS
from .config import ApiConfig
from .transport import HttpResponse, Transport

log = logging.getLogger(__name__)
JSON = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_RETRIES = 4
_MAX_RETRY_AFTER = 30.0
USER_AGENT = "dra-kubeletplugin"


@dataclass(frozen=True)
class Resource:
    """A kind of object in one version, e.g. ``Resource("resource.k8s.io", "v1", "resourceclaims", namespaced=True)``."""

    group: str
    version: str
    plural: str
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        out = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            out += f"/namespaces/{quote(namespace, safe='')}"
        out += f"/{self.plural}"
        if name:
            out += f"/{quote(name, safe='')}"
        return out + (f"/{sub}" if sub else "")


NODES = Resource("", "v1", "nodes")


class KubeClient:
    """Talks to one API server. There is no client-side rate limit: the server's own (429) is honoured instead."""

    def __init__(self, config: ApiConfig, timeout: float = 15.0) -> None:
        self.config = config
        self.timeout = timeout
        self.transport = Transport(config.server, config.tls)
        self._resource_version: str | None = None
        self._discovery = asyncio.Lock()

    async def close(self) -> None:
        await self.transport.close()

    async def __aenter__(self) -> KubeClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def get(self, resource: Resource, name: str, namespace: str = "", *, timeout: float | None = None) -> JSON:
        return await self.call("GET", resource.path(namespace, name), timeout=timeout)

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
        query = {"fieldSelector": fields, "labelSelector": labels, "limit": str(limit or ""), "continue": cont}
        return await self.call("GET", resource.path(namespace), query=query)

    async def create(self, resource: Resource, obj: Mapping[str, Any], namespace: str = "") -> JSON:
        namespace = namespace or obj["metadata"].get("namespace", "")
        return await self.call("POST", resource.path(namespace), obj)

    async def update(self, resource: Resource, obj: Mapping[str, Any], sub: str = "") -> JSON:
        """Raises :class:`ApiError` 409 where the object changed since it was read."""
        meta = obj["metadata"]
        return await self.call("PUT", resource.path(meta.get("namespace", ""), meta["name"], sub), obj)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        namespace: str = "",
        sub: str = "",
    ) -> JSON:
        """A merge patch, or a JSON patch where ``patch`` is a list."""
        kind = JSON_PATCH if isinstance(patch, Sequence) else MERGE_PATCH
        return await self.call("PATCH", resource.path(namespace, name, sub), patch, content_type=kind)

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
        """Deletes where the preconditions hold; 404 is raised like other errors."""
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
        """One request; 429 and 503 with Retry-After are waited out, a 401 is tried once with fresh credentials.

        Raises :class:`ApiError`.
        """
        asked = {k: v for k, v in (query or {}).items() if v}
        target = path + (f"?{urlencode(asked)}" if asked else "")
        payload = b"" if body is None else msgspec.json.encode(body)
        for attempt in range(_RETRIES + 1):
            headers = await self.headers(content_type if payload else "")
            answer = await self.transport.request(method, target, headers, payload, timeout or self.timeout)
            if answer.status == 401 and attempt == 0:
                self.config.credentials.rejected()
                continue
            wait = _retry_after(answer)
            if wait is not None and attempt < _RETRIES:
                await asyncio.sleep(wait + random.uniform(0, 0.1))
                continue
            break
        if answer.status >= 400:
            raise error_of(answer, f"{method} {path}")
        out: JSON = msgspec.json.decode(answer.body) if answer.body else {}
        return out

    async def headers(self, content_type: str = "") -> dict[str, str]:
        out = {"Accept": "application/json", "User-Agent": USER_AGENT}
        if content_type:
            out["Content-Type"] = content_type
        if authorization := await self.config.credentials.header():
            out["Authorization"] = authorization
        return out

    async def dra_version(self) -> str:
        """The best version of resource.k8s.io that the server has, asked for once.

        Raises :class:`ApiError` where it has none.
        """
        async with self._discovery:
            if self._resource_version is None:
                try:
                    group = await self.call("GET", f"/apis/{GROUP}")
                except ApiError as e:
                    if e.status != 404:
                        raise
                    group = {"versions": []}
                served = {v["version"] for v in group["versions"]}
                self._resource_version = next((v for v in VERSIONS if v in served), "")
            if not self._resource_version:
                found = ", ".join(sorted(served)) or "none"
                self._resource_version = None
                raise ApiError(
                    f"the API server serves no version of {GROUP} that is known here (wanted one of {', '.join(VERSIONS)}, "
                    f"served: {found}): enable DynamicResourceAllocation, or use Kubernetes 1.34 or later",
                    status=404,
                )
        return self._resource_version

    def forget_version(self) -> None:
        """The server may have changed: ask again which versions it has."""
        self._resource_version = None

    async def dra(self, plural: str) -> Resource:
        """``resourceslices``, ``resourceclaims``, ``resourceclaimtemplates`` or ``deviceclasses`` in the best version."""
        namespaced = plural in {"resourceclaims", "resourceclaimtemplates"}
        return Resource(GROUP, await self.dra_version(), plural, namespaced)


def _retry_after(answer: HttpResponse) -> float | None:
    if answer.status not in {429, 503} or "retry-after" not in answer.headers:
        return None
    try:
        return min(float(answer.headers["retry-after"]), _MAX_RETRY_AFTER)
    except ValueError:
        return 1.0


def error_of(answer: HttpResponse, what: str) -> ApiError:
    """The error of a refusal: the Status object's message where there is one."""
    try:
        status = msgspec.json.decode(answer.body)
        message = status["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        status, message = {}, answer.body.decode(errors="replace").strip()[:300]
    return ApiError(f"{what}: {answer.status} {message}", status=answer.status, details=status)
