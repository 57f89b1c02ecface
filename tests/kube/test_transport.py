"""The URLs that a transport accepts. Its connections are tested with real peers in `test_transport_peers.py`."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.kube.transport import split_server


@pytest.mark.parametrize(
    ("server", "parts"),
    [
        ("http://h", (False, "h", 80, "")),
        ("https://h", (True, "h", 443, "")),
        ("https://h:6443/", (True, "h", 6443, "")),
        ("https://[::1]:1/a/b/", (True, "::1", 1, "/a/b")),
        ("ftp://h", None),
        ("h:6443", None),
        ("https://", None),
        ("https://h:x", None),
        ("https://h:99999", None),
        ("", None),
    ],
)
def test_only_http_urls_with_host_and_valid_port_are_accepted(server: str, parts: Any) -> None:
    if parts is None:
        with pytest.raises(SettingsError, match="is not the URL of an API server"):
            split_server(server)
    else:
        assert split_server(server) == parts
