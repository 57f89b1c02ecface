"""Runs the exec plugin of a kubeconfig, which returns a token or a client certificate.

Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

from __future__ import annotations

import os
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ApiError, describe, printable


class _Variable(msgspec.Struct):
    name: str
    value: str = ""


class ExecConfig(msgspec.Struct, rename="camel"):
    """The field ``exec`` of a user. Source: k8s.io/client-go/tools/clientcmd/api/v1 ``ExecConfig``."""

    command: str
    api_version: str
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


class ExecPlugin:
    """The plugin of one user.

    Args:
        folder: the folder of the kubeconfig; a relative path of the command starts there.
        cluster: the cluster as plugins get it, if their field ``provideClusterInfo`` is true.
    """

    def __init__(self, config: ExecConfig, folder: Path, cluster: dict[str, Any]) -> None:
        self.shown = f"exec plugin {printable(config.command)!r}"
        self._config = config
        self._program = str(folder / config.command) if "/" in config.command else config.command
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> ProvidedCredentials:
        """Blocks until the plugin has ended. It may print to standard error. Raises :class:`ApiError`."""
        config = self._config
        spec: dict[str, Any] = {"interactive": False}
        if config.provide_cluster_info:
            spec["cluster"] = self._cluster
        info = {"apiVersion": config.api_version, "kind": "ExecCredential", "spec": spec}
        environment = os.environ | {v.name: v.value for v in config.env or ()}
        environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own plugin
                [self._program, *(config.args or ())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
        except (OSError, ValueError) as e:
            hint = f": {printable(config.install_hint)}" if config.install_hint else ""
            raise self._error(f"{describe(e)}{hint}") from None
        self._process = process
        with process:
            output, _ = process.communicate()
        if process.returncode:
            raise self._error(f"it ended with code {process.returncode}; its own messages are on standard error")
        try:
            found = msgspec.json.decode(output, type=_Result).status
        except ValueError as e:
            raise self._error(f"its output is not an ExecCredential: {printable(e)}") from None
        if not found.token and not (found.client_certificate_data and found.client_key_data):
            raise self._error("its output has neither a token nor a client certificate with its key")
        return found

    def kill(self) -> None:
        """Kills the plugin, so that :meth:`run` raises."""
        if self._process is not None:
            self._process.kill()

    def _error(self, cause: str) -> ApiError:
        return ApiError(f"{self.shown} returned no credentials: {cause}")
