"""The exec plugin of a kubeconfig: a program that returns a token or a client certificate.

Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ApiError, describe, printable
from .credentials import Credentials, bearer
from .tls import Tls

log = logging.getLogger(__name__)
# Credentials are renewed this number of seconds before they expire, but not before half of their lifetime.
_EXPIRY_MARGIN = 300.0
_NO_EXPIRY = datetime.min.replace(tzinfo=UTC)  # the zero time of Go, which client-go takes as no expiry


class _Variable(msgspec.Struct):
    name: str
    value: str = ""


class ExecConfig(msgspec.Struct, rename="camel"):
    """The field ``exec`` of a user. Source: k8s.io/client-go/tools/clientcmd/api/v1 ``ExecConfig``."""

    command: str = ""
    api_version: str = ""
    args: list[str] | None = None
    env: list[_Variable] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False


class ProvidedCredentials(msgspec.Struct, rename="camel"):
    """What a plugin returned: a token, or a client certificate with its key, in PEM."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _Result(msgspec.Struct):
    status: ProvidedCredentials


class ExecCredentials(Credentials):
    """Runs the plugin at the first request, after a 401, and before its credentials expire. Callers share one run.

    Credentials that expire soon are still valid, so a request does not wait for new ones.

    Args:
        config: the program.
        folder: the folder of the kubeconfig; a relative path of the program starts there.
        cluster: the cluster as plugins get it, if their field ``provideClusterInfo`` is true.
        tls: gets the client certificate that the plugin returns.
        where: names the kubeconfig in messages.

    Attributes:
        wait: seconds that a request waits for the plugin, which continues for the next request.
        interval: minimum seconds between two runs, also if the server returns 401 more often.
        timeout: seconds until the plugin is killed: a user may have to log in with a browser.
    """

    def __init__(self, config: ExecConfig, folder: Path, cluster: dict[str, Any], tls: Tls, where: str) -> None:
        super().__init__()
        self.wait, self.interval, self.timeout = 8.0, 5.0, 120.0
        self._config = config
        self._folder = folder
        self._cluster = cluster
        self._tls, self._files = tls, tls.files
        self._where = f"{where}: exec plugin {printable(config.command)!r}"
        self._run: asyncio.Task[None] | None = None
        self._started = -math.inf
        self._renew_at = -math.inf  # in seconds since 1970
        self._is_valid = False
        self._fault = ""  # of the last run

    async def header(self) -> str:
        is_due = not self._is_valid or self._renew_at <= time.time()
        if is_due and (self._run is None or self._run.done()) and time.monotonic() - self._started >= self.interval:
            self._started = time.monotonic()
            self._run = asyncio.create_task(self._renew(), name="exec plugin")
        if not self._is_valid and self._run:
            if not (await asyncio.wait({self._run}, timeout=self.wait))[0]:
                raise ApiError(f"{self._where} takes longer than {self.wait:g}s")
            if self._fault:
                raise ApiError(self._fault)
        return self._value

    def rejected(self) -> None:
        self._is_valid = False

    async def close(self) -> None:
        """Kills a running plugin."""
        if self._run:
            self._run.cancel()
            await asyncio.wait({self._run})
            # A killed run has no result, so the next request must not wait for the interval.
            self._run, self._started = None, -math.inf

    async def _renew(self) -> None:
        try:
            found = msgspec.json.decode(await self._output(), type=_Result).status
            cert, key = found.client_certificate_data, found.client_key_data
            if not found.token and not (cert and key):
                raise ValueError("its output has neither a token nor a client certificate with its key")
            value = bearer(found.token) if found.token else ""
        except (ValueError, RecursionError) as e:
            cause = "its output is not an ExecCredential: " if isinstance(e, msgspec.DecodeError) else ""
            self._fault = f"{self._where} returned no credentials: {cause}{printable(e)}"
            if self._value:
                log.warning("cannot renew the credentials: %s", self._fault)
            return
        self._value, self._is_valid, self._fault = value, True, ""
        stamp = found.expiration_timestamp
        expires = math.inf if stamp in (None, _NO_EXPIRY) else stamp.timestamp()
        # With credentials that live shorter than the margin, each request would otherwise run the plugin.
        self._renew_at = expires - min(_EXPIRY_MARGIN, max(0.0, expires - time.time()) / 2)
        if cert and key:
            self._tls.use(msgspec.structs.replace(self._files, cert=cert.encode(), key=key.encode()))

    async def _output(self) -> bytes:
        """Runs the plugin and returns its output. It may print to standard error. Raises ``ValueError`` with the cause."""
        config, spec = self._config, dict[str, Any](interactive=False)
        if config.provide_cluster_info:
            spec["cluster"] = self._cluster
        info = {"apiVersion": config.api_version, "kind": "ExecCredential", "spec": spec}
        environment = os.environ | {v.name: v.value for v in config.env or ()}
        environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
        program = str(self._folder / config.command) if "/" in config.command else config.command
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *(config.args or ()),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
        except OSError as e:
            hint = f": {config.install_hint}" if config.install_hint else ""
            raise ValueError(f"{describe(e)}{hint}") from None
        try:
            async with asyncio.timeout(self.timeout):
                output, _ = await process.communicate()
        except TimeoutError:
            raise ValueError(f"it was killed after {self.timeout:g}s") from None
        finally:  # also if the process of this package ends
            if process.returncode is None:
                process.kill()
        if process.returncode:
            raise ValueError(f"it ended with code {process.returncode}; its own messages are on standard error")
        return output
