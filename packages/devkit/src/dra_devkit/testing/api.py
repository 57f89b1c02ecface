"""The test client of a cluster: reads and writes objects over HTTP as kubectl does, waits for states, and injects faults."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.kube.errors import NotFoundError
from dra_kubeletplugin.resourceapi.conversion import GROUP

from ..localcluster.cluster import LocalCluster, resource_of, wait_until
from ..yaml.manifests import objects
from .events import (
    Event,
    PodError,
    has_run,
    last_warning,
    merge_events,
    permanent_failure,
    prepare_failure,
    unschedulable_reason,
)
from .published import Published, PublishedError, Wanted, differs, pools_of

T = TypeVar("T")
N = TypeVar("N", int, float)
TIMEOUT = 60.0  # seconds until a wait fails; long, because a test machine may be busy
PROGRESS_TIMEOUT = 2.0
"""Seconds without a change after which a wait fails, if the pod is unschedulable or its claims cannot be prepared."""
_NO_CLASS = re.compile(r"device class (\S+) does not exist")
_LONGEST_PAUSE = 0.1  # seconds between two checks
# Maximum seconds that one check adds to the waiting time: while the machine is suspended, nothing can change.
_MAX_COUNTED = 0.2
_MANAGER, _APPLY = "dra-testing", "application/apply-patch+yaml"
_CORE = {"ConfigMap", "Event", "Namespace", "Node", "Pod", "ResourceQuota", "Secret", "Service", "ServiceAccount"}
_DRA = {"DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"}


class FaultError(RuntimeError):
    """Raised for a fault or a test step that is not possible in this cluster. The text describes how to make it possible."""


class AsyncApi:
    """The client of one cluster. Everything except the faults uses HTTP, so it works with any API server."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    # --- objects ----------------------------------------------------------------------------------

    async def apply(self, *objects: Mapping[str, Any]) -> list[JSON]:
        """Creates or updates objects as ``kubectl apply --server-side`` does. The default namespace is ``default``.

        Raises :class:`ApiError` if the server rejects an object, also for unknown fields.
        Raises ``ValueError`` for an object without ``apiVersion``, ``kind`` or ``metadata``.
        """
        return [await self._apply(obj) for obj in objects]

    async def _apply(self, obj: Mapping[str, Any]) -> JSON:
        if missing := [key for key in ("apiVersion", "kind", "metadata") if not obj.get(key)]:
            raise ValueError(f"an object without {', '.join(missing)} cannot be applied: {dict(obj)}")
        resource, meta = resource_of(dict(obj)), dict(obj["metadata"])
        namespace = meta.setdefault("namespace", "default") if resource.namespaced else ""
        body, client, strict = {**obj, "metadata": meta}, self.cluster.client, {"fieldValidation": "Strict"}
        if "name" not in meta:  # has generateName, which works only with a create
            return await client.call("POST", resource.path(namespace), body, query=strict)
        query = strict | {"fieldManager": _MANAGER, "force": "true"}
        path = resource.path(namespace, meta["name"])
        return await client.call("PATCH", path, body, query=query, content_type=_APPLY)

    async def apply_file(self, path: Path | str) -> list[JSON]:
        """Applies every object of a YAML or JSON file.

        Raises as :meth:`apply`, and :class:`QuestionError` with the line of each mistake.
        """
        return await self.apply(*(m.value for m in objects([Path(path)])))

    async def get(self, kind: str, name: str, namespace: str = "default", *, api_version: str = "") -> JSON | None:
        """Returns an object by its kind (``Pod``) and name, or None if it does not exist.

        Args:
            api_version: needed for kinds outside the core and ``resource.k8s.io``, e.g. ``apps/v1``.
        """
        resource = resource_of(_type(kind, api_version))
        try:
            return await self.cluster.client.get(resource, name, namespace if resource.namespaced else "")
        except NotFoundError:
            return None

    async def get_all(self, kind: str, namespace: str = "", *, api_version: str = "") -> list[JSON]:
        """Returns the objects of a kind. An empty ``namespace`` means all namespaces; ``api_version`` as in :meth:`get`."""
        resource = resource_of(_type(kind, api_version))
        items: list[JSON] = (await self.cluster.client.list(resource, namespace))["items"]
        return items

    async def delete(self, kind: str, name: str, namespace: str = "default", *, api_version: str = "") -> None:
        """Requests the deletion of an object. A missing object is not an error. ``api_version`` as in :meth:`get`."""
        resource = resource_of(_type(kind, api_version))
        with contextlib.suppress(NotFoundError):
            await self.cluster.client.delete(resource, name, namespace if resource.namespaced else "")

    async def remove(self, kind: str, name: str, namespace: str = "default", *, api_version: str = "") -> None:
        """Deletes an object at once: without a grace period, and with its finalizers removed.

        ``api_version`` as in :meth:`get`.
        """
        resource = resource_of(_type(kind, api_version))
        namespace = namespace if resource.namespaced else ""
        with contextlib.suppress(NotFoundError):
            found = await self.cluster.client.delete(resource, name, namespace, grace=0)
            if (found.get("metadata") or {}).get("finalizers"):
                await self.cluster.client.patch(resource, name, {"metadata": {"finalizers": None}}, namespace)

    async def slices(self, driver: str = "") -> list[JSON]:
        """Returns the ResourceSlices of one driver, or of all drivers if ``driver`` is empty."""
        return [s for s in await self.get_all("ResourceSlice") if not driver or s["spec"]["driver"] == driver]

    async def published(self, driver: str, pool: str = "", *, timeout: float = TIMEOUT) -> Published:
        """Returns the pools that a driver publishes, with their devices by name.

        Waits until all slices of each pool are written.

        Args:
            pool: return this pool only; the default pool of a node has the node's name.

        Raises :class:`PublishedError` if a pool is still incomplete after ``timeout`` seconds.
        """
        __tracebackhide__ = True
        return await self.wait_published(driver, lambda _: True, pool, timeout=timeout)

    async def events(self, name: str = "", namespace: str = "") -> list[Event]:
        """Returns the events about the object ``name``, or all events; repeats are merged, oldest first."""
        found = await self.get_all("Event", namespace)
        return merge_events(e for e in found if not name or e["involvedObject"].get("name") == name)

    # --- waiting ----------------------------------------------------------------------------------

    async def wait(self, what: str, check: Callable[[], Awaitable[T | None]], timeout: float = TIMEOUT) -> T:
        """Calls ``await check()`` until it returns a true value, and returns that value.

        Args:
            what: the noun phrase for the error: "waited 60 s for {what}".

        Raises ``TimeoutError`` after ``timeout`` seconds.
        """
        __tracebackhide__ = True
        return await wait_until(what, check, timeout, _LONGEST_PAUSE)

    async def wait_published(
        self, driver: str, wanted: Wanted, pool: str = "", *, timeout: float = TIMEOUT
    ) -> Published:
        """Waits until a driver publishes complete pools that match ``wanted``, and returns them.

        Args:
            wanted: the names of all devices, in any order; or a function of :class:`Published` that returns a
                true value on a match. A ``LookupError`` that the function raises counts as "not published yet".
            pool: compare only this pool.

        Raises :class:`PublishedError` with the devices that are published instead.
        """
        __tracebackhide__ = True
        now, why = Published({}), ""

        async def check_once() -> bool:
            nonlocal now, why
            now, incomplete = pools_of(await self.slices(driver), pool)
            why = incomplete or differs(now, wanted)
            return not why

        try:
            await self.wait(f"the expected devices of {driver}", check_once, timeout)
        except TimeoutError as e:
            hint = "" if now else did_you_mean(driver, {s["spec"]["driver"] for s in await self.slices()} - {driver})
            raise PublishedError(f"{e}{hint}: {why}", now) from None
        return now

    async def wait_event(self, name: str, text: str, timeout: float = TIMEOUT) -> Event:
        """Returns the first event about ``name`` whose reason or message contains ``text``.

        Raises :class:`PodError` with the existing events after ``timeout`` seconds.
        """
        __tracebackhide__ = True

        async def find_event() -> Event | None:
            return next((e for e in await self.events(name) if text in e.message or text in e.reason), None)

        try:
            return await self.wait(f"an event with {text!r} about {name}", find_event, timeout)
        except TimeoutError as e:
            raise PodError(str(e), await self.events(name)) from None

    async def wait_running(
        self,
        name: str,
        namespace: str = "default",
        *,
        timeout: float = TIMEOUT,
        progress_timeout: float = PROGRESS_TIMEOUT,
    ) -> JSON:
        """Waits until the pod runs or has succeeded, and returns it.

        Raises :class:`PodError` with the pod's events:

        - at once if the pod failed, does not exist, or the driver rejects its claim permanently;
        - after ``progress_timeout`` seconds without a change if the pod is unschedulable, the driver raises the same error each time, or
          the host lacks a path;
        - after ``timeout`` seconds in any case, also if the fault may pass: a ``RetryableError``, or shared state that another claim uses.
        """
        __tracebackhide__ = True
        loop = asyncio.get_running_loop()
        waits, waited, last_check, seen = "", 0.0, loop.time(), False

        async def check_once() -> JSON | None:
            __tracebackhide__ = True
            nonlocal waits, waited, last_check, seen
            waited, last_check = waited + min(loop.time() - last_check, _MAX_COUNTED), loop.time()
            pod = await self.get("Pod", name, namespace)
            if pod is not None and has_run(pod):
                return pod
            if pod is None and not seen:
                known = [p["metadata"]["name"] for p in await self.get_all("Pod", namespace)]
                raise PodError(f"there is no pod {name} in namespace {namespace}{did_you_mean(name, known)}", [])
            seen = True
            events = await self._events_of(pod, name, namespace)
            if why := permanent_failure(name, pod, events):
                raise PodError(why, events)
            assert pod
            failed = prepare_failure(events)
            now = failed or unschedulable_reason(pod, events)
            if now != waits or (now and not failed and await self._can_progress(pod)):
                waits, waited = now, 0.0
            if waits and waited > progress_timeout:
                if failed:
                    raise PodError(f"pod {name} does not start: {failed}", events)
                why = f"pod {name} is unschedulable, and nothing has changed for {progress_timeout:g} s"
                raise PodError(f"{why}{await self._no_class(events) or last_warning(events)}", events)
            return None

        try:
            return await self.wait(f"pod {name} to run", check_once, timeout)
        except TimeoutError as e:
            events = await self._events_of(None, name, namespace)
            raise PodError(f"{e}{last_warning(events)}", events) from None

    async def wait_finished(self, name: str, namespace: str = "default", *, timeout: float = TIMEOUT) -> JSON:
        """Waits until all containers of the pod have succeeded, and returns the pod.

        Raises :class:`PodError` as :meth:`wait_running`.
        """
        __tracebackhide__ = True
        pod = await self.wait_running(name, namespace, timeout=timeout)

        async def finished() -> JSON | None:
            __tracebackhide__ = True
            found = await self.get("Pod", name, namespace)
            events = await self._events_of(pod, name, namespace)
            if why := permanent_failure(name, found, events):
                raise PodError(why, events)
            return found if found and found["status"]["phase"] == "Succeeded" else None

        try:
            return await self.wait(f"pod {name} to finish", finished, timeout)
        except TimeoutError as e:
            raise PodError(str(e), await self._events_of(pod, name, namespace)) from None

    async def delete_pod(self, name: str, namespace: str = "default", *, timeout: float = TIMEOUT) -> None:
        """Deletes a pod and waits until it is gone.

        Raises :class:`PodError` if it still exists after ``timeout`` seconds.
        """
        __tracebackhide__ = True
        await self.delete("Pod", name, namespace)

        async def gone() -> bool:
            return await self.get("Pod", name, namespace) is None

        try:
            await self.wait(f"pod {name} to be deleted", gone, timeout)
        except TimeoutError as e:
            raise PodError(str(e), await self._events_of(None, name, namespace)) from None

    async def _events_of(self, pod: JSON | None, name: str, namespace: str) -> list[Event]:
        """Returns the events of this pod, but not of an earlier pod with the same name. If ``pod`` is None, returns both."""
        found = [e for e in await self.get_all("Event", namespace) if e["involvedObject"].get("name") == name]
        uid = pod["metadata"]["uid"] if pod else None
        return merge_events(e for e in found if uid is None or e["involvedObject"].get("uid") == uid)

    async def _no_class(self, events: Sequence[Event]) -> str:
        """Returns a text for the end of an error, with the missing DeviceClass and the most similar existing one, or ""."""
        found = next((m for e in events if (m := _NO_CLASS.search(e.message))), None)
        if found is None:
            return ""
        return (
            f": {found[0]}{did_you_mean(found[1], [c['metadata']['name'] for c in await self.get_all('DeviceClass')])}"
        )

    async def _can_progress(self, pod: JSON) -> bool:
        """Whether a pending pod can still progress: a claim is reserved for it, or any pod or claim is being deleted."""
        pods, claims = await self.get_all("Pod"), await self.get_all("ResourceClaim")
        if any(o["metadata"].get("deletionTimestamp") for o in (*pods, *claims)):
            return True
        consumers = [r for c in claims for r in (c.get("status") or {}).get("reservedFor") or []]
        return any(r["uid"] == pod["metadata"]["uid"] for r in consumers)

    # --- faults -----------------------------------------------------------------------------------

    def conflict(self, times: int = 1) -> None:
        """Makes the server reject the next ``times`` updates with 409, as if another client had changed the object."""
        __tracebackhide__ = True
        self._local_cluster("conflict").api.injected_faults.conflicts = _amount("conflict", times)

    def throttle(self, times: int = 1) -> None:
        """Makes the server reject the next ``times`` requests with 429 and a Retry-After header."""
        __tracebackhide__ = True
        self._local_cluster("throttle").api.injected_faults.throttle = _amount("throttle", times)

    def drop(self, *fields: str) -> None:
        """Makes the server drop these fields of slices (``taints``, ``sharedCounters``), as with a disabled gate.

        A call without arguments ends this.

        Raises :class:`FaultError` for an unknown field.
        """
        __tracebackhide__ = True
        with _fault_errors():
            self._local_cluster("drop").api.injected_faults.drop(fields)

    def serve(self, *versions: str) -> None:
        """Makes the server serve only these versions of ``resource.k8s.io``, as a different Kubernetes release does.

        No argument restores all versions.

        Raises :class:`FaultError` for an unknown version.
        """
        __tracebackhide__ = True
        with _fault_errors():
            self._local_cluster("serve").api.injected_faults.serve(versions)

    def delay(self, seconds: float) -> None:
        """Makes the server wait ``seconds`` before each response. 0 ends this."""
        __tracebackhide__ = True
        self._local_cluster("delay").api.injected_faults.delay = _amount("delay", seconds)

    def cut_watch(self) -> None:
        """Ends every open watch, as a proxy with a time limit does."""
        __tracebackhide__ = True
        self._local_cluster("cut_watch").api.storage.cut_watches()

    @contextlib.asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """Makes the server respond with 503 to every request inside the block, also to requests of the cluster's components."""
        with self._local_cluster("outage").api_outage():
            yield

    def _local_cluster(self, fault: str) -> LocalCluster:
        __tracebackhide__ = True
        if not self.cluster.has_own_api:
            raise FaultError(f"{fault}() works only with the local API server: unset KUBEBUILDER_ASSETS for this test")
        return self.cluster


