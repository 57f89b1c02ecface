"""Reads kubeconfig files with the official client's loader, which supports exec plugins, OIDC and relative paths.

Importing the loader takes half a second and 22 MiB. Only this module imports it, and only if a kubeconfig is used.
This module itself limits the time of an exec plugin and reads token files again when they change.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import contextlib
import importlib
import logging
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.files import at_home
from ..errors import ApiError, DraError, SettingsError, clip, describe, printable
from .credentials import Credentials, TokenFile
from .proxy import Proxy, parse_proxy
from .tls import RECHECK, Tls, TlsFiles, make_context
from .transport import split_server

log = logging.getLogger(__name__)
_WAIT = 8.0  # seconds that a request waits for an exec plugin, which continues for the next request
_HUNG_AFTER = 120.0  # seconds after which an exec plugin is considered hung and started again
_MIN_INTERVAL = 5.0  # minimum seconds between runs of an exec plugin, however often the server returns 401
_HEADER = re.compile(r"[ -~]+")
_OVERRULED = {
    "tokenFile",
    "exec",
    "auth-provider",
}  # fields hidden from the loader if a token file is named, which TokenFile reads
_FOLDER: list[str] = []  # folder for the loader's files with inline data of a kubeconfig, including private keys


def remove_files() -> None:
    """Deletes the loader's files if the process exits without the interpreter's exit handlers, on which the loader relies."""
    while _FOLDER:
        shutil.rmtree(_FOLDER.pop(), ignore_errors=True)


def _loader() -> Any:
    try:
        return importlib.import_module("kubernetes.config.kube_config")
    except ModuleNotFoundError:
        raise SettingsError(
            "--kubeconfig (KUBECONFIG) is read by the client `kubernetes`, which is not installed: "
            "pip install 'dra-kubeletplugin[kubeconfig]'"
        ) from None


def _folder() -> str:
    """Returns one folder per process, because the loader caches its files for the life of the process."""
    if not _FOLDER:
        _FOLDER.append(tempfile.mkdtemp(prefix="dra-kubeconfig-"))
        atexit.register(remove_files)
    return _FOLDER[0]


class _LazyLoader:
    """Path of the folder for the loader. The folder is created only when the loader asks for it to write a file, which is rare."""

    def __fspath__(self) -> str:
        return _folder()


@dataclass(frozen=True)
class _Loaded:
    """The loader's result; ``header`` is empty if the user has no token."""

    header: str
    files: TlsFiles
    configuration: Any
    content: tuple[bytes, ...]


class Kubeconfig(Credentials):
    """One context of one or more kubeconfig files.

    Args:
        paths: one path, or several as in KUBECONFIG, of which missing ones are skipped.
        context: name of the context; empty for the current one.

    Raises :class:`SettingsError` with the file, the field and the cause.
    """

    def __init__(self, paths: str, context: str = "") -> None:
        self._paths, self._context = paths, context
        self._where = f"--kubeconfig (KUBECONFIG) {paths}"
        chosen = self._choose()
        self.server: str = chosen.server
        self.proxy: Proxy | None = chosen.proxy
        self.namespace: str = chosen.namespace
        self.token_file: TokenFile | None = TokenFile(chosen.token_file) if chosen.token_file else None
        self.tls = Tls(chosen.files)
        self._source = chosen.source  # exec plugin or auth provider, which may be slow; empty for static credentials
        self._loaded: _Loaded | None = None if self._source else self._load_static(chosen)
        self._checked = time.monotonic()
        self._stale = False
        self._renewing: asyncio.Future[_Loaded] | None = None
        self._started = 0.0
        self._fault = ""  # of the last attempt to get credentials

    @staticmethod
    def _load_static(chosen: _Chosen) -> _Loaded:
        try:
            return chosen.load()
        except Exception as e:
            raise SettingsError(f"{chosen.where} cannot be used: {describe(e)}") from None

    def _choose(self) -> _Chosen:
        try:
            return _Chosen(self._paths, self._context, self._where)
        except SettingsError:
            raise
        except Exception as e:
            # The loader raises any exception, also TypeError and AttributeError, for files that are not a kubeconfig.
            what = "it is no kubeconfig: " if isinstance(e, TypeError | AttributeError) else ""
            raise SettingsError(clip(f"{self._where} cannot be read: {what}{describe(e)}")) from None

    async def header(self) -> str:
        header = await self._current()
        return await self.token_file.header() if self.token_file else header

    async def _current(self) -> str:
        """Returns the header of the current credentials. Reads the files again when a check is due."""
        now = time.monotonic()
        is_needed = self._loaded is None or self._stale
        if self._renewing is not None and now - self._started >= _HUNG_AFTER:
            self._renewing = None
        if self._renewing is None and (is_needed or now - self._checked >= RECHECK):
            if is_needed and self._started and now - self._started < _MIN_INTERVAL:
                return self._last()
            self._started = now
            self._renewing = _in_thread(self._renew, "kubeconfig")
            self._renewing.add_done_callback(self._renewed)
        if self._renewing is not None and is_needed:
            done, _ = await asyncio.wait({self._renewing}, timeout=_WAIT)
            if not done:
                raise ApiError(f"{self._where}: {self._source or 'reading it'} takes longer than {_WAIT:g}s")
            if self._stale and self._fault:
                raise ApiError(self._fault)
        # Credentials that were not rejected are still valid for some minutes, so this request does not wait for new ones.
        return self._last()

    def _last(self) -> str:
        if self._loaded is None:
            raise ApiError(self._fault or f"{self._where}: there are no credentials yet")
        return self._loaded.header

    def rejected(self) -> None:
        self._stale = True
        if self.token_file:
            self.token_file.rejected()

    def _renew(self) -> _Loaded:
        """Runs in a thread. Raises :class:`SettingsError` or :class:`ApiError`."""
        loaded = self._loaded
        try:
            if loaded is None or self._stale or _content(self._paths) != loaded.content:
                return self._choose().load()
            if self._source and loaded.configuration.refresh_api_key_hook:
                with _CapturedLog():
                    loaded.configuration.refresh_api_key_hook(loaded.configuration)
                return _Loaded(_header(loaded.configuration), loaded.files, loaded.configuration, loaded.content)
            return loaded
        except DraError:
            raise
        except Exception as e:
            raise ApiError(f"{self._where}: {self._source or 'it'} gave no credentials: {describe(e)}") from None

    def _renewed(self, renewing: asyncio.Future[_Loaded]) -> None:
        fault = None if renewing.cancelled() else renewing.exception()
        if renewing.cancelled() or renewing is not self._renewing:
            return
        self._renewing = None
        self._checked = time.monotonic()
        self._fault = printable(fault) if fault else ""
        if fault is not None:
            if self._loaded is not None:
                log.warning("cannot renew the credentials: %s", self._fault)
            return
        self._stale = False
        self._loaded = renewing.result()
        self.tls.use(self._loaded.files)


