"""Where the API server is and how to prove who we are: a pod's service account, or a kubeconfig."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import SettingsError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_AGE = 60.0  # seconds after which a token file is read again: they rotate


class Credentials:
    """Gives the value of the Authorization header; empty for none."""

    async def header(self) -> str:
        return ""

    def rejected(self) -> None:
        """The server answered 401: what is cached is stale."""


class TokenFile(Credentials):
    """A bearer token in a file that is replaced while we run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._token, self._read = "", -_TOKEN_AGE

    async def header(self) -> str:
        if time.monotonic() - self._read >= _TOKEN_AGE:
            self._token, self._read = self.path.read_text().strip(), time.monotonic()
        return f"Bearer {self._token}"

    def rejected(self) -> None:
        self._read = -_TOKEN_AGE


class StaticHeader(Credentials):
    def __init__(self, value: str) -> None:
        self.value = value

    async def header(self) -> str:
        return self.value


class ExecPlugin(Credentials):
    """A command that prints an ExecCredential (client.authentication.k8s.io), run again when its token expires."""

    def __init__(self, spec: Mapping[str, Any], cluster: Mapping[str, Any]) -> None:
        self.spec = spec
        self.cluster = cluster
        self._token, self._expires = "", 0.0
        self._lock = asyncio.Lock()

    async def header(self) -> str:
        async with self._lock:
            if not self._token or time.time() > self._expires - 10:
                await self._run()
        return f"Bearer {self._token}"

    def rejected(self) -> None:
        self._token = ""

    async def _run(self) -> None:
        environment = dict(os.environ)
        environment |= {e["name"]: e["value"] for e in self.spec.get("env") or []}
        api = self.spec.get("apiVersion", "client.authentication.k8s.io/v1")
        info: dict[str, Any] = {"apiVersion": api, "kind": "ExecCredential", "spec": {"interactive": False}}
        if self.spec.get("provideClusterInfo"):
            info["spec"]["cluster"] = dict(self.cluster)
        environment["KUBERNETES_EXEC_INFO"] = json.dumps(info)
        command = [self.spec["command"], *(self.spec.get("args") or [])]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        try:
            status = json.loads(out)["status"]
            self._token = status["token"]
        except (ValueError, KeyError):
            shown = err.decode(errors="replace").strip()[-200:]
            raise SettingsError(f"{command[0]} gave no credential (exit {process.returncode}): {shown}") from None
        stamp = status.get("expirationTimestamp")
        self._expires = datetime.fromisoformat(stamp).timestamp() if stamp else float("inf")


@dataclass(frozen=True)
class ApiConfig:
    """An API server. ``server`` is a URL; ``tls`` is None for plain HTTP."""

    server: str
    tls: ssl.SSLContext | None = None
    credentials: Credentials = field(default_factory=Credentials)
    namespace: str = "default"


def load_config(kubeconfig: str = "", context: str = "") -> ApiConfig:
    """From a kubeconfig where one is named, else from the pod's service account.

    Raises :class:`SettingsError` with what is missing and how to give it.
    """
    return _from_kubeconfig(Path(kubeconfig), context) if kubeconfig else _in_cluster()


def _in_cluster() -> ApiConfig:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (SERVICE_ACCOUNT / "token").is_file():
        raise SettingsError(
            "no API server: not in a pod (no KUBERNETES_SERVICE_HOST, or no service account token), and neither "
            "--kubeconfig nor KUBECONFIG is set"
        )
    tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
    shown = f"[{host}]" if ":" in host else host
    return ApiConfig(f"https://{shown}:{port}", tls, TokenFile(SERVICE_ACCOUNT / "token"))


def _from_kubeconfig(path: Path, context: str) -> ApiConfig:
    where = f"--kubeconfig (KUBECONFIG) {path}"
    try:
        config = _read(path) or {}
    except (OSError, ValueError) as e:
        raise SettingsError(f"{where} cannot be read: {e}") from None
    name = context or config.get("current-context", "")
    ctx = _named(config, "contexts", name, "context", where)
    cluster = _named(config, "clusters", ctx.get("cluster", ""), "cluster", where)
    user = _named(config, "users", ctx["user"], "user", where) if ctx.get("user") else {}
    server = cluster.get("server", "")
    tls = _tls(cluster, user, path.parent) if server.startswith("https:") else None
    return ApiConfig(server.rstrip("/"), tls, _credentials(user, cluster, path.parent), ctx.get("namespace", "default"))


def _read(path: Path) -> Any:
    """YAML, or JSON, which costs no 3 MiB of parser.

    Raises ``OSError`` or ``ValueError``.
    """
    text = path.read_text()
    if text.lstrip().startswith("{"):
        return json.loads(text)
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise ValueError(str(e)) from None


def _named(config: Mapping[str, Any], group: str, name: str, kind: str, where: str) -> dict[str, Any]:
    for entry in config.get(group) or []:
        if entry.get("name") == name:
            return dict(entry.get(kind) or {})
    raise SettingsError(f"{where} has no {kind} {name!r} in {group}")


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], base: Path) -> ssl.SSLContext:
    ca, ca_file = cluster.get("certificate-authority-data"), cluster.get("certificate-authority")
    tls = ssl.create_default_context(
        cafile=str(base / ca_file) if ca_file and not ca else None,
        cadata=base64.b64decode(ca).decode() if ca else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    _client_certificate(tls, user, base)
    return tls


def _client_certificate(tls: ssl.SSLContext, user: Mapping[str, Any], base: Path) -> None:
    cert, key = user.get("client-certificate"), user.get("client-key")
    if cert and key:
        tls.load_cert_chain(base / cert, base / key)
        return
    cert, key = user.get("client-certificate-data"), user.get("client-key-data")
    if not (cert and key):
        return
    import tempfile

    # The ssl module reads certificates from files only; this one lives as long as the call.
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, data in (("cert", cert), ("key", key)):
            file = Path(folder) / name
            file.touch(mode=0o600)
            file.write_bytes(base64.b64decode(data))
            paths.append(str(file))
        tls.load_cert_chain(paths[0], paths[1])


def _credentials(user: Mapping[str, Any], cluster: Mapping[str, Any], base: Path) -> Credentials:
    if user.get("exec"):
        return ExecPlugin(
            user["exec"], {k: v for k, v in cluster.items() if k in {"server", "certificate-authority-data"}}
        )
    if user.get("tokenFile"):
        return TokenFile(base / user["tokenFile"])
    if user.get("token"):
        return StaticHeader(f"Bearer {user['token']}")
    if user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}".encode()
        return StaticHeader(f"Basic {base64.b64encode(pair).decode()}")
    return Credentials()