@contextlib.contextmanager
def _fault_errors() -> Iterator[None]:
    __tracebackhide__ = True
    try:
        yield
    except ValueError as e:
        raise FaultError(str(e)) from None


def _amount(fault: str, value: N) -> N:
    __tracebackhide__ = True
    if not 0 <= value < math.inf:
        raise FaultError(f"{fault}({value}): the value must be finite and at least 0")
    return value


async def remove_all(api: AsyncApi, kind: str, api_version: str, *, kept_namespaces: str | None = None) -> None:
    """Removes all objects of a kind. Does nothing if the server does not serve this version of the kind.

    Args:
        kept_namespaces: objects in namespaces with this prefix stay; None keeps none.
    """
    with contextlib.suppress(NotFoundError):
        for obj in await api.get_all(kind, api_version=api_version):
            name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
            if kept_namespaces is None or not namespace.startswith(kept_namespaces):
                await api.remove(kind, name, namespace, api_version=api_version)


def _type(kind: str, api_version: str) -> JSON:
    return {"apiVersion": api_version or version_of(kind), "kind": kind}


def version_of(kind: str) -> str:
    """Returns the ``apiVersion`` of a kind of the core or of ``resource.k8s.io``.

    Raises ``ValueError`` for any other kind.
    """
    if kind in _CORE:
        return "v1"
    if kind in _DRA:
        return f"{GROUP}/v1"
    raise ValueError(f"{kind}: set api_version, e.g. apps/v1")
