"""The cluster as a user with kubectl sees it: objects over HTTP, and what goes wrong with their server on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..base.text import did_you_mean
from ..base.yaml.manifests import objects
from ..errors import ApiError
from ..localcluster.cluster import LocalCluster, resource_of
from ..resourceapi.conversion import GROUP
from .events import Event, PodError, fails, folded, has_run, hopeless, last_fault, stuck
from .published import Published, PublishedError, Wanted, differs, pools_of

JSON = dict[str, Any]
T = TypeVar("T")
N = TypeVar("N", int, float)
TIMEOUT = 60.0  # seconds until waiting is given up: a machine may be busy
PATIENCE = 2.0  # seconds in which nothing changes until a pod is given up that finds no place, or whose claims fail
_NO_CLASS = re.compile(r"device class (\S+) does not exist")
_PAUSES = (0.005, 0.1)  # seconds between looks: the first, the longest
_ONE_LOOK = 10.0  # seconds for the first look, however short the wait: an error tells what was seen
_COUNTED = 0.2  # the most seconds that one look counts as patience: on a machine that stands still nothing can change
_MANAGER, _APPLY = "dra-testing", "application/apply-patch+yaml"
_CORE = {"ConfigMap", "Event", "Namespace", "Node", "Pod", "ResourceQuota", "Secret", "Service", "ServiceAccount"}
_DRA = {"DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"}


class FaultError(RuntimeError):
    """A fault that cannot be made here; the text says what would make it possible."""


class AsyncApi:
    """Of one cluster. Everything but the faults goes through HTTP, so any API server will do."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    # --- objects ----------------------------------------------------------------------------------

    async def apply(self, *objects: Mapping[str, Any]) -> list[JSON]:
        """Creates objects, or changes those that exist, as ``kubectl apply --server-side`` does; in namespace ``default`` where
        they name none.

        Raises :class:`ApiError` with what the server refuses, fields that it does not know among them, and ``ValueError`` for an
        object without ``apiVersion``, ``kind`` or ``metadata``.
        """
        return [await self._apply(obj) for obj in objects]

    async def _apply(self, obj: Mapping[str, Any]) -> JSON:
        if missing := [key for key in ("apiVersion", "kind", "metadata") if not obj.get(key)]:
            raise ValueError(f"an object without {', '.join(missing)} cannot be applied: {dict(obj)}")
        resource, meta = resource_of(dict(obj)), dict(obj["metadata"])
        namespace = meta.setdefault("namespace", "default") if resource.namespaced else ""
        body, client, strict = {**obj, "metadata": meta}, self.cluster.client, {"fieldValidation": "Strict"}
        if "name" not in meta:  # but generateName, which can only be created
            return await client.call("POST", resource.path(namespace), body, query=strict)
        query = strict | {"fieldManager": _MANAGER, "force": "true"}
        path = resource.path(namespace, meta["name"])
        return await client.call("PATCH", path, body, query=query, content_type=_APPLY)

    async def apply_file(self, path: Path | str) -> list[JSON]:
        """Every object of a file, of YAML or JSON. Raises as :meth:`apply`, and :class:`QuestionError` with each mistake's line."""
        return await self.apply(*(m.value for m in objects([Path(path)])))

    async def get(self, kind: str, name: str, namespace: str = "default", *, api_version: str = "") -> JSON | None:
        """An object by its kind (``Pod``), None where there is none.

        Args:
            api_version: for kinds outside the core and ``resource.k8s.io``, e.g. ``apps/v1``.
        """
        resource = resource_of({"apiVersion": api_version or version_of(kind), "kind": kind})
        try:
            return await self.cluster.client.get(resource, name, namespace if resource.namespaced else "")
        except ApiError as e:
            if e.status == 404:
                return None
            raise

    async def get_all(self, kind: str, namespace: str = "", *, api_version: str = "") -> list[JSON]:
        """The objects of a kind, of all namespaces where none is named; ``api_version`` as in :meth:`get`."""
        resource = resource_of({"apiVersion": api_version or version_of(kind), "kind": kind})
        items: list[JSON] = (await self.cluster.client.list(resource, namespace))["items"]
        return items

    async def delete(self, kind: str, name: str, namespace: str = "default", *, api_version: str = "") -> None:
        """Asks for the deletion; what is not there is deleted. ``api_version`` as in :meth:`get`."""
        resource = resource_of({"apiVersion": api_version or version_of(kind), "kind": kind})
        try:
            await self.cluster.client.delete(resource, name, namespace if resource.namespaced else "")
        except ApiError as e:
            if e.status != 404:
                raise

    async def remove(self, kind: str, name: str, namespace: str = "default", *, api_version: str = "") -> None:
        """Deletes at once, whatever finalizers and periods of grace say. ``api_version`` as in :meth:`get`."""
        resource = resource_of({"apiVersion": api_version or version_of(kind), "kind": kind})
        namespace = namespace if resource.namespaced else ""
        try:
            found = await self.cluster.client.delete(resource, name, namespace, grace=0)
            if (found.get("metadata") or {}).get("finalizers"):
                await self.cluster.client.patch(resource, name, {"metadata": {"finalizers": None}}, namespace)
        except ApiError as e:
            if e.status != 404:
                raise

    async def slices(self, driver: str = "") -> list[JSON]:
        """ResourceSlices, of one driver where it is named."""
        return [s for s in await self.get_all("ResourceSlice") if not driver or s["spec"]["driver"] == driver]

    async def published(self, driver: str, pool: str = "", *, timeout: float = TIMEOUT) -> Published:
        """What a driver publishes: its devices by name, and its pools; of one pool where it is named, a node's by the node's name.

        A pool that is just being written is waited for. Raises :class:`PublishedError` where one does not become whole.
        """
        __tracebackhide__ = True
        return await self.wait_published(driver, lambda _: True, pool, timeout=timeout)

    async def events(self, name: str = "", namespace: str = "") -> list[Event]:
        """Events about the object with this name, or all, folded, oldest first."""
        found = await self.get_all("Event", namespace)
        return folded(e for e in found if not name or e["involvedObject"].get("name") == name)

    # --- waiting ----------------------------------------------------------------------------------

    async def wait(self, what: str, check: Callable[[], Awaitable[T | None]], timeout: float = TIMEOUT) -> T:
        """Waits until ``await check()`` answers something true, and answers that.

        Raises ``TimeoutError`` that says what was waited for.
        """
        __tracebackhide__ = True
        pause, longest = _PAUSES
        end = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout(max(timeout, _ONE_LOOK)) as limit:
                found = await check()
                limit.reschedule(end)
                while not found:
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, longest)
                    found = await check()
                return found
        except TimeoutError:
            raise TimeoutError(f"waited {timeout:g} s for {what}") from None

    async def wait_published(
        self, driver: str, wanted: Wanted, pool: str = "", *, timeout: float = TIMEOUT
    ) -> Published:
        """What a driver publishes, once it is as ``wanted``, and all of it is there; of one pool where it is named.

        Args:
            wanted: the names of all devices, in any order; or a function that is given :class:`Published` and answers something
                true once it is right. It looks at nothing else, and a name that is not there is one that has not come yet.

        Raises :class:`PublishedError` with what is published instead.
        """
        __tracebackhide__ = True
        now, why = Published({}), ""

        async def look() -> bool:
            nonlocal now, why
            now, torn = pools_of(await self.slices(driver), pool)
            why = torn or differs(now, wanted)
            return not why

        try:
            await self.wait(f"what {driver} publishes", look, timeout)
        except TimeoutError as e:
            meant = "" if now else did_you_mean(driver, {s["spec"]["driver"] for s in await self.slices()} - {driver})
            raise PublishedError(f"{e}{meant}: {why}", now) from None
        return now

    async def wait_event(self, name: str, text: str, timeout: float = TIMEOUT) -> Event:
        """The first event about ``name`` that has ``text`` in its reason or message.

        Raises :class:`PodError` with the events that there are.
        """
        __tracebackhide__ = True

        async def told() -> Event | None:
            return next((e for e in await self.events(name) if text in e.message or text in e.reason), None)

        try:
            return await self.wait(f"an event with {text!r} about {name}", told, timeout)
        except TimeoutError as e:
            raise PodError(str(e), await self.events(name)) from None

    async def wait_running(
        self, name: str, namespace: str = "default", *, timeout: float = TIMEOUT, patience: float = PATIENCE
    ) -> JSON:
        """The pod, once it runs, or has run to a good end.

        Raises :class:`PodError` with its events: at once where it has failed, is gone or its driver refuses for good; after
        ``patience`` seconds where the scheduler finds no place, or the driver raises the same, or the host lacks the same
        path, and nothing changes; after ``timeout`` seconds in any case.
        """
        __tracebackhide__ = True
        loop = asyncio.get_running_loop()
        waits, waited, looked, seen = "", 0.0, loop.time(), False

        async def look() -> JSON | None:
            __tracebackhide__ = True
            nonlocal waits, waited, looked, seen
            waited, looked = waited + min(loop.time() - looked, _COUNTED), loop.time()
            pod = await self.get("Pod", name, namespace)
            if pod is not None and has_run(pod):
                return pod
            if pod is None and not seen:
                known = [p["metadata"]["name"] for p in await self.get_all("Pod", namespace)]
                raise PodError(f"there is no pod {name} in namespace {namespace}{did_you_mean(name, known)}", [])
            seen = True
            events = await self._events_of(pod, name, namespace)
            if why := hopeless(name, pod, events):
                raise PodError(why, events)
            assert pod
            failed = fails(events)
            now = failed or stuck(pod, events)
            if now != waits or (now and not failed and await self._goes_on(pod)):
                waits, waited = now, 0.0
            if waits and waited > patience:
                if failed:
                    raise PodError(f"pod {name} does not start: {failed}", events)
                why = f"pod {name} finds no place, and nothing has changed for {patience:g} s"
                raise PodError(f"{why}{await self._no_class(events) or last_fault(events)}", events)
            return None

        try:
            return await self.wait(f"pod {name} to run", look, timeout)
        except TimeoutError as e:
            events = await self._events_of(None, name, namespace)
            raise PodError(f"{e}{last_fault(events)}", events) from None

    async def wait_finished(self, name: str, namespace: str = "default", *, timeout: float = TIMEOUT) -> JSON:
        """The pod, once all its containers have ended well. Raises :class:`PodError`, as :meth:`wait_running`."""
        __tracebackhide__ = True
        pod = await self.wait_running(name, namespace, timeout=timeout)

        async def finished() -> JSON | None:
            __tracebackhide__ = True
            found = await self.get("Pod", name, namespace)
            events = await self._events_of(pod, name, namespace)
            if why := hopeless(name, found, events):
                raise PodError(why, events)
            return found if found and found["status"]["phase"] == "Succeeded" else None

        try:
            return await self.wait(f"pod {name} to finish", finished, timeout)
        except TimeoutError as e:
            raise PodError(str(e), await self._events_of(pod, name, namespace)) from None

    async def delete_pod(self, name: str, namespace: str = "default", *, timeout: float = TIMEOUT) -> None:
        """Deletes a pod and waits until it has gone. Raises :class:`PodError` where it stays."""
        __tracebackhide__ = True
        await self.delete("Pod", name, namespace)

        async def gone() -> bool:
            return await self.get("Pod", name, namespace) is None

        try:
            await self.wait(f"pod {name} to go", gone, timeout)
        except TimeoutError as e:
            raise PodError(str(e), await self._events_of(None, name, namespace)) from None

    async def _events_of(self, pod: JSON | None, name: str, namespace: str) -> list[Event]:
        """Those of this pod, not of an older one of the same name."""
        found = [e for e in await self.get_all("Event", namespace) if e["involvedObject"].get("name") == name]
        uid = pod["metadata"]["uid"] if pod else None
        return folded(e for e in found if uid is None or e["involvedObject"].get("uid") == uid)

    async def _no_class(self, events: Sequence[Event]) -> str:
        """That there is no such DeviceClass, and which is nearly it."""
        found = next((m for e in events if (m := _NO_CLASS.search(e.message))), None)
        if found is None:
            return ""
        return (
            f": {found[0]}{did_you_mean(found[1], [c['metadata']['name'] for c in await self.get_all('DeviceClass')])}"
        )

    async def _goes_on(self, pod: JSON) -> bool:
        """Whether the pod has its claims and waits for their devices, or what it waits for may just be getting free."""
        pods, claims = await self.get_all("Pod"), await self.get_all("ResourceClaim")
        if any(o["metadata"].get("deletionTimestamp") for o in (*pods, *claims)):
            return True
        consumers = [r for c in claims for r in (c.get("status") or {}).get("reservedFor") or []]
        return any(r["uid"] == pod["metadata"]["uid"] for r in consumers)

    # --- faults -----------------------------------------------------------------------------------

    def conflict(self, times: int = 1) -> None:
        """The next ``times`` updates are answered 409, as if another had written in between."""
        __tracebackhide__ = True
        self._own("conflict").api.faults.conflicts = _amount("conflict", times)

    def throttle(self, times: int = 1) -> None:
        """The next ``times`` requests are answered 429 with a Retry-After."""
        __tracebackhide__ = True
        self._own("throttle").api.faults.throttle = _amount("throttle", times)

    def drop(self, *fields: str) -> None:
        """Drops these fields of slices (``taints``, ``sharedCounters``), as a server with their gate off; none: drops no more.

        Raises :class:`FaultError` for a name that is no such field.
        """
        __tracebackhide__ = True
        faults = self._own("drop").api.faults
        try:
            faults.drop(fields)
        except ValueError as e:
            raise FaultError(str(e)) from None

    def serve(self, *versions: str) -> None:
        """Serves only these versions of ``resource.k8s.io``, as another release would; none: all of them.

        Raises :class:`FaultError` for what is no version of it.
        """
        __tracebackhide__ = True
        faults = self._own("serve").api.faults
        try:
            faults.serve(versions)
        except ValueError as e:
            raise FaultError(str(e)) from None

    def slow(self, seconds: float) -> None:
        """Waits this long before each answer; 0: does not."""
        __tracebackhide__ = True
        self._own("slow").api.faults.delay = _amount("slow", seconds)

    def cut_watch(self) -> None:
        """Ends every watch that is open, as a proxy with a time limit does."""
        __tracebackhide__ = True
        self._own("cut_watch").api.storage.cut_watches()

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """While inside, the server answers 503 to everything, also to the cluster's own components."""
        with self._own("away").api_away():
            yield

    def _own(self, fault: str) -> LocalCluster:
        __tracebackhide__ = True
        if not self.cluster.has_own_api:
            raise FaultError(f"{fault} is a fault of the local API server: unset KUBEBUILDER_ASSETS for this test")
        return self.cluster


def _amount(fault: str, value: N) -> N:
    __tracebackhide__ = True
    if not 0 <= value < math.inf:
        raise FaultError(f"{fault}({value}): it takes what is 0 or more")
    return value


def version_of(kind: str) -> str:
    """The ``apiVersion`` of a kind of the core or of ``resource.k8s.io``. Raises ``ValueError`` for another."""
    if kind in _CORE:
        return "v1"
    if kind in _DRA:
        return f"{GROUP}/v1"
    raise ValueError(f"{kind}: give its api_version, e.g. apps/v1")


__all__ = ["AsyncApi", "FaultError"]
