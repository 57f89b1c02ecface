"""A plugin does not load modules that a DaemonSet does not need: each of them costs resident memory on every node."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from bench.apiserver import make_certificate
from dra_devkit.localcluster.apiserver import ApiServer

LOADED = """
import json, sys
import dra_kubeletplugin.cli, dra_kubeletplugin.cli.run, dra_kubeletplugin.plugin.node
dra_kubeletplugin.cli.command_parser("run").parse_args(["driver"])
print(json.dumps(sorted(sys.modules)))
"""
CONNECTED = """
import asyncio, json, sys
from pathlib import Path
from dra_kubeletplugin.kube import ApiConfig, KubeClient
from dra_kubeletplugin.kube.credentials import Token
from dra_kubeletplugin.kube.resource import NAMESPACES
from dra_kubeletplugin.kube.tls import Tls, TlsFiles

async def main():
    async with KubeClient(ApiConfig(sys.argv[1], Tls(TlsFiles(ca=Path(sys.argv[2]))), Token(sys.argv[3]))) as client:
        found = await client.get(NAMESPACES, "default")
    print(json.dumps([found["metadata"]["name"], [m for m in ("encodings.idna", "unicodedata") if m in sys.modules]]))

asyncio.run(main())
"""
HEAVY = {
    "kubernetes": "its loader is for kubeconfigs",
    "yaml": "is for kubeconfigs, manifests and described hosts",
    "aiohttp": "the client is httptools on asyncio connections",
    "importlib.metadata": "brings zipfile and inspect",
    "difflib": "is for one sentence of an error",
    "multiprocessing": "nothing here forks",
    "google.protobuf.text_format": "comes with protobuf's Python half, which its C one needs no word of",
    "encodings.idna": "has tables for names that are no ASCII",
    "dra_kubeletplugin.plugin.status_page": "is for a page that nobody may ever look at",
    "re2": "is for CEL, which a plugin never evaluates",
    "textual": "is for a screen",
    "rich": "comes with textual",
    "dra_devkit": "is for authors",
    "dra_tools": "is for operators",
    "dra_conformance": "is for authors",
}


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    run = subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True)
    return set(json.loads(run.stdout))


@pytest.mark.parametrize("name", HEAVY)
def test_a_plugin_does_not_load(name: str, loaded: set[str]) -> None:
    modules = sorted(m for m in loaded if m == name or m.startswith(f"{name}."))
    assert not modules, f"{name} {HEAVY[name]}; find who imports it with python -X importtime"


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl to make a certificate")
async def test_a_tls_connection_does_not_load_the_tables_for_internationalized_names(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "ca.crt", tmp_path / "ca.key")
    server = ApiServer(tls=tls)
    url = await server.start()
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONNECTED, url, str(tmp_path / "ca.crt"), server.token, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await run.communicate()
    await server.close()
    assert json.loads(output) == ["default", []]


def test_python_modules_of_protobuf_can_be_imported() -> None:
    code = """
import dra_kubeletplugin._proto.dra_v1_pb2 as pb
from google.protobuf import text_format
from google.protobuf.internal import python_message
print(text_format.MessageToString(pb.Claim(uid="x")).strip(), python_message.GeneratedProtocolMessageType.__name__)
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == 'uid: "x" GeneratedProtocolMessageType'
