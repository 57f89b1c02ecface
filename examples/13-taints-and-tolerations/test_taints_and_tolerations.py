from __future__ import annotations

from pathlib import Path

import pytest

from examples.conftest import Example

pytestmark = pytest.mark.dra(environment={"NUM_DEVICES": "2"}, unhealthy_policy="allow", health_interval=0.1)


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where a file breaks a GPU. Use it before ``example``, because the driver reads its options when it starts."""
    monkeypatch.setenv("GPU_FAULTS", str(tmp_path))
    return tmp_path


def test_only_a_pod_that_tolerates_the_taint_gets_a_broken_gpu(faults: Path, example: Example) -> None:
    (faults / "gpu-0").write_text("row remapping failed")
    example.node.wait_published(lambda devices: [d.name for d in devices.values() if d.taints] == ["gpu-0"])
    example.apply()
    assert example.gpus("plain") == ["gpu-1"]
    assert example.gpus("repair") == ["gpu-0"]


def test_a_pod_that_does_not_tolerate_the_taint_is_evicted(faults: Path, example: Example) -> None:
    example.apply()
    repair, plain = example.gpus("repair"), example.gpus("plain")
    assert (repair, plain) == (["gpu-0"], ["gpu-1"])
    for gpu in ("gpu-0", "gpu-1"):
        (faults / gpu).write_text("NoExecute: too hot")
    example.api.wait("the eviction", lambda: example.api.get("Pod", "plain") is None)
    example.api.wait_event("plain", "DeviceTaintManagerEviction")
    assert example.gpus("repair") == repair
