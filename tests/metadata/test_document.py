"""Device metadata files (KEP-5304): a program in a container reads the values that the driver wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import Version, metadata
from dra_kubeletplugin.errors import MetadataError
from dra_kubeletplugin.metadata import reader
from dra_kubeletplugin.metadata.__main__ import main
from dra_kubeletplugin.metadata.document import decode, decode_whole, encode
from dra_kubeletplugin.metadata.paths import in_container
from dra_kubeletplugin.resourceapi.types import attribute_json

CLAIM = metadata.ClaimRef("my-claim", "default", "uid-1234")
GPU: dict[str, Any] = {
    "name": "gpu-0",
    "pool": "worker-0",
    "driver": "gpu.example.com",
    "attributes": {"model": {"string": "LATEST"}, "driverVersion": {"version": "1.0.0"}, "index": {"int": 3}},
}


def objects(data: bytes) -> list[Any]:
    return [json.loads(part) for part in data.decode().replace("}\n{", "}\n\0{").split("\0")]


EXPECTED = """{
  "kind": "DeviceMetadata",
  "apiVersion": "metadata.resource.k8s.io/%s",
  "metadata": {
    "name": "my-claim",
    "namespace": "default",
    "uid": "uid-1234",
    "generation": 1
  },
  "podClaimName": "gpu-claim",
  "requests": [
    {
      "name": "gpu",
      "devices": [
        {
          "driver": "gpu.example.com",
          "pool": "worker-0",
          "name": "gpu-0",
          "attributes": {
            "driverVersion": {
              "version": "1.0.0"
            },
            "index": {
              "int": 3
            },
            "model": {
              "string": "a \\u003cb\\u003e \\u0026 \\u2028 \u00e9/\\u0001"
            }
          },
          "networkData": {
            "ips": [
              "10.0.0.2/24"
            ]
          }
        }
      ]
    }
  ]
}
"""


def test_a_file_is_identical_to_the_file_of_a_go_driver() -> None:
    """Kubernetes 1.36 writes indented JSON with encoding/json, which escapes HTML characters."""
    attributes = {**GPU["attributes"], "model": {"string": "a <b> & \u2028 \u00e9/\x01"}}
    gpu = {**GPU, "attributes": attributes, "networkData": {"ips": ["10.0.0.2/24"]}}
    claim = metadata.ClaimRef("my-claim", "default", "uid-1234", "gpu-claim")
    assert encode(claim, 1, {"gpu": [gpu]}).decode() == EXPECTED % "v1beta1" + EXPECTED % "v1alpha1"


def test_paths_are_as_specified_by_the_kep() -> None:
    top = "/var/run/kubernetes.io/dra-device-attributes"
    assert (
        str(in_container("c", "", "gpu/large", "d.example.com"))
        == f"{top}/resourceclaims/c/gpu/d.example.com-metadata.json"
    )
    assert str(in_container("c", "gpu-claim", "gpu", "d.example.com")) == (
        f"{top}/resourceclaimtemplates/gpu-claim/gpu/d.example.com-metadata.json"
    )


def write(root: Path, pod_claim: str = "", request: str = "gpu", claim: str = "c", **device: Any) -> Path:
    fields = {**GPU, **device}
    path = in_container(claim, pod_claim, request, fields["driver"])
    file = root / path.relative_to(metadata.CONTAINER_ROOT.as_posix())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode(metadata.ClaimRef(claim, "ns", "u", pod_claim), 2, {request: [fields]}))
    return file


def test_a_program_reads_typed_devices_and_filters_them_by_claim_request_and_driver(tmp_path: Path) -> None:
    network = {"interfaceName": "eth1", "ips": ["10.0.0.2/24"], "hardwareAddress": "02:00:00:00:00:01"}
    write(tmp_path, request="gpu/large")
    write(
        tmp_path,
        pod_claim="net",
        request="nic",
        claim="p-net-x1",
        driver="nic.example.com",
        name="eth",
        networkData=network,
    )
    gpu, nic = metadata.devices(root=tmp_path)
    assert (gpu.request, gpu.name, gpu.claim.name, gpu.generation) == ("gpu/large", "gpu-0", "c", 2)
    assert gpu.attributes == {"model": "LATEST", "driverVersion": Version("1.0.0"), "index": 3}
    assert nic.network == metadata.Network("eth1", ("10.0.0.2/24",), "02:00:00:00:00:01")
    assert nic.claim.pod_claim == "net"
    for filters, wanted in (
        ({"request": "gpu"}, [gpu]),
        ({"request": "gpu/large"}, [gpu]),
        ({"request": "gpu/small"}, []),
        ({"claim": "net"}, [nic]),
        ({"driver": "nic.example.com"}, [nic]),
        ({"claim": "net", "driver": "gpu.example.com"}, []),
    ):
        assert metadata.devices(root=tmp_path, **filters) == wanted, filters


def test_a_container_without_metadata_has_no_devices(tmp_path: Path) -> None:
    assert metadata.devices(root=tmp_path / "missing") == []


values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text('aé"\\ \n', max_size=64),
    st.just(Version("1.2.3-rc.1")),
    st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple),
    st.lists(st.text("ab", max_size=5), min_size=1, max_size=3).map(tuple),
)


@given(st.dictionaries(st.text("abcxyz", min_size=1, max_size=8), values, max_size=8), st.integers(1, 2**40))
def test_a_written_document_is_read_unchanged(attributes: dict[str, Any], generation: int) -> None:
    wire = {name: attribute_json(value) for name, value in attributes.items()}
    data = encode(CLAIM, generation, {"r": [{**GPU, "attributes": wire}]})
    document = decode(data, Path("f"))
    assert (document.generation, document.version) == (generation, "v1beta1")
    assert dict(document.devices[0].attributes) == attributes


def test_the_first_known_version_is_read_and_unknown_fields_are_ignored() -> None:
    known = objects(encode(CLAIM, 7, {"gpu": [GPU]}))[1] | {"future": 1}
    newer = {"apiVersion": "metadata.resource.k8s.io/v9", "kind": "DeviceMetadata", "metadata": 3}
    document = decode(f"{json.dumps(newer)}\n\n {json.dumps(known)}".encode(), Path("f"))
    assert (document.generation, document.version) == (7, "v1alpha1")


OBJECT = objects(encode(CLAIM, 1, {"gpu": [GPU]}))[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfe", "is not UTF-8"),
        (b'{"kind"', "is not a stream of JSON objects"),
        (b"[1]", "has a list: none of metadata.resource.k8s.io/v1alpha1"),
        (b'{"apiVersion": "v1", "kind": "Pod"}', "has v1 Pod: none of"),
        (b"[" * 100_000, "is not a stream of JSON objects"),
        (json.dumps(OBJECT | {"metadata": {}}).encode(), "required field `name`"),
        (json.dumps(OBJECT | {"requests": [{"name": 1}]}).encode(), "Expected `str`, got `int`"),
        (json.dumps(OBJECT).replace('{"int": 3}', "{}").encode(), "attribute index has 0 values"),
        (json.dumps(OBJECT).replace('"1.0.0"', '"x"').encode(), "is not a version|x"),
    ],
)
def test_an_invalid_file_is_an_error_with_its_path_and_the_fault(data: bytes, message: str) -> None:
    with pytest.raises(MetadataError, match=f"/some/file.*({message})"):
        decode(data, Path("/some/file"))


@given(st.binary(max_size=200))
def test_any_file_content_is_a_document_or_a_metadata_error(data: bytes) -> None:
    try:
        decode(data, Path("f"))
    except MetadataError as e:
        assert str(e).startswith("f")


def test_the_command_prints_a_table_or_json_and_one_sentence_for_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path)
    assert main(["--root", str(tmp_path)]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["CLAIM", "REQUEST", "DRIVER", "POOL", "DEVICE", "ATTRIBUTES"]
    assert row.split() == [
        "c",
        "gpu",
        "gpu.example.com",
        "worker-0",
        "gpu-0",
        "driverVersion=1.0.0",
        "index=3",
        "model=LATEST",
    ]
    assert main(["--root", str(tmp_path), "-o", "json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)
    assert device["attributes"] == {"driverVersion": "1.0.0", "index": 3, "model": "LATEST"}
    file.write_text("nonsense")
    assert main(["--root", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert main(["--root", str(tmp_path / "none")]) == 0
    assert "no device metadata" in capsys.readouterr().err


def test_an_empty_or_partly_written_file_is_read_again_until_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions with different content belong to two writes. A Go driver truncates the file before it writes."""
    file = write(tmp_path, name="old")
    old, new = (encode(CLAIM, g, {"gpu": [{**GPU, "name": name}]}) for g, name in ((1, "old"), (2, "new")))
    middle = len(new) // 2
    states = [b"", new[: middle // 2], new[:middle] + old[middle:], old[:middle] + new[middle:], new]
    file.write_bytes(states[0])
    pauses = iter(states[1:])
    monkeypatch.setattr(reader.time, "sleep", lambda _: file.write_bytes(next(pauses)))
    (device,) = metadata.devices(root=tmp_path)
    assert (device.name, device.generation) == ("new", 2)
    assert next(pauses, None) is None


@given(st.integers(0, 2000), st.text("xyz", max_size=40), st.text("xyz", max_size=40))
def test_a_mix_of_two_writes_is_never_accepted_as_a_complete_file(cut: int, before: str, after: str) -> None:
    """A reader may see any part of the second write. The file then has the length of the longer document."""

    def content(generation: int, text: str) -> bytes:
        return encode(CLAIM, generation, {"gpu": [{**GPU, "attributes": {"text": {"string": text}}}]})

    old, new = content(1, before), content(2, after)
    length = max(len(old), len(new))
    old, new = old.ljust(length, b"\n"), new.ljust(length, b"\n")
    for mix in (new[:cut] + old[cut:], old[:cut] + new[cut:]):
        if document := decode_whole(mix, Path("f")):
            assert (document.generation, document.devices[0].attributes["text"]) in ((1, before), (2, after))


def test_a_permanently_malformed_second_version_does_not_hide_the_first(tmp_path: Path) -> None:
    file = write(tmp_path)
    first = json.dumps(objects(file.read_bytes())[0]).encode()
    for malformed in (
        b'{"kind"',
        b'{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1alpha1","metadata":{}}',
    ):
        file.write_bytes(first + malformed)
        assert [d.name for d in metadata.devices(root=tmp_path)] == ["gpu-0"]


def test_importing_the_reader_loads_neither_grpc_nor_modules_of_the_plugin() -> None:
    code = "import sys, dra_kubeletplugin.metadata; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    unwanted = (
        "grpc",
        "google.protobuf",
        "sqlite3",
        "h11",
        "httptools",
        "yaml",
        "dra_kubeletplugin.kube",
        "dra_kubeletplugin.claims",
    )
    assert "dra_kubeletplugin.metadata" in loaded
    assert [m for m in unwanted if m in loaded] == []
