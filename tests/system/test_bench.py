"""The programs of `make bench` start: a plugin as in a pod, beside the process of the API server."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from bench import memory
from bench.apiserver import api_server


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl, to make the API server's certificate")
async def test_the_bench_measures_a_registered_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):  # the bench sets these itself
        monkeypatch.setenv(name, "")
    with tempfile.TemporaryDirectory() as socket_folder:  # the path of a socket has at most 107 bytes
        async with api_server(tmp_path, delay=0) as api:
            memory_use = await memory.idle("bench.drivers:Many", api, Path(socket_folder), sys.executable, runs=1)
            assert memory_use.resident > memory_use.anonymous > 1
            assert (await api.counts()).requests["POST resourceslices"] > 1
