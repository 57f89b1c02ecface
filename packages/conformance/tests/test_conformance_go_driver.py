"""A driver in Go without the framework, which sends protobuf as client-go does, passes each check that applies to it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dra_conformance.driver_command import can_unshare
from dra_conformance.runner import OutcomeStatus
from dra_devkit.schemas.protobuf import MEDIA_TYPE
from tests.helpers.conformance import runs
from tests.helpers.conformance.runs import ROOT, explained

SOURCE = ROOT / "tests/helpers/conformance/go_driver/main.go"
PROTO = ROOT / "proto/dra_kubeletplugin/_proto"
PACKAGES = {"dra_v1": "godriver/dra", "registration_v1": "godriver/registration", "kubernetes": "godriver/kubernetes"}
"""The Go package of each proto file."""
DEBIAN_PACKAGES = Path("/usr/share/gocode")
MISSING = [name for name in ("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc") if not shutil.which(name)]
OPTIONAL = {
    *("CDI-007", "SLC-007", "SKW-001"),
    *("HLT-001", "HLT-002", "HLT-003", "HLT-004"),
    *("CFG-001", "CFG-002", "CFG-003", "CFG-004"),
    *("MET-001", "MET-002", "MET-003"),
}
"""Checks of features that the driver does not have."""

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)} of Debian 12"),
    pytest.mark.skipif(not (DEBIAN_PACKAGES / "src/google.golang.org/grpc").is_dir(), reason="needs gRPC of Debian 12"),
]


def build(folder: Path) -> Path:
    """Builds the driver in the folder. Returns its path."""
    source = folder / "src/godriver"
    source.mkdir(parents=True)
    shutil.copy(SOURCE, source)
    options = [
        f"--{plugin}_opt=M{file}.proto={package}" for file, package in PACKAGES.items() for plugin in ("go", "go-grpc")
    ]
    outs = [f"--{plugin}_out={folder / 'src'}" for plugin in ("go", "go-grpc")]
    files = [f"{name}.proto" for name in PACKAGES]
    subprocess.run(["protoc", f"-I{PROTO}", f"-I{SOURCE.parent}", *outs, *options, *files], check=True)
    env = {
        **os.environ,
        "GO111MODULE": "off",
        "GOPATH": f"{DEBIAN_PACKAGES}:{folder}",
        "GOCACHE": str(folder / "cache"),
    }
    subprocess.run(["go", "vet", "godriver"], env=env, check=True)
    subprocess.run(["go", "build", "-o", folder / "driver", "godriver"], env=env, check=True)
    return folder / "driver"


@pytest.mark.parametrize("accept", [f"{MEDIA_TYPE},application/json", MEDIA_TYPE])
async def test_a_driver_in_go_passes(accept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEPT", accept)
    formatted = subprocess.run(["gofmt", "-l", SOURCE], check=True, capture_output=True, text=True)
    assert formatted.stdout == "", "run gofmt"
    found = await runs.run(str(build(tmp_path)), valid={}, invalid={}, errors={}, pace=runs.PATIENT)
    assert found.fault == ""
    assert found.failed_ids == [], explained(found)
    expected = OPTIONAL if can_unshare() else {*OPTIONAL, "RST-004"}
    assert {o.check.id for o in found.outcomes if o.status is not OutcomeStatus.PASSED} == expected
    assert found.exit_code(strict=True, fail_on_skip=can_unshare()) == 0
