"""The kubelet's side of the gRPC services: finds registration sockets, and calls the driver like a kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from dra_devkit.localcluster.kubelet.plugins import dial
from dra_kubeletplugin._proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
)
from dra_kubeletplugin._proto import registration_v1_pb2 as registration_pb
from dra_kubeletplugin._proto import registration_v1_pb2_grpc as registration_grpc
from dra_kubeletplugin.errors import clip

from .transcript import Transcript

T = TypeVar("T")
Claim = Mapping[str, Any]
DRA_VERSIONS: Mapping[str, tuple[Any, Any]] = {
    "v1.DRAPlugin": (dra_v1_pb2, dra_v1_pb2_grpc),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}
HEALTH_VERSIONS: Mapping[str, tuple[Any, Any]] = {
    "v1.DRAResourceHealth": (health_v1_pb2, health_v1_pb2_grpc),
    "v1alpha1.DRAResourceHealth": (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc),
}
CALL_TIMEOUT = 45.0  # seconds, as in the kubelet
GET_INFO_TIMEOUT = 1.0  # seconds, as in the kubelet
_LONG_TIMEOUT = 5.0  # seconds
_UNSERVED = {
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
}
_NOTIFY_TIMEOUT = 5.0  # seconds, as in the kubelet
_ERROR = 120  # maximum bytes of a claim's error in a line of the transcript


@dataclass(frozen=True)
class RegistrationInfo:
    """The response of a registration socket."""

    socket: Path
    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]

    @property
    def content(self) -> tuple[str, str, str, list[str]]:
        """The response with sorted versions, because their order has no meaning for a kubelet."""
        return self.type, self.name, self.endpoint, sorted(self.versions)


@dataclass(frozen=True)
class DeviceResponse:
    """One prepared device."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi: tuple[str, ...]
    share: str = ""


@dataclass(frozen=True)
class ClaimResponse:
    """The entry of a response for one claim. ``error`` is empty after success. ``missing`` is True if there is no entry."""

    error: str
    devices: tuple[DeviceResponse, ...] = ()
    missing: bool = False

    @property
    def cdi_ids(self) -> list[str]:
        return sorted({name for d in self.devices for name in d.cdi})

    @property
    def content(self) -> list[DeviceResponse]:
        """The devices with their requests and CDI ids, all sorted, so that responses can be compared."""
        found = [replace(d, requests=tuple(sorted(d.requests)), cdi=tuple(sorted(d.cdi))) for d in self.devices]
        return sorted(found, key=lambda d: (d.pool, d.device, d.share, d.requests, d.cdi))


@dataclass(frozen=True)
class CallResponse:
    """The response to a call.

    Args:
        error: the gRPC error, or the reason why a kubelet rejects the whole response; empty if there is neither.
        code: the code of the gRPC error.
    """

    error: str
    claims: Mapping[str, ClaimResponse]
    seconds: float = 0.0
    code: grpc.StatusCode = grpc.StatusCode.OK

    @property
    def unserved(self) -> str:
        """The gRPC error if the driver does not serve the method; else empty.

        A method that is served may return an error for a call without claims.
        """
        return self.error if self.code in _UNSERVED else ""

    def of(self, claim: Mapping[str, Any]) -> ClaimResponse:
        """Returns the entry for a claim. If the call failed, the entry has the error of the call."""
        if self.error:
            return ClaimResponse(self.error)
        return self.claims.get(claim["metadata"]["uid"]) or ClaimResponse(
            "the response has no entry for the claim", missing=True
        )


def find_sockets(registry: Path, *, hidden: bool = False) -> list[Path]:
    """Returns the sorted paths of the sockets in the kubelet's plugin registry.

    Args:
        hidden: False for the sockets that the kubelet finds; True for the sockets that it ignores, because their names begin with a dot.
    """
    found = []
    with contextlib.suppress(OSError):
        for path in registry.rglob("*"):
            with contextlib.suppress(OSError):
                if path.name.startswith(".") is hidden and stat.S_ISSOCK(path.lstat().st_mode):
                    found.append(path)
    return sorted(found)


def listens(path: Path) -> bool:
    """Returns whether a process listens at a Unix socket."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


class RegistrationClient:
    """Calls registration sockets."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript

    async def get_info(self, path: Path, timeout: float = _LONG_TIMEOUT) -> RegistrationInfo:
        """Calls GetInfo. Raises ``grpc.aio.AioRpcError``.

        Args:
            timeout: seconds. The default is longer than the kubelet's timeout, so that only REG-002 fails if a response is slow.
        """
        began = time.monotonic()
        async with dial(path) as channel:
            stub = registration_grpc.RegistrationStub(channel)
            try:
                found = await stub.GetInfo(registration_pb.InfoRequest(), timeout=timeout)
            except grpc.aio.AioRpcError as e:
                self._transcript.add("gRPC", f"GetInfo {path.name} -> {e.code().name}", "", e.details() or "")
                raise
        took = time.monotonic() - began
        self._transcript.add("gRPC", f"GetInfo {path.name} ({took * 1000:.0f} ms)", "", found)
        versions = tuple(found.supported_versions)
        endpoint = found.endpoint or str(path)  # as the kubelet does
        return RegistrationInfo(path, found.type, found.name, endpoint, versions)

    async def notify(self, path: Path, *, registered: bool, error: str = "") -> None:
        """Calls NotifyRegistrationStatus. Raises ``grpc.aio.AioRpcError``."""
        request = registration_pb.RegistrationStatus(plugin_registered=registered, error=error)
        async with dial(path) as channel:
            self._transcript.add("gRPC", f"NotifyRegistrationStatus {path.name}", request)
            await registration_grpc.RegistrationStub(channel).NotifyRegistrationStatus(request, timeout=_NOTIFY_TIMEOUT)