class _Chosen:
    """A context with its cluster and user, checked as far as possible without running a program."""

    def __init__(self, paths: str, context: str, where: str) -> None:
        self.loader: Any = _loader()
        self.paths, self.where = paths, where
        self.content = _content(paths)
        self.merged = self.loader.KubeConfigMerger(paths)
        config = self.merged.config
        if config is None:
            raise SettingsError(f"{where}: there is no such file")
        name = context or config.safe_get("current-context") or ""
        if not name:
            raise SettingsError(f"{where} names no current-context: choose one with `kubectl config use-context`")
        chosen = self._named(config, "contexts", "context", name)
        self.cluster_name, self.user_name = chosen.safe_get("cluster") or "", chosen.safe_get("user") or ""
        self.namespace = str(chosen.safe_get("namespace") or "")
        self.cluster = self._named(config, "clusters", "cluster", self.cluster_name)
        self.user = self._named(config, "users", "user", self.user_name) if self.user_name else None
        self.server = self._server()
        self.proxy = self._proxy()
        self.token_file = self._path(self.user, "tokenFile")
        self.source = self._slow_source()
        self.files = self._checked_files()

    def _named(self, config: Any, group: str, kind: str, name: str) -> Any:
        found = config[group].get_with_name(name, safe=True) if config.safe_get(group) else None
        if found is None:
            known = ", ".join(sorted(str(n["name"]) for n in config.safe_get(group) or [])) or "none"
            raise SettingsError(f"{self.where} has no {kind} {name!r} in {group} (there: {printable(known)})")
        if found.safe_get(kind) is None:
            found.value[kind] = {}
        return found[kind]

    def _field(self, node: Any, name: str) -> str:
        """The field's full name, for messages."""
        kind, named = ("cluster", self.cluster_name) if node is self.cluster else ("user", self.user_name)
        return f"{self.where}: {name} of {kind} {named!r}"

    def _server(self) -> str:
        server = self.cluster.safe_get("server")
        try:
            split_server(str(server or ""))
        except SettingsError as e:
            raise SettingsError(f"{self._field(self.cluster, 'server')}: {e}") from None
        return str(server).rstrip("/")

    def _proxy(self) -> Proxy | None:
        url = self.cluster.safe_get("proxy-url")
        return parse_proxy(str(url), self._field(self.cluster, "proxy-url")) if url else None

    def _slow_source(self) -> str:
        """Describes the program or server that provides the credentials; empty if they are in the file."""
        if self.user is None or self.token_file:
            return ""
        if self.user.safe_get("auth-provider"):
            return f"auth-provider {self.user['auth-provider'].safe_get('name')!r}"
        if self.user.safe_get("exec") and not self.user.safe_get("token"):
            return f"exec plugin {self.user['exec'].safe_get('command')!r}"
        return ""

    def _path(self, node: Any, name: str) -> Path | None:
        value = node.safe_get(name) if node is not None else None
        return Path(node.path or ".").absolute().parent / str(value) if value else None

    def _checked_files(self) -> TlsFiles:
        """Raises :class:`SettingsError` with the field that is not a valid certificate."""
        if not self.server.startswith("https:"):
            return TlsFiles()
        self._check(self.cluster, "certificate-authority")
        for name in ("client-certificate", "client-key"):
            self._check(self.user, name)
        # Leave out the fields that would run a program.
        configuration = self._configuration(
            ("client-certificate", "client-certificate-data", "client-key", "client-key-data")
        )
        files = self._files(configuration)
        ca_only = TlsFiles(files.ca, None, None, files.verify)
        for node, name, part in (
            (self.cluster, "certificate-authority", ca_only),
            (self.user, "client-certificate or client-key", files),
        ):
            try:
                make_context(part, part.read())
            except (OSError, ValueError) as e:
                raise SettingsError(f"{self._field(node, name)} (or -data) cannot be used: {printable(e)}") from None
        return files

    def _check(self, node: Any, name: str) -> None:
        if node is None:
            return
        if data := node.safe_get(f"{name}-data"):
            try:
                base64.b64decode("".join(str(data).split()), validate=True)
            except ValueError as e:
                raise SettingsError(f"{self._field(node, f'{name}-data')} is no base64: {printable(e)}") from None
        elif (path := self._path(node, name)) is not None:
            try:
                path.read_bytes()
            except OSError as e:
                raise SettingsError(f"{self._field(node, name)} cannot be read: {describe(e)}") from None

    def _configuration(self, fields: tuple[str, ...] | None) -> Any:
        """Returns the loader's configuration. ``fields`` are the user fields it may see; None for all that the token file permits."""
        node, context = self.loader.ConfigNode, {"cluster": self.cluster_name}
        view: dict[str, Any] = {"current-context": "here", "clusters": self.merged.config.value["clusters"]}
        if self.user is not None:
            context["user"] = "user"
            user = self.user.value
            if fields is not None or self.token_file:
                user = {
                    k: v for k, v in user.items() if k in (fields or ()) or (fields is None and k not in _OVERRULED)
                }
            view["users"] = [node("user", {"name": "user", "user": user}, self.user.path)]
        view["contexts"] = [node("here", {"name": "here", "context": context}, self.cluster.path)]
        configuration = self.loader.Configuration()
        self.loader.KubeConfigLoader(
            config_dict=node("kubeconfig", view, self.cluster.path),
            config_base_path=None,
            config_persister=self.merged.save_changes,
            temp_file_path=_LazyLoader(),
        ).load_and_set(configuration)
        return configuration

    @staticmethod
    def _files(configuration: Any) -> TlsFiles:
        ca, cert, key = (
            Path(name) if name else None
            for name in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
        )
        return TlsFiles(ca, cert, key, bool(configuration.verify_ssl), configuration.tls_server_name or "")

    def load(self) -> _Loaded:
        """Loads with credentials; may run programs and send requests. Raises :class:`ApiError` and the loader's own exceptions."""
        with _CapturedLog() as captured:
            configuration = self._configuration(None)
        header, files = _header(configuration), self._files(configuration)
        if self.source and not header and not files.cert:
            raise ApiError(f"{self.where}: {self.source} gave no credentials: {captured.text or 'it logged no reason'}")
        return _Loaded(header, files, configuration, self.content)


