"""Gets credentials from an exec plugin or auth provider with the official client, in a child process that ends afterwards.

Importing the official client takes half a second and 22 MiB, which a process never releases. So the plugin runs this module as a child
process: ``run`` in the parent, ``main`` in the child. Only this module imports the official client.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from ..base.files import read_file
from ..errors import ApiError, SettingsError, describe, printable

# The child imports the package from the same folder as its parent. PYTHONPATH would also reach the exec plugin and could break it.
_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from dra_kubeletplugin.kube.credential_process import main; main()"


class ProvidedCredentials(msgspec.Struct):
    """The child's result.

    Attributes:
        header: value of the Authorization header; empty for a client certificate.
        cert: client certificate in PEM, with ``key``; empty for a token.
        expires: when the credentials expire, in seconds since 1970; None if that is not known.
        fault: why there are no credentials.
    """

    header: str = ""
    cert: bytes = b""
    key: bytes = b""
    expires: float | None = None
    fault: str = ""


def check_installed(where: str, provider: str) -> None:
    """Raises :class:`SettingsError` if the official client is not installed."""
    if importlib.util.find_spec("kubernetes") is None:
        raise SettingsError(
            f"{where}: {provider} is run by the client `kubernetes`, which is not installed: "
            "pip install 'dra-kubeletplugin[kubeconfig]'"
        )


class CredentialProcess:
    """One run of the child process.

    Args:
        paths: the kubeconfig files, as in KUBECONFIG.
        context: name of the context.
    """

    def __init__(self, paths: str, context: str) -> None:
        self._command = [sys.executable, "-P", "-c", _CODE, str(Path(__file__).parents[2]), paths, context]
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def run(self) -> ProvidedCredentials:
        """Blocks until the child has ended. Raises :class:`ApiError` or ``OSError``."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)  # noqa: S603  its own interpreter
        if self._killed:
            self._process.kill()
        with self._process as process:
            output, _ = process.communicate()
        try:
            found = msgspec.json.decode(output, type=ProvidedCredentials)
        except ValueError:
            raise ApiError(f"the process that asks for credentials ended with code {process.returncode}") from None
        if found.fault:
            raise ApiError(found.fault)
        return found

    def kill(self) -> None:
        """Kills the child, so that ``run`` raises."""
        self._killed = True
        if self._process is not None:
            self._process.kill()


def main() -> None:
    """Runs in the child: writes :class:`ProvidedCredentials` as JSON to the standard output that it started with."""
    result = os.dup(1)
    os.dup2(2, 1)  # output that an exec plugin or the client prints goes to standard error
    captured = _CapturedErrors()
    logging.getLogger().addHandler(captured)
    paths, context = sys.argv[1:]
    try:
        with tempfile.TemporaryDirectory(prefix="dra-kubeconfig-") as folder:
            found = _load(paths, context, folder)
        if not found.header and not found.cert:
            found.fault = captured.text or "it logged no reason"
    except Exception as e:  # the loader may raise anything for an unusual file
        found = ProvidedCredentials(fault=describe(e))
    with os.fdopen(result, "wb") as file:
        file.write(msgspec.json.encode(found))


def _load(paths: str, context: str, folder: str) -> ProvidedCredentials:
    kube_config: Any = importlib.import_module("kubernetes.config.kube_config")
    merged = kube_config.KubeConfigMerger(paths)
    configuration = kube_config.Configuration()
    loader = kube_config.KubeConfigLoader(
        merged.config,
        active_context=context,
        config_base_path=None,  # the folder of each file
        config_persister=merged.save_changes,  # an OIDC provider may have returned new tokens
        temp_file_path=folder,
    )
    loader.load_and_set(configuration)
    expiry = getattr(loader, "expiry", None)
    return ProvidedCredentials(
        header=str(configuration.api_key.get("BearerToken") or "").strip(),
        cert=read_file(configuration.cert_file) if configuration.cert_file else b"",
        key=read_file(configuration.key_file) if configuration.key_file else b"",
        expires=expiry.timestamp() if expiry else None,
    )


class _CapturedErrors(logging.Handler):
    """Collects log lines: the loader logs why an exec plugin failed and raises nothing."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(printable(record.getMessage()))

    @property
    def text(self) -> str:
        return "; ".join(self._lines)
