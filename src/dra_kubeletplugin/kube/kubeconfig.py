"""Reads kubeconfig files: merges them, selects a context, and checks its fields without running a program.

It follows the rules of kubectl: the first file that has an entry is used, paths are relative to the file that contains them, and inline
data is used before a path. Source: https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from ..base.files import at_home, read_file, read_input
from ..errors import SettingsError, clip, describe, printable
from .config import ApiConfig, proxy_of_environment
from .credentials import Credentials, TokenFile, bearer
from .exec_plugin import ExecConfig, ExecCredentials
from .proxy import parse_proxy
from .tls import Source, Tls, TlsFiles, make_context
from .transport import split_server


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
    impersonated: str | None = msgspec.field(name="as", default=None)


class Context(msgspec.Struct):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class NamedCluster(msgspec.Struct):
    name: str
    cluster: Cluster | None = None


class NamedUser(msgspec.Struct):
    name: str
    user: User | None = None


class NamedContext(msgspec.Struct):
    name: str
    context: Context | None = None


class KubeconfigFile(msgspec.Struct, rename="kebab"):
    """One file. Source: k8s.io/client-go/tools/clientcmd/api/v1 ``Config``."""

    current_context: str | None = None
    clusters: list[NamedCluster] | None = None
    users: list[NamedUser] | None = None
    contexts: list[NamedContext] | None = None


class _Loader(yaml.SafeLoader):
    """Reads each value as a text, except null: fields of a kubeconfig are texts, also if they look like a number or a date."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - an attribute of PyYAML
        first: [(tag, pattern) for tag, pattern in found if tag.endswith((":null", ":merge"))]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


N = TypeVar("N", NamedCluster, NamedUser, NamedContext)


@dataclass(frozen=True)
class _Entry:
    """A cluster or user, as messages name it, and the folder of its file."""

    where: str
    shown: str
    folder: Path

    def named(self, field: str) -> str:
        return f"{self.where}: {field} of {self.shown}"

    def fault(self, field: str, cause: str) -> SettingsError:
        return SettingsError(f"{self.named(field)}{cause}")

    def source(self, field: str, path: str | None, data: str | None) -> Source | None:
        """Returns the decoded inline data, or else the path; None if there is neither. Raises :class:`SettingsError`."""
        if data:
            try:
                return base64.b64decode("".join(data.split()), validate=True)
            except ValueError as e:
                raise self.fault(f"{field}-data", f" is not base64: {printable(e)}") from None
        if not path:
            return None
        try:
            read_file(self.folder / path)
        except OSError as e:
            raise self.fault(field, f" cannot be read: {describe(e)}") from None
        return self.folder / path


def load_kubeconfig(paths: str, name: str = "") -> ApiConfig:
    """Reads the files and selects a context.

    Args:
        paths: one path, or several separated as in KUBECONFIG; missing files are skipped.
        name: name of the context; empty for the current one.

    Raises :class:`SettingsError` with the file, the field and the cause.
    """
    where = f"--kubeconfig (KUBECONFIG) {paths}"
    files = _read_files(paths, where)
    name = name or next((f.current_context for _, f in files if f.current_context), "")
    if not name:
        raise SettingsError(f"{where} has no current-context: select one with `kubectl config use-context`")
    context = (
        _find(where, "contexts", name, [(p, c) for p, f in files for c in f.contexts or ()])[1].context or Context()
    )
    path, named = _find(where, "clusters", context.cluster or "", [(p, c) for p, f in files for c in f.clusters or ()])
    cluster, of_cluster = named.cluster or Cluster(), _Entry(where, f"cluster {named.name!r}", path.absolute().parent)
    user, of_user = User(), of_cluster
    if context.user:
        path, found = _find(where, "users", context.user, [(p, u) for p, f in files for u in f.users or ()])
        user, of_user = found.user or User(), _Entry(where, f"user {found.name!r}", path.absolute().parent)
    server = (cluster.server or "").rstrip("/")
    try:
        split_server(server)
    except SettingsError as e:
        raise of_cluster.fault("server", f": {e}") from None
    tls = Tls(_tls_files(of_cluster, cluster, of_user, user) if server.startswith("https:") else None)
    of_file = parse_proxy(cluster.proxy_url, of_cluster.named("proxy-url")) if cluster.proxy_url else None
    proxy = of_file or proxy_of_environment(server)
    return ApiConfig(server, tls, _credentials(of_user, user, cluster, tls), proxy, context.namespace or "")


