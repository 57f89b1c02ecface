"""Tests the configuration of the client: service accounts, kubeconfigs, proxies, and error messages of one sentence."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.errors import ApiError, SettingsError, printable
from dra_kubeletplugin.kube import ApiConfig, KubeClient, load_config
from dra_kubeletplugin.kube.exec_plugin import ExecCredentials
from dra_kubeletplugin.kube.proxy import Proxy, parse_proxy, proxy_of
from tests.helpers.certificates import Pair, authority, server_side, signed
from tests.helpers.kubeconfigs import EXEC_API, config_of, write_config
from tests.helpers.raw_server import RawServer, http_response, serve_replies
from tests.helpers.waiting import wait_until

OBJECT = http_response({"kind": "X"})


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def plugin(folder: Path, body: str) -> dict[str, Any]:
    """Writes an exec plugin. ``body`` is Python code that prints the credential."""
    script = folder / "plugin.py"
    script.write_text(
        f"import json, sys, time\ndef give(**status):\n    print(json.dumps({{'apiVersion': '{EXEC_API}', 'kind': 'ExecCredential', 'status': status}}))\n{body}\n"
    )
    return {
        "exec": {"apiVersion": EXEC_API, "command": sys.executable, "args": [str(script)], "interactiveMode": "Never"}
    }


def exec_credentials(folder: Path, body: str, **limits: float) -> ExecCredentials:
    """Returns the credentials of a kubeconfig with an exec plugin, with other limits: ``wait``, ``interval`` or ``timeout``."""
    found = load_config(write_config(folder, config_of(plugin(folder, body)))).credentials
    assert isinstance(found, ExecCredentials)
    for name, seconds in limits.items():
        setattr(found, name, seconds)
    return found


def b64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


# --- invalid kubeconfigs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "is empty"),
        (None, "does not exist"),
        ("- a\n- b\n", "cannot be read"),
        ("just text", "cannot be read"),
        ("a: [", "cannot be read"),
        ("\ud800", "cannot be read"),
        ({"current-context": "nowhere"}, r"no context 'nowhere' in contexts \(there: none\)"),
        (config_of() | {"current-context": "other"}, r"no context 'other' in contexts \(there: c\)"),
        (config_of() | {"current-context": ""}, "has no current-context"),
        (config_of() | {"clusters": []}, "no cluster 'k' in clusters"),
        (config_of({}) | {"users": []}, "no user 'u' in users"),
        (config_of(server=""), "server of cluster 'k'"),
        (config_of(server="localhost:99999"), "server of cluster 'k'"),
        (config_of(server="https://127.0.0.1:99999"), "server of cluster 'k'"),
        (config_of(**{"server": "https://h", "certificate-authority-data": "%%%"}), "certificate-authority-data of cluster 'k' is not base64"),
        (config_of(**{"server": "https://h", "certificate-authority-data": base64.b64encode(b"x").decode()}), r"certificate-authority of cluster 'k' \(or -data\) cannot be used"),
        (config_of(**{"server": "https://h", "certificate-authority": "none.crt"}), "certificate-authority of cluster 'k' cannot be read.*none.crt"),
        (config_of({"client-certificate-data": "!"}, server="https://h"), "client-certificate-data of user 'u' is not base64"),
        (config_of({"client-key": "/nowhere"}, server="https://h"), "client-key of user 'u' cannot be read"),
        (config_of({"client-certificate-data": "eA==", "client-key-data": "eA=="}, server="https://h"), r"client-certificate or client-key of user 'u'"),
        (config_of(**{"proxy-url": "socks5://x:1"}), "proxy-url of cluster 'k': proxies of scheme 'socks5' are not supported"),
        (config_of({"token": "a\nb"}), "no token has"),
        (config_of({"token": ["x"]}), r"it is not a kubeconfig: Expected `str \| null`, got `array` - at `\$.users\[0\].user.token`"),
        (config_of({"auth-provider": {"name": "oidc"}}), "auth-provider of user 'u'.*use an exec plugin"),
        (config_of({"exec": {"apiVersion": EXEC_API}}), "exec of user 'u' needs a command and an apiVersion"),
        (config_of({"as": "admin", "token": "t"}), "as of user 'u': impersonation is not supported"),
        (config_of() | {"clusters": [{"name": "k"}, {"name": "k"}]}, "two entries 'k' in clusters"),
        (config_of() | {"clusters": 3}, "it is not a kubeconfig"),
    ],
)  # fmt: skip
def test_each_kubeconfig_error_is_one_sentence(tmp_path: Path, config: Any, message: str) -> None:
    path = tmp_path / "config"
    if config is not None:
        path.write_bytes((config if isinstance(config, str) else json.dumps(config)).encode(errors="surrogatepass"))
    with pytest.raises(SettingsError, match=message) as e:
        load_config(str(path))
    assert "--kubeconfig (KUBECONFIG)" in str(e.value)
    assert str(path) in str(e.value)
    assert e.value.__suppress_context__ or e.value.__context__ is None


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["c", "k", "u", "https://h"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "cluster", "user", "context", "server", "token", "exec", "auth-provider"]), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(where=st.sampled_from(["contexts", "clusters", "users", "current-context", ""]), junk=JUNK, inside=st.booleans())
def test_malformed_files_raise_only_settings_errors(tmp_path: Path, where: str, junk: Any, inside: bool) -> None:
    config: Any = config_of({"token": "t"})
    if not where:
        config = junk
    elif inside and isinstance(config[where], list):
        config[where][0][where[:-1]] = junk
    else:
        config[where] = junk
    path = write_config(tmp_path, config)
    try:
        assert isinstance(load_config(path), ApiConfig)
    except SettingsError as e:
        assert str(e) == printable(e)


# --- valid kubeconfigs --------------------------------------------------------------------------------------


async def test_several_files_are_merged_and_paths_are_relative_to_their_file(tmp_path: Path, ca: Pair) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/ca.crt").write_bytes(ca.cert.read_bytes())
    whole = config_of({"token": "t"}, **{"server": "https://127.0.0.1:6443/", "certificate-authority": "ca.crt"})
    first = write_config(tmp_path, {k: whole[k] for k in ("current-context", "contexts", "users")}, "first")
    later = {"clusters": whole["clusters"], "users": config_of({"token": "second"})["users"]}
    second = write_config(tmp_path / "sub", later, "second")
    paths = os.pathsep.join([first, str(tmp_path / "missing"), second])
    assert not [
        f for f in Settings(kubeconfig=paths, kubelet_root=tmp_path, cdi_root=tmp_path).faults() if "kubeconfig" in f
    ]
    config = load_config(paths)
    assert config.server == "https://127.0.0.1:6443"
    assert await config.credentials.header() == "Bearer t", "the first file with an entry counts"
    assert len(config.tls.context().get_ca_certs()) == 1


@pytest.mark.parametrize("data", [True, False])
async def test_tls_server_name_client_certificates_and_ca_data_are_used(tmp_path: Path, ca: Pair, data: bool) -> None:
    server, client_cert = signed(tmp_path, ca, "server", "DNS:kubernetes"), signed(tmp_path, ca, "me")
    fields = {"certificate-authority": ca.cert, "client-certificate": client_cert.cert, "client-key": client_cert.key}
    user_fields: dict[str, Any] = (
        {f"{k}-data": b64(v) for k, v in fields.items()} if data else {k: str(v) for k, v in fields.items()}
    )
    cluster = {k: user_fields.pop(k) for k in list(user_fields) if k.startswith("cert")}
    async with serve_replies(OBJECT, tls=server_side(server, ca.cert)) as peer:
        path = write_config(
            tmp_path, config_of(user_fields, server=peer.url, **cluster, **{"tls-server-name": "kubernetes"})
        )
        async with KubeClient(load_config(path)) as client:
            assert await client.call("GET", "/x") == {"kind": "X"}


async def test_insecure_disables_verification_and_basic_credentials_are_sent(tmp_path: Path, ca: Pair) -> None:
    async with serve_replies(OBJECT, tls=server_side(signed(tmp_path, ca, "server"))) as peer:
        user = {"username": "x", "password": "y"}
        path = write_config(tmp_path, config_of(user, **{"server": peer.url, "insecure-skip-tls-verify": True}))
        async with KubeClient(load_config(path)) as client:
            await client.call("GET", "/x")
        assert b"Authorization: Basic eDp5\r\n" in peer.requests[0]


def test_a_proxy_of_the_kubeconfig_overrides_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://environment:1")
    cluster = {"server": "https://10.0.0.1", "insecure-skip-tls-verify": True}
    assert load_config(write_config(tmp_path, config_of(**cluster))).proxy == Proxy("environment", 1)
    path = write_config(tmp_path, config_of(**cluster, **{"proxy-url": "http://x:y@file:3128"}))
    assert load_config(path).proxy == Proxy("file", 3128, "Basic eDp5")


# --- exec plugins ---------------------------------------------------------------------------------------------


async def test_an_exec_plugin_is_run_at_the_first_request_and_again_after_a_401(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    body = f"open({str(runs)!r}, 'a').write('x'); give(token='t' + str(len(open({str(runs)!r}).read())))"

    async def reply(peer: RawServer, request: bytes) -> bytes:
        return OBJECT if b"Bearer t2" in request else http_response({}, "401 Unauthorized")

    async with RawServer(reply) as peer:
        config = load_config(write_config(tmp_path, config_of(plugin(tmp_path, body), server=peer.url)))
        config.credentials.interval = 0.0  # type: ignore[attr-defined]
        assert not runs.exists()
        async with KubeClient(config) as client:
            await asyncio.gather(*(client.call("GET", "/x") for _ in range(4)))
        assert runs.read_text() == "xx"


async def test_an_expired_token_is_replaced_without_a_401(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    body = f"open({str(runs)!r}, 'a').write('x'); give(token='t' + str(len(open({str(runs)!r}).read())), expirationTimestamp='2020-01-01T00:00:00Z')"
    credentials = exec_credentials(tmp_path, body, interval=0.0)
    assert await credentials.header() == "Bearer t1"
    async with asyncio.timeout(60):
        while await credentials.header() == "Bearer t1":
            await asyncio.sleep(0.01)
    await credentials.close()


async def test_an_exec_plugin_is_not_run_for_each_request_if_its_tokens_live_for_minutes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    expires = (datetime.now(UTC) + timedelta(seconds=280)).isoformat()
    body = f"open({str(runs)!r}, 'a').write('x'); give(token='t', expirationTimestamp={expires!r})"
    credentials = exec_credentials(tmp_path, body, interval=0.0)
    for _ in range(2):
        assert await credentials.header() == "Bearer t"
    assert not [t for t in asyncio.all_tasks() if t.get_name() == "exec plugin"], "no run in the background"
    assert runs.read_text() == "x"


async def test_the_zero_time_of_go_means_that_a_token_does_not_expire(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    body = f"open({str(runs)!r}, 'a').write('x'); give(token='t', expirationTimestamp='0001-01-01T00:00:00Z')"
    credentials = exec_credentials(tmp_path, body, interval=0.0)
    for _ in range(2):
        assert await credentials.header() == "Bearer t"
    assert not [t for t in asyncio.all_tasks() if t.get_name() == "exec plugin"], "no run in the background"
    assert runs.read_text() == "x"


async def test_a_client_that_closes_does_not_end_an_exec_plugin_for_which_another_waits(tmp_path: Path) -> None:
    gate, started = tmp_path / "gate", tmp_path / "started"
    body = f"import os\nopen({str(started)!r}, 'w').close()\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\ngive(token='t')"

    async def reply(peer: RawServer, request: bytes) -> bytes:
        return OBJECT if b"Bearer t" in request else http_response({}, "401 Unauthorized")

    async with RawServer(reply) as peer:
        config = load_config(write_config(tmp_path, config_of(plugin(tmp_path, body), server=peer.url)))
        config.credentials.wait = 60.0  # type: ignore[attr-defined]
        async with KubeClient(config) as waiting:
            async with KubeClient(config):
                call = asyncio.create_task(waiting.call("GET", "/x"))
                await wait_until(started.exists, "the run")
            gate.touch()
            await call


async def test_a_client_runs_the_exec_plugin_again_that_an_earlier_client_ended(tmp_path: Path) -> None:
    gate, started = tmp_path / "gate", tmp_path / "started"
    body = f"import os\nopen({str(started)!r}, 'w').close()\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\ngive(token='t')"
    async with serve_replies(OBJECT) as peer:
        config = load_config(write_config(tmp_path, config_of(plugin(tmp_path, body), server=peer.url)))
        config.credentials.wait = 60.0  # type: ignore[attr-defined]
        async with KubeClient(config) as first:
            call = asyncio.create_task(first.call("GET", "/x"))
            await wait_until(started.exists, "the first run")
            call.cancel()
        gate.touch()
        async with KubeClient(config) as second:
            await second.call("GET", "/x")
        assert b"Bearer t" in peer.requests[0]


async def test_a_client_certificate_of_an_exec_plugin_is_used(tmp_path: Path, ca: Pair) -> None:
    client_cert = signed(tmp_path, ca, "me")
    body = f"give(clientCertificateData=open({str(client_cert.cert)!r}).read(), clientKeyData=open({str(client_cert.key)!r}).read())"
    async with serve_replies(OBJECT, tls=server_side(signed(tmp_path, ca, "server"), ca.cert)) as peer:
        cluster = {"server": peer.url, "certificate-authority-data": b64(ca.cert)}
        async with KubeClient(
            load_config(write_config(tmp_path, config_of(plugin(tmp_path, body), **cluster)))
        ) as client:
            await client.call("GET", "/x")
        assert b"Authorization" not in peer.requests[0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit('no login')", "ended with code 1"),
        ("print('garbage')", "not an ExecCredential"),
        ("print('[]')", "not an ExecCredential"),
        ("give()", "neither a token nor a client certificate"),
        ("give(token='a\\nb')", "no token has"),
        ("sys.stdout.buffer.write(bytes(range(128, 256)))", "not an ExecCredential"),
    ],
)
async def test_a_failing_exec_plugin_is_a_temporary_api_error(tmp_path: Path, body: str, message: str) -> None:
    credentials = exec_credentials(tmp_path, body)
    for _ in range(2):
        with pytest.raises(ApiError, match=f"exec plugin .* returned no credentials: .*{message}") as e:
            await credentials.header()
        assert e.value.unreachable
        assert str(e.value).isprintable()


async def test_the_error_of_a_missing_exec_plugin_has_its_install_hint(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": EXEC_API, "command": "/no/such/plugin", "installHint": "get it at example.com"}}
    credentials = load_config(write_config(tmp_path, config_of(user))).credentials
    with pytest.raises(ApiError, match=r"'/no/such/plugin' returned no credentials: .*: get it at example\.com"):
        await credentials.header()


async def test_callers_share_a_hanging_exec_plugin_and_time_out_together(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    body = f"import os\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\ngive(token='late')"
    credentials = exec_credentials(tmp_path, body, wait=1.0)
    async with asyncio.timeout(60):  # the callers do not wait one after the other
        results = await asyncio.gather(*(credentials.header() for _ in range(64)), return_exceptions=True)
    assert all(isinstance(r, ApiError) and "takes longer than 1s" in str(r) for r in results), results
    gate.touch()
    credentials.wait = 60.0
    assert await credentials.header() == "Bearer late"


async def test_an_exec_plugin_that_never_ends_is_killed_at_its_limit_and_at_the_end_of_the_client(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    body = f"import os\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(600)"
    credentials = exec_credentials(tmp_path, body, interval=0.0, timeout=1.0, wait=60.0)
    with pytest.raises(ApiError, match="returned no credentials: it was killed after 1s"):
        await credentials.header()
    credentials.timeout, credentials.wait = 600.0, 0.1
    await wait_until(lambda: len(pids.read_text().split()) == 1, "the first run")
    async with KubeClient(ApiConfig("http://127.0.0.1:1", credentials=credentials)) as client:
        with pytest.raises(ApiError, match=r"takes longer than 0\.1s"):
            await client.call("GET", "/x")
        await wait_until(lambda: len(pids.read_text().split()) == 2, "the second run")
    await wait_until(lambda: not any(Path("/proc", pid).exists() for pid in pids.read_text().split()), "no process")


async def test_values_that_look_like_dates_and_numbers_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "current-context: 2024-01-01\n"
        "contexts: [{name: 2024-01-01, context: {cluster: 12:34:56, user: 007}}]\n"
        "clusters: [{name: 12:34:56, cluster: {server: 'https://h', insecure-skip-tls-verify: true}}]\n"
        "users: [{name: 007, user: {token: 1e5}}]\n"
        "preferences: {}\n"
    )
    assert await load_config(str(path)).credentials.header() == "Bearer 1e5"


async def test_a_changed_token_file_of_a_kubeconfig_is_read(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, config_of({"tokenFile": "token"})))
    with pytest.raises(ApiError, match=str(tmp_path / "token")):
        await config.credentials.header()
    (tmp_path / "token").write_text("one\n")
    assert await config.credentials.header() == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    assert await config.credentials.header() == "Bearer one"
    config.credentials.rejected()
    assert await config.credentials.header() == "Bearer two"


# --- in a pod -------------------------------------------------------------------------------------------------


def test_a_missing_service_account_or_an_invalid_ca_is_a_settings_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ca: Pair
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(SettingsError, match="no API server"):
        load_config(service_account=tmp_path)
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(SettingsError, match=r"service account cannot be used.*ca\.crt"):
        load_config(service_account=tmp_path)
    (tmp_path / "ca.crt").write_bytes(ca.cert.read_bytes())
    assert load_config(service_account=tmp_path).server == "https://[fd00::1]:443"


# --- proxies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "host", "bypassed"),
    [
        ("", "10.0.0.1", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.0/8", "10.96.0.1", True),
        ("10.0.0.0/99,bad/", "10.96.0.1", False),
        ("10.96.0.1:6443", "10.96.0.1", True),
        ("10.96.0.1:1", "10.96.0.1", False),
        ("example.com", "api.example.com", True),
        ("example.com", "example.com", True),
        (".example.com", "example.com", False),
        ("*.example.com", "api.example.com", True),
        ("example.com", "notexample.com", False),
        (" a , API.example.com ", "api.EXAMPLE.com", True),
        ("*", "anything", True),
        ("[fd00::1]:6443", "fd00::1", True),
        ("fd00::/8", "fd00::1", True),
        ("10.0.0.0/8", "api.example.com", False),
        ("10.0.0.0/8", "192.0.2.1", False),
        ("nonsense/8", "192.0.2.1", False),
        ("", "localhost", True),
        ("", "127.0.0.1", True),
        ("", "::1", True),
    ],
)
def test_no_proxy_is_read_as_go_reads_it(rules: str, host: str, bypassed: bool) -> None:
    environment = {"https_proxy": "proxy:3128", "NO_PROXY": rules}
    expected = None if bypassed else Proxy("proxy", 3128)
    assert proxy_of(environment, "https", host, 6443) == expected
    assert proxy_of(environment, "http", host, 6443) is None


@pytest.mark.parametrize("url", ["", "http://", "http://[x", "http://h:99999", "ftp://h"])
def test_an_invalid_proxy_url_is_a_settings_error(url: str) -> None:
    with pytest.raises(SettingsError, match="HTTPS_PROXY"):
        parse_proxy(url, "HTTPS_PROXY")


async def test_an_exec_plugin_gets_its_arguments_variables_and_the_cluster(tmp_path: Path) -> None:
    script = tmp_path / "get-token"
    body = """
import json, os, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
seen = [sys.argv[1], os.environ["REGION"], info["kind"], info["spec"]["interactive"], info["spec"]["cluster"]["server"]]
print(json.dumps({"apiVersion": info["apiVersion"], "kind": info["kind"], "status": {"token": json.dumps(seen, separators=(",", ":"))}}))
"""
    script.write_text(f"#!{sys.executable}\n{body}")
    script.chmod(0o755)
    user = {
        "exec": {
            "apiVersion": EXEC_API,
            "command": "./get-token",  # relative to the kubeconfig
            "args": ["login"],
            "env": [{"name": "REGION", "value": "north"}],
            "provideClusterInfo": True,
        }
    }
    credentials = load_config(write_config(tmp_path, config_of(user))).credentials
    seen = json.loads((await credentials.header()).removeprefix("Bearer "))
    assert seen == ["login", "north", "ExecCredential", False, "http://127.0.0.1:1"]
