"""Runs the exec plugin of a kubeconfig, which returns a token or a client certificate.

Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ApiError, describe, printable

_TIMEOUT = 120.0  # seconds until a plugin is killed: a user may have to log in with a browser


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


@dataclass(frozen=True)
class ExecPlugin:
    """The plugin of one user.

    Attributes:
        folder: the folder of the kubeconfig; a relative path of the command starts there.
        cluster: the cluster as plugins get it, if their field ``provideClusterInfo`` is true.
    """

    config: ExecConfig
    folder: Path
    cluster: dict[str, Any]

    @property
    def shown(self) -> str:
        return f"exec plugin {printable(self.config.command)!r}"

    def run(self) -> ProvidedCredentials:
        """Blocks until the plugin has ended. It may print to standard error. Raises :class:`ApiError`."""
        config, spec = self.config, dict[str, Any](interactive=False)
        if config.provide_cluster_info:
            spec["cluster"] = self.cluster
        info = {"apiVersion": config.api_version, "kind": "ExecCredential", "spec": spec}
        environment = os.environ | {v.name: v.value for v in config.env or ()}
        environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
        program = str(self.folder / config.command) if "/" in config.command else config.command
        try:
            process = subprocess.run(  # noqa: S603 - the user's own plugin
                [program, *(config.args or ())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self._error(f"it was killed after {_TIMEOUT:g}s") from None
        except (OSError, ValueError) as e:
            hint = f": {printable(config.install_hint)}" if config.install_hint else ""
            raise self._error(f"{describe(e)}{hint}") from None
        if process.returncode:
            raise self._error(f"it ended with code {process.returncode}; its own messages are on standard error")
        try:
            found = msgspec.json.decode(process.stdout, type=_Result).status
        except ValueError as e:
            raise self._error(f"its output is not an ExecCredential: {printable(e)}") from None
        if not found.token and not (found.client_certificate_data and found.client_key_data):
            raise self._error("its output has neither a token nor a client certificate with its key")
        return found

    def _error(self, cause: str) -> ApiError:
        return ApiError(f"{self.shown} returned no credentials: {cause}")
