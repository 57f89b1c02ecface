"""Finds the API server and the credentials, from a pod's service account or from a kubeconfig."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ..base.files import read_text_file
from ..errors import ApiError, SettingsError
from .credentials import Credentials, TokenFile
from .proxy import Proxy, proxy_of
from .tls import Tls, TlsFiles
from .transport import split_server

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True)
class ApiConfig:
    """Address and credentials of an API server.

    ``server`` is a URL. ``tls`` is used for https only and trusts the system's CAs by default.
    ``namespace`` is the default namespace; empty if the configuration has none.
    """

    server: str
    tls: Tls = field(default_factory=Tls)
    credentials: Credentials = field(default_factory=Credentials)
    proxy: Proxy | None = None
    namespace: str = ""


def load_config(kubeconfig: str = "", context: str = "", *, service_account: Path | str = "") -> ApiConfig:
    """Loads the configuration from a kubeconfig, or from a pod's service account if no kubeconfig is named.

    No request is sent and no exec plugin is started here. The first request does both, and raises :class:`ApiError` if one of them fails.

    Args:
        kubeconfig: one path, or several separated by colons as in KUBECONFIG.
        context: name of the context; empty for the current one.
        service_account: folder with the token and the CA; empty for the default folder in a pod.

    Raises :class:`SettingsError` with the missing setting and how to set it.
    """
    if not kubeconfig:
        return _in_cluster(Path(service_account or SERVICE_ACCOUNT))
    from .kubeconfig import load_kubeconfig  # brings YAML, which a pod does not need

    return load_kubeconfig(kubeconfig, context)


def _in_cluster(folder: Path) -> ApiConfig:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").is_file():
        raise SettingsError(
            "no API server: not in a pod (no KUBERNETES_SERVICE_HOST, or no service account token), and neither "
            "--kubeconfig nor KUBECONFIG is set"
        )
    shown = f"[{host}]" if ":" in host else host
    server = f"https://{shown}:{port}"
    tls = Tls(TlsFiles(ca=folder / "ca.crt"))
    try:
        split_server(server)
        tls.context()
    except (ApiError, SettingsError) as e:
        raise SettingsError(f"the pod's service account cannot be used (KUBERNETES_SERVICE_HOST {host}): {e}") from None
    try:
        namespace = read_text_file(folder / "namespace").strip()
    except (OSError, ValueError):
        namespace = ""
    return ApiConfig(server, tls, TokenFile(folder / "token"), proxy_of_environment(server), namespace)


def proxy_of_environment(server: str) -> Proxy | None:
    """Returns the proxy for a server from HTTPS_PROXY and NO_PROXY. Raises :class:`SettingsError` if it is unusable."""
    https, host, port, _ = split_server(server)
    return proxy_of(os.environ, "https" if https else "http", host, port)