class PluginConnection:
    """A connection to the DRA endpoint of one instance.

    Args:
        endpoint: the socket on this machine. For a driver in a mount namespace, this differs from the registered path.
        used: gets the claims of each prepare by UID, so that they can be unprepared later.
    """

    def __init__(
        self,
        info: RegistrationInfo,
        endpoint: Path,
        transcript: Transcript,
        used: dict[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.info = info
        self.endpoint = endpoint
        self._transcript = transcript
        self._used = {} if used is None else used
        self.channel = dial(endpoint)

    @property
    def version(self) -> str:
        """The newest version that both the driver and current kubelets support; v1 if there is none."""
        return next((v for v in DRA_VERSIONS if v in self.info.versions), "v1.DRAPlugin")

    async def close(self) -> None:
        await self.channel.close()

    async def prepare(self, *claims: Claim, timeout: float = CALL_TIMEOUT, version: str = "") -> CallResponse:
        self._used.update({c["metadata"]["uid"]: c for c in claims})
        return await self._call("NodePrepareResources", claims, timeout, version)

    async def unprepare(self, *claims: Claim, timeout: float = CALL_TIMEOUT, version: str = "") -> CallResponse:
        return await self._call("NodeUnprepareResources", claims, timeout, version)

    async def _call(self, method: str, claims: Sequence[Claim], timeout: float, version: str) -> CallResponse:
        pb, pb_grpc = DRA_VERSIONS[version or self.version]
        entries = [c["metadata"] for c in claims]
        wanted = [pb.Claim(namespace=m["namespace"], name=m["name"], uid=m["uid"]) for m in entries]
        request = getattr(pb, f"{method}Request")(claims=wanted)
        names = ", ".join(m["name"] for m in entries) or "no claims"
        began = time.monotonic()
        try:
            found = await getattr(pb_grpc.DRAPluginStub(self.channel), method)(request, timeout=timeout)
        except grpc.aio.AioRpcError as e:
            error = f"gRPC error {e.code().name}: {e.details()}"
            self._transcript.add("gRPC", f"{method} ({names}) -> {e.code().name}", request, e.details() or "")
            return CallResponse(error, {}, time.monotonic() - began, e.code())
        took = time.monotonic() - began
        error = ""
        if unknown := set(found.claims) - {m["uid"] for m in entries}:
            error = f"the response has the key {min(unknown)!r}, which is the UID of no claim in the request"
        response = CallResponse(error, {uid: _claim(entry) for uid, entry in found.claims.items()}, took)
        result = call_result(response, claims)
        self._transcript.add("gRPC", f"{method} ({names}) -> {result} ({took * 1000:.0f} ms)", request, found)
        return response

    async def health(self, version: str) -> AsyncGenerator[Mapping[tuple[str, str], Any], None]:
        """Opens the health stream. Yields the reports of each message, by pool and device. Raises ``grpc.aio.AioRpcError``."""
        pb, pb_grpc = HEALTH_VERSIONS[version]
        self._transcript.add("gRPC", f"{version} NodeWatchResources opened")
        stub = pb_grpc.DRAResourceHealthStub(self.channel)
        call = stub.NodeWatchResources(pb.NodeWatchResourcesRequest())
        try:
            async for message in call:
                self._transcript.add("gRPC", f"{version} NodeWatchResources message", "", message)
                yield {(d.device.pool_name, d.device.device_name): d for d in message.devices}
        finally:
            call.cancel()


def call_result(response: CallResponse, claims: Sequence[Mapping[str, Any]]) -> str:
    """Returns the result of a call for the transcript: ok, or the first error of a claim."""
    errors = [f"{c['metadata']['name']}: {error}" for c in claims if (error := response.of(c).error)]
    if not errors:
        return "ok"
    return f"error for {clip(' '.join(errors[0].split()), _ERROR)}"


def _claim(entry: Any) -> ClaimResponse:
    devices = []
    for d in getattr(entry, "devices", ()):  # an unprepare response has none, and v1beta1 has no share
        names, ids, share = tuple(d.request_names), tuple(d.cdi_device_ids), getattr(d, "share_id", "")
        devices.append(DeviceResponse(names, d.pool_name, d.device_name, ids, share))
    return ClaimResponse(entry.error, tuple(devices))


async def first_message(stream: AsyncGenerator[T, None], timeout: float) -> T | None:
    """Returns the first message of a health stream and closes the stream; None after ``timeout`` seconds."""
    async with contextlib.aclosing(stream):
        try:
            async with asyncio.timeout(timeout):
                return await anext(stream)
        except (TimeoutError, StopAsyncIteration):
            return None
