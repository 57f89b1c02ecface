"""Tests TLS contexts: the certificates that they trust, when files are read again, and the protocols that they offer."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from dra_kubeletplugin.kube import Tls, TlsFiles
from dra_kubeletplugin.kube.tls import make_context
from tests.helpers.certificates import Pair, authority, server_side, signed


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return authority(tmp_path_factory.mktemp("ca"))


def protocol(client: ssl.SSLContext, server: ssl.SSLContext) -> str | None:
    """Runs a handshake in memory and returns the protocol that both sides selected."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server_object = server.wrap_bio(to_server, to_client, server_side=True)
    done = 0
    while done < 2:
        done = 0
        for side in (client_side, server_object):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
    return client_side.selected_alpn_protocol()


def test_both_sides_select_http_1_1(ca: Pair, tmp_path: Path) -> None:
    server = server_side(signed(tmp_path, ca, "server"))
    server.set_alpn_protocols(["h2", "http/1.1"])
    assert protocol(Tls(TlsFiles(ca=ca.cert)).context(), server) == "http/1.1"


def test_system_certificates_are_loaded_only_if_tls_is_used_without_a_configured_ca(
    ca: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority(tmp_path, "system").cert))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    for files, subject in ((TlsFiles(ca=ca.cert), "ca"), (TlsFiles(verify=False), ""), (TlsFiles(), "system")):
        context = make_context(files, files.read())
        assert [dict(c["subject"][0])["commonName"] for c in context.get_ca_certs()] == [subject][: len(subject)]
        assert context.verify_mode is (ssl.CERT_REQUIRED if files.verify else ssl.CERT_NONE)
        assert context.check_hostname is files.verify
        assert bool(context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN)
        assert not context.verify_flags & ssl.VERIFY_X509_STRICT


def test_files_are_read_again_at_their_interval_and_at_once_when_changed_or_rejected(ca: Pair, tmp_path: Path) -> None:
    first, second = tmp_path / "a.crt", tmp_path / "b.crt"
    first.write_bytes(ca.cert.read_bytes())
    other = authority(tmp_path, "other").cert.read_bytes()
    second.write_bytes(other)
    tls = Tls(TlsFiles(ca=first))
    context = tls.context()
    first.write_bytes(other)
    tls.use(TlsFiles(ca=first))
    assert tls.context() is context, "the interval has not passed, and the files are the same"
    tls.recheck = 0.0
    changed = tls.context()
    assert changed is not context
    first.write_bytes(other)  # a new modification time with the same content
    assert tls.context() is changed
    tls.recheck = 3600.0
    first.write_bytes(ca.cert.read_bytes())
    tls.rejected()
    again = tls.context()
    assert again is not changed
    tls.use(TlsFiles(ca=second, server_name="n"))
    assert tls.context() is not again