class _CapturedLog(logging.Handler):
    """Captures the loader's log lines in this thread: it only logs why an exec plugin failed, and the error needs that text."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self._lines: list[str] = []

    def __enter__(self) -> _CapturedLog:
        root = logging.getLogger()
        root.addHandler(self)
        root.addFilter(self)
        return self

    def __exit__(self, *exc: object) -> None:
        root = logging.getLogger()
        root.removeFilter(self)
        root.removeHandler(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True
        self._lines.append(printable(record.getMessage()))
        return False

    def emit(self, record: logging.LogRecord) -> None:
        """Does nothing: :meth:`filter` takes this thread's lines, and other handlers write the lines of other threads."""

    @property
    def text(self) -> str:
        return "; ".join(self._lines)


def _header(configuration: Any) -> str:
    header = str(configuration.api_key.get("BearerToken") or "").strip()
    if header and not _HEADER.fullmatch(header):
        raise ApiError("the token of the kubeconfig's user contains characters that no token has")
    return header


def _content(paths: str) -> tuple[bytes, ...]:
    found = []
    for name in paths.split(":"):  # as in the loader
        with contextlib.suppress(FileNotFoundError):
            found.append(at_home(name).read_bytes() if name else b"")
    return tuple(found)


def _in_thread(work: Callable[[], _Loaded], name: str) -> asyncio.Future[_Loaded]:
    """Runs ``work`` in a daemon thread, which does not delay the end of the process, unlike an executor's thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Loaded] = loop.create_future()

    def settle(result: _Loaded | None, fault: Exception | None) -> None:
        if future.done():
            return
        if result is not None:
            future.set_result(result)
        else:
            future.set_exception(fault or ApiError("nothing was loaded"))

    def run() -> None:
        result, fault = None, None
        try:
            result = work()
        except Exception as e:
            fault = e
        with contextlib.suppress(RuntimeError):  # the loop was closed, so no caller waits
            loop.call_soon_threadsafe(settle, result, fault)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