def _tls_files(of_cluster: _Entry, cluster: Cluster, of_user: _Entry, user: User) -> TlsFiles:
    """Returns the checked certificates. Raises :class:`SettingsError` with the field that is not a valid certificate or key."""
    ca = of_cluster.source("certificate-authority", cluster.certificate_authority, cluster.certificate_authority_data)
    files = TlsFiles(ca, verify=not cluster.insecure_skip_tls_verify, server_name=cluster.tls_server_name or "")
    _check(files, of_cluster, "certificate-authority")
    cert = of_user.source("client-certificate", user.client_certificate, user.client_certificate_data)
    key = of_user.source("client-key", user.client_key, user.client_key_data)
    if cert and not key:
        raise of_user.fault("client-certificate", " has no client-key: add client-key or client-key-data")
    if cert:
        files = msgspec.structs.replace(files, cert=cert, key=key)
        _check(files, of_user, "client-certificate or client-key")
    return files


def _check(files: TlsFiles, of: _Entry, field: str) -> None:
    try:
        make_context(files, files.read())
    except (OSError, ValueError) as e:
        raise of.fault(field, f" (or -data) cannot be used: {printable(e)}") from None


def _credentials(of_user: _Entry, user: User, cluster: Cluster, tls: Tls) -> Credentials:
    """Returns the user's credentials. As in kubectl, static credentials come before an exec plugin. Raises :class:`SettingsError`."""
    if user.impersonated:
        raise of_user.fault("as", ": impersonation is not supported; use a user with its own credentials")
    if user.token_file:
        return TokenFile(of_user.folder / user.token_file)
    if user.token:
        try:
            return Credentials(bearer(user.token))
        except ValueError as e:
            raise of_user.fault("token", f": {e}") from None
    if user.username:
        pair = f"{user.username}:{user.password or ''}".encode()
        return Credentials(f"Basic {base64.b64encode(pair).decode()}")
    if user.auth_provider:
        hint = "auth providers are not supported; use an exec plugin, such as kubelogin for OIDC"
        raise of_user.fault("auth-provider", f": {hint}")
    if user.exec is None:
        return Credentials()
    if not (user.exec.command and user.exec.api_version):
        raise of_user.fault("exec", " needs a command and an apiVersion")
    shown = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": cluster.certificate_authority_data,
        "proxy-url": cluster.proxy_url,
    }
    return ExecCredentials(user.exec, of_user.folder, {k: v for k, v in shown.items() if v}, tls, of_user.where)


def _read_files(paths: str, where: str) -> list[tuple[Path, KubeconfigFile]]:
    found = []
    exists = False
    for path in (at_home(p) for p in paths.split(os.pathsep) if p):
        try:
            content = yaml.load(read_input(path).decode(), _Loader)  # noqa: S506 - it is a SafeLoader
            exists = True
            if content is not None:
                found.append((path, msgspec.convert(content, KubeconfigFile, strict=False)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as e:
            cause = f"it is not a kubeconfig: {printable(e)}" if isinstance(e, msgspec.ValidationError) else describe(e)
            shown = where if str(path) in where else f"{where}: {path}"
            raise SettingsError(clip(f"{shown} cannot be read: {cause}")) from None
    if not found:
        raise SettingsError(f"{where} is empty" if exists else f"{where} does not exist")
    return found


def _find(where: str, group: str, name: str, entries: Sequence[tuple[Path, N]]) -> tuple[Path, N]:
    """Returns the entry with that name from the first file that has it, and the file. Two such entries in one file are an error."""
    matches = [(path, entry) for path, entry in entries if entry.name == name]
    if not matches:
        known_names = ", ".join(sorted({entry.name for _, entry in entries})) or "none"
        raise SettingsError(f"{where} has no {group[:-1]} {name!r} in {group} (there: {printable(known_names)})")
    if [path for path, _ in matches].count(matches[0][0]) > 1:
        raise SettingsError(f"{where} has two entries {name!r} in {group}: remove one")
    return matches[0]
