"""What `make bench` measures really starts: a plugin as in a pod, beside the API server's process."""

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
async def test_the_plugin_of_the_bench_registers_publishes_and_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):  # which the bench sets for itself
        monkeypatch.setenv(name, "")
    with tempfile.TemporaryDirectory() as short:  # a socket's path holds 107 bytes
        async with api_server(tmp_path, delay=0) as api:
            found = await memory.idle("bench.drivers:Many", api, Path(short), sys.executable, runs=1)
            assert found.resident > found.anonymous > 1
            assert (await api.counts()).requests["POST resourceslices"] > 1
