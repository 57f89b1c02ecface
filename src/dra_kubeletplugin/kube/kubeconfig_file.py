"""Reads kubeconfig files: merges them, selects a context, and checks its fields without running a program.

It follows the rules of kubectl: the first file that has an entry is used, paths are relative to the file that contains them, and inline
data is used before a path. Source: https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from ..base.files import at_home, read_file, read_input
from ..errors import SettingsError, clip, describe, printable
from .exec_plugin import ExecConfig, ExecPlugin
from .proxy import Proxy, parse_proxy
from .tls import Source, TlsFiles, make_context
from .transport import split_server

T = TypeVar("T")
_IMPERSONATION = ("as", "as-uid", "as-groups", "as-user-extra")


class Cluster(msgspec.Struct, rename="kebab"):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None


class User(msgspec.Struct, rename="kebab"):
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    username: str | None = None
    password: str | None = None
    exec: ExecConfig | None = None
    auth_provider: dict[str, Any] | None = None


class Context(msgspec.Struct):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class NamedCluster(msgspec.Struct):
    name: str
    cluster: Cluster | None = None


class NamedUser(msgspec.Struct):
    name: str
    user: dict[str, Any] | None = None


class NamedContext(msgspec.Struct):
    name: str
    context: Context | None = None


class KubeconfigFile(msgspec.Struct, rename="kebab"):
    """One file. Source: k8s.io/client-go/tools/clientcmd/api/v1 ``Config``."""

    current_context: str | None = None
    clusters: list[NamedCluster] | None = None
    users: list[NamedUser] | None = None
    contexts: list[NamedContext] | None = None


@dataclass(frozen=True)
class SelectedContext:
    """The selected context, with its cluster and user.

    Attributes:
        name: name of the context.
        files: the certificates, without the certificate that an exec plugin will return.
        token_file: file with the bearer token, read again when it changes; None if the user has no such file.
        header: value of the Authorization header; empty if the user has neither token nor password.
        plugin: the exec plugin that returns the credentials; None for static credentials.
    """

    name: str
    server: str
    namespace: str
    proxy: Proxy | None
    files: TlsFiles
    token_file: Path | None
    header: str
    plugin: ExecPlugin | None


def select_context(paths: str, name: str, where: str) -> SelectedContext:
    """Reads the files and selects a context.

    Args:
        paths: one path, or several separated as in KUBECONFIG; missing files are skipped.
        name: name of the context; empty for the current one.
        where: the option and the paths, for messages.

    Raises :class:`SettingsError` with the file, the field and the cause.
    """
    files = _read_files(paths, where)
    name = name or next((f.current_context for _, f in files if f.current_context), "")
    if not name:
        raise SettingsError(f"{where} has no current-context: select one with `kubectl config use-context`")
    _, context = _entry(
        where, "contexts", name, [(p, c.name, c.context or Context()) for p, f in files for c in f.contexts or ()]
    )
    clusters = [(p, c.name, c.cluster or Cluster()) for p, f in files for c in f.clusters or ()]
    path, cluster = _entry(where, "clusters", context.cluster or "", clusters)
    of_cluster = _Fields(where, "cluster", context.cluster or "", path)
    of_user, user = None, User()
    if context.user:
        path, fields = _entry(
            where, "users", context.user, [(p, u.name, u.user or {}) for p, f in files for u in f.users or ()]
        )
        of_user = _Fields(where, "user", context.user, path)
        user = of_user.user(fields)
    server = of_cluster.server(cluster.server or "")
    return SelectedContext(
        name=name,
        server=server,
        namespace=context.namespace or "",
        proxy=parse_proxy(cluster.proxy_url, of_cluster.named("proxy-url")) if cluster.proxy_url else None,
        files=_tls_files(of_cluster, cluster, of_user, user) if server.startswith("https:") else TlsFiles(),
        token_file=of_user.path(user.token_file) if of_user and user.token_file else None,
        header="" if user.token_file else _header(user, of_user),
        plugin=_plugin(user, of_user, cluster) if of_user else None,
    )


class _Fields:
    """Reads the fields of one cluster or user and the files that they name, and names the fields in messages."""

    def __init__(self, where: str, kind: str, name: str, file: Path) -> None:
        self._where, self._of, self._folder = where, f"{kind} {name!r}", file.absolute().parent

    def named(self, field: str) -> str:
        return f"{self._where}: {field} of {self._of}"

    def path(self, text: str) -> Path:
        return self._folder / text

    def user(self, fields: Mapping[str, Any]) -> User:
        if unsupported := next((f for f in _IMPERSONATION if fields.get(f)), ""):
            raise SettingsError(
                f"{self.named(unsupported)}: impersonation is not supported; use a user with its own credentials"
            )
        try:
            return msgspec.convert(fields, User)
        except msgspec.ValidationError as e:
            raise SettingsError(f"{self._where}: {self._of} is not valid: {printable(e)}") from None

    def server(self, server: str) -> str:
        try:
            split_server(server)
        except SettingsError as e:
            raise SettingsError(f"{self.named('server')}: {e}") from None
        return server.rstrip("/")

    def source(self, field: str, path: str | None, data: str | None) -> Source | None:
        """Returns the decoded inline data, or else the path; None if there is neither. Raises :class:`SettingsError`."""
        if data:
            try:
                return base64.b64decode("".join(data.split()), validate=True)
            except ValueError as e:
                raise SettingsError(f"{self.named(f'{field}-data')} is not base64: {printable(e)}") from None
        if not path:
            return None
        try:
            read_file(self.path(path))
        except OSError as e:
            raise SettingsError(f"{self.named(field)} cannot be read: {describe(e)}") from None
        return self.path(path)


def _tls_files(of_cluster: _Fields, cluster: Cluster, of_user: _Fields | None, user: User) -> TlsFiles:
    """Returns the checked certificates. Raises :class:`SettingsError` with the field that is not a valid certificate or key."""
    ca = of_cluster.source("certificate-authority", cluster.certificate_authority, cluster.certificate_authority_data)
    verify = not cluster.insecure_skip_tls_verify
    files = TlsFiles(ca, verify=verify, server_name=cluster.tls_server_name or "")
    _check(files, of_cluster.named("certificate-authority"))
    if of_user is None:
        return files
    cert = of_user.source("client-certificate", user.client_certificate, user.client_certificate_data)
    key = of_user.source("client-key", user.client_key, user.client_key_data)
    if cert and not key:
        raise SettingsError(
            f"{of_user.named('client-certificate')} has no client-key: add client-key or client-key-data"
        )
    files = TlsFiles(ca, cert, key, verify, files.server_name)
    _check(files, of_user.named("client-certificate or client-key"))
    return files


def _check(files: TlsFiles, field: str) -> None:
    try:
        make_context(files, files.read())
    except (OSError, ValueError) as e:
        raise SettingsError(f"{field} (or -data) cannot be used: {printable(e)}") from None


def _plugin(user: User, of_user: _Fields, cluster: Cluster) -> ExecPlugin | None:
    """Returns the exec plugin; None if there is none. As in kubectl, static credentials come before it. Raises :class:`SettingsError`."""
    if user.token_file or user.token or user.username:
        return None
    if user.auth_provider:
        raise SettingsError(
            f"{of_user.named('auth-provider')}: auth providers are not supported; use an exec plugin, such as kubelogin for OIDC"
        )
    if user.exec is None:
        return None
    shown = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": cluster.certificate_authority_data,
        "proxy-url": cluster.proxy_url,
    }
    return ExecPlugin(user.exec, of_user.path("."), {k: v for k, v in shown.items() if v})


def _header(user: User, of_user: _Fields | None) -> str:
    if of_user and user.token:
        return check_header(f"Bearer {user.token.strip()}", of_user.named("token"))
    if user.username is not None and user.password is not None:
        return "Basic " + base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
    return ""


def check_header(header: str, where: str) -> str:
    """Returns the header. Raises :class:`SettingsError` if it is not printable ASCII."""
    if not (header.isascii() and header.isprintable()):
        raise SettingsError(f"{where} contains characters that no token has")
    return header


def _split(paths: str) -> list[Path]:
    return [at_home(path) for path in paths.split(os.pathsep) if path]


def _read_files(paths: str, where: str) -> list[tuple[Path, KubeconfigFile]]:
    found = []
    exists = False
    for path in _split(paths):
        try:
            text = read_input(path).decode()
            exists = True
            content = yaml.safe_load(text)
            if content is not None:
                found.append((path, msgspec.convert(content, KubeconfigFile)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as e:
            cause = f"it is not a kubeconfig: {printable(e)}" if isinstance(e, msgspec.ValidationError) else describe(e)
            shown = where if str(path) in where else f"{where}: {path}"
            raise SettingsError(clip(f"{shown} cannot be read: {cause}")) from None
    if not found:
        raise SettingsError(f"{where} is empty" if exists else f"{where} does not exist")
    return found


def _entry(where: str, group: str, name: str, entries: Sequence[tuple[Path, str, T]]) -> tuple[Path, T]:
    """Returns the entry with that name from the first file that has it, and the file. Two such entries in one file are an error."""
    matches = [(path, entry) for path, known, entry in entries if known == name]
    if not matches:
        known_names = ", ".join(sorted({known for _, known, _ in entries})) or "none"
        raise SettingsError(f"{where} has no {group[:-1]} {name!r} in {group} (there: {printable(known_names)})")
    if [path for path, _ in matches].count(matches[0][0]) > 1:
        raise SettingsError(f"{where} has two entries {name!r} in {group}: remove one")
    return matches[0]
