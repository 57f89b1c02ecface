"""Names and annotations that a user chooses never become part of a path on the host, whatever the API server
accepts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.metadata_files import MetadataFiles
from dra_kubeletplugin.errors import ClaimError, DraError
from dra_kubeletplugin.metadata.paths import in_container
from tests.helpers.crash.claim_drivers import LONGEST_LABEL, LONGEST_NAME, MetadataDriver, allocate_long, files_of
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.record_stores import DRIVER

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"


def container_path(manager: RunningManager) -> str:
    """Returns the path of the only metadata file in containers."""
    (spec,) = manager.settings.cdi_root.glob("*.json")
    (device,) = (d for d in json.loads(spec.read_text())["devices"] if "_" in d["name"])
    return str(device["containerEdits"]["mounts"][0]["containerPath"])


@pytest.mark.parametrize(
    "text", ["../../etc", "..", "a/b", "a.b", "a\0b", "A", "x" * 64, "x" * (256 << 10), "\u202e", "-a", ""]
)
async def test_a_pod_claim_name_that_is_no_dns_label_is_ignored(tmp_path: Path, text: str) -> None:
    api = FakeApiServer()
    ref = allocate_long(api, **{POD_CLAIM: text})
    async with running_manager(tmp_path, MetadataDriver(), api) as manager:
        assert not isinstance(await manager.prepare(ref), DraError)
        assert container_path(manager).endswith(f"/dra-device-attributes/resourceclaims/c/r/{DRIVER}-metadata.json")
        assert await manager.unprepare(ref) == ()
        assert files_of(manager) == []


async def test_a_pod_claim_name_that_is_a_dns_label_is_in_the_path_as_kep_5304_states(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = allocate_long(api, **{POD_CLAIM: "p" * 63})
    async with running_manager(tmp_path, MetadataDriver(), api) as manager:
        await manager.prepare(ref)
        expected = (
            f"/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/{'p' * 63}/r/{DRIVER}-metadata.json"
        )
        assert container_path(manager) == expected


@pytest.mark.parametrize("request_name", ["../../x", "..", "", "a.b", "R", "x" * 64, "/sub", "a\0"])
async def test_an_invalid_request_name_is_refused_and_leaves_no_file(tmp_path: Path, request_name: str) -> None:
    api = FakeApiServer()
    ref = allocate_long(api, request=request_name)
    async with running_manager(tmp_path, MetadataDriver(), api) as manager:
        response = await manager.prepare(ref)
        assert isinstance(response, ClaimError)
        assert "request" in str(response)
        assert files_of(manager) == []
        assert await manager.records() == {}


UIDS = ["../../x", "..", ".", "a/b", "u" * 64, "u" * 300, "u\0", "-u", "u_1", "ü", "a b"]


@pytest.mark.parametrize("uid", UIDS)
async def test_a_uid_that_is_no_valid_file_name_is_refused_and_its_unprepare_touches_no_file(
    tmp_path: Path, uid: str
) -> None:
    api = FakeApiServer()
    ref = allocate_long(api, uid=uid)
    async with running_manager(tmp_path, MetadataDriver(), api) as manager:
        other_file = tmp_path / "x.json"
        other_file.touch()
        response = await manager.prepare(ref)
        assert isinstance(response, ClaimError)
        assert "UID" in str(response)
        assert await manager.records() == {}
        assert await manager.unprepare(ref) == ()
        assert files_of(manager) == []
        assert other_file.exists()
        assert manager.settings.records_path.exists()


def test_an_invalid_name_has_no_path_in_containers() -> None:
    valid_names: dict[str, Any] = {"claim": "a.b", "pod_claim": "", "request": "r/s", "driver": DRIVER}
    in_container(**valid_names)
    for field, value in [
        ("claim", "../x"),
        ("claim", "c" * 254),
        ("pod_claim", "a.b"),
        ("request", ".."),
        ("claim", ""),
    ]:
        with pytest.raises(ValueError, match="DNS"):
            in_container(**valid_names | {field: value})


def test_the_longest_file_names_fit_into_255_bytes(tmp_path: Path) -> None:
    specs = ClaimSpecs(tmp_path / "cdi", "d" * 63, "0b6a0c1e-0000-4000-8000-000000000001")
    files = MetadataFiles(tmp_path, specs.driver)
    record = Record("u" * 63, LONGEST_LABEL, LONGEST_NAME, State.PREPARED, "boot")
    described = [{"driver": "d" * 63, "pool": "p", "name": "d-0"}]
    record.metadata = {"generation": 1, "podClaim": "p" * 63, "requests": {"r" * 63: described}}
    files.put(record)
    assert files.are_intact(record)
    specs.write(record.uid, {"kind": "x"})
    specs.write_note(record.uid, b"x")
    specs.write_note(record.uid, b"again, under a temporary name")
    specs.remove(record.uid)
    specs.remove_note(record.uid)
    files.remove_all(record.uid)
    assert [p for p in tmp_path.rglob("*") if not p.is_dir()] == []
