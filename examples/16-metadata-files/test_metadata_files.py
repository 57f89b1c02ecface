from __future__ import annotations

import json
from pathlib import Path

from examples.conftest import Example

FOLDER = Path("/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/gpu")


def test_a_file_in_the_container_describes_its_gpu(example: Example) -> None:
    example.apply()
    (gpu,) = example.gpus("metadata-files")
    mounts = example.node.oci(example.api.wait_running("metadata-files"))["mounts"]
    (source,) = [m["source"] for m in mounts if m["destination"] == str(FOLDER / "gpu.example.com-metadata.json")]
    newest, _ = json.JSONDecoder().raw_decode(Path(source).read_text())
    assert newest["kind"] == "DeviceMetadata"
    ((device,),) = [request["devices"] for request in newest["requests"] if request["name"] == "gpu"]
    assert (device["driver"], device["name"]) == ("gpu.example.com", gpu)
    assert device["attributes"]["model"] == {"string": "LATEST-GPU-MODEL"}
